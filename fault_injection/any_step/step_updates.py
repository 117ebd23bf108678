"""What a user's step adds to its parameters, and what Adam would add with the moments of its new state."""

from collections.abc import Sequence
from typing import Any

import jax

from ..models.observe.reductions import adam_step, reduced, together
from ..seam.leaves import MEANS, SQUARES, Leaf, Role

UPDATES, ADAM_STEPS = "updates", "adam_steps"
REPORTED = frozenset({f"rms/{UPDATES}", f"rms/{ADAM_STEPS}"})
NO_MOMENTS = "its state has not both of Adam's moments of a parameter that is known"
UNKNOWN_RATE = "the learning rate of this step is not known: a constant one does not matter here, another one does"


def moments(leaves: Sequence[Leaf]) -> dict[str, tuple[int, int]]:
    """Places of a parameter's first and second moment in a state, by its name, where that is known.

    >>> moments([Leaf("mu/w", Role.HISTORY, "0.mu", "w"), Leaf("nu/w", Role.HISTORY, "0.nu", "w")])
    {'w': (0, 1)}
    """
    kept = [(place, leaf) for place, leaf in enumerate(leaves) if leaf.role == Role.HISTORY and leaf.parameter]
    places = {(leaf.parameter, leaf.kind): place for place, leaf in kept}
    return {
        name: (place, places[name, square])
        for (name, kind), place in places.items()
        for mean, square in zip(MEANS, SQUARES, strict=True)
        if kind == mean and (name, square) in places
    }


def reductions_of_updates(
    wanted: frozenset[str], leaves: Sequence[Leaf], before: Sequence[Any], after: Sequence[Any]
) -> dict[str, jax.Array]:
    """What was asked for, by `REDUCTION/KIND/NAME`; the learning rate in `adam_steps` is 1.

    Args:
      before, after: the arrays of the state.
    """
    found: dict[str, jax.Array] = {}
    if any(each.endswith(f"/{UPDATES}") for each in wanted):
        for place, leaf in enumerate(leaves):
            if leaf.role == Role.PARAMETER:
                found |= together(reduced(wanted, UPDATES, leaf.name, after[place] - before[place]))
    if any(each.endswith(f"/{ADAM_STEPS}") for each in wanted):
        for name, (m, v) in moments(leaves).items():
            found |= together(reduced(wanted, ADAM_STEPS, name, adam_step(after[m], after[v], 1.0)))
    return found
