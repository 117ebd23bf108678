"""The gradient that a user's optimizer was given, recovered from a first moment before and after a step."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ..machine.errors import InputError
from ..models.observe.reductions import local_gradient, reduced, together
from ..seam.leaves import MEANS, SUMS, Leaf, Role

KINDS = ("gradients", "parameter_gradients", "local_gradients")
REPORTED = frozenset(f"{reduction}/{kind}" for reduction in ("norm", "largest") for kind in KINDS)
NO_MOMENT = "its state has no first moment from which gradients follow"
AS_GIVEN = "the gradient is the one that the optimizer was given: after a clip, where there is one"
UNEVEN = 2.0**-6  # what rounding to bfloat16 can make of one decay


class Recovered(NamedTuple):
    """How a gradient follows from a moment: m′ = decay · m + weight · g.

    Attributes:
      name: of the parameter.
      place: of the moment among the leaves of the state.
      decay, weight: of the moment and of the gradient.
    """

    name: str
    place: int
    decay: float
    weight: float

    def gradient(self, before: jax.Array, after: jax.Array) -> jax.Array:
        """The gradient, float32, as the optimizer was given it: after a clip, and with an L2 term.

        >>> Recovered("w", 0, decay=0.5, weight=0.5).gradient(jnp.float32(4.0), jnp.float32(3.0)).item()
        2.0
        """
        return (after.astype(jnp.float32) - self.decay * before.astype(jnp.float32)) / self.weight


def first_moments(leaves: Sequence[Leaf]) -> list[int]:
    """Places of the first moments in a state; of several that are kept for one parameter, of the first in a chain.

    >>> first_moments([Leaf("params/w", Role.PARAMETER), Leaf("opt/0/mu/w", Role.HISTORY, "mu")])
    [1]
    """
    found: dict[str, int] = {}
    for place, leaf in enumerate(leaves):
        if leaf.role == Role.HISTORY and leaf.kind in (*MEANS, *SUMS):
            found.setdefault(leaf.parameter or leaf.name, place)
    return list(found.values())


def recovered(leaves: Sequence[Leaf], state: Sequence[Any], step: Callable[..., Sequence[Any]]) -> list[Recovered]:
    """How each gradient follows from its moment.

    The decay is measured: with moments of 0 and of 1, the same step gives moments that differ by it.  The weight of
    the gradient is 1 − decay in a mean and 1 in a sum, as Optax's `scale_by_adam` and `trace` have it.

    Args:
      leaves: of the state.
      state: its arrays, at any step.
      step: gives the arrays of the new state.

    Raises:
      InputError: a moment is something else.

    >>> leaves = [Leaf("params/w", Role.PARAMETER), Leaf("opt/mu/w", Role.HISTORY, "mu", "params/w")]
    >>> state = [jnp.ones(2), jnp.zeros(2)]
    >>> found = recovered(leaves, state, lambda w, mu: [w, 0.75 * mu + 0.25 * w])
    >>> found
    [Recovered(name='params/w', place=1, decay=0.75, weight=0.25)]
    """
    places = first_moments(leaves)

    @jax.jit
    def moments(*arrays: Any) -> list[jax.Array]:
        new = step(*arrays)
        return [new[place] for place in places]

    def after(fill: float) -> list[Any]:
        given = list(state)
        for place in places:
            given[place] = jax.device_put(jnp.full_like(given[place], fill), given[place].sharding)
        return [np.asarray(leaf, np.float64) for leaf in jax.device_get(moments(*given))]

    found = []
    for place, zero, one in zip(places, after(0.0), after(1.0), strict=True):
        name, moment = leaves[place].name, leaves[place].kind
        decay = float(np.median(one - zero))
        if not 0 <= decay < 1 or np.median(np.abs(one - zero - decay)) > UNEVEN:
            raise InputError(f"{name!r} is no moment from which a gradient follows: it keeps {decay:.3g} of itself")
        weight = 1 - decay if moment in MEANS else 1.0
        found.append(Recovered(leaves[place].parameter or name, place, decay, weight))
    return found


def reductions_of_gradients(
    wanted: frozenset[str], rules: Sequence[Recovered], before: Sequence[Any], after: Sequence[Any]
) -> dict[str, jax.Array]:
    """What was asked for of the recovered gradients, by `REDUCTION/KIND/NAME`."""
    found: dict[str, jax.Array] = {}
    for rule in rules:
        gradient = rule.gradient(before[rule.place], after[rule.place])
        for kind in KINDS:
            local = kind == "local_gradients"  # on one device it is the gradient
            if not local or gradient.ndim > 1:
                name = local_gradient(0, 0, rule.name) if local else rule.name
                found |= together(reduced(wanted, kind, name, gradient))
    return found
