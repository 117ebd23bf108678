"""How far the reference is from the user's own step after a few steps, and whether rounding explains it.

The reference has barriers, which change what the compiler fuses and so the rounding.  What rounding can do in these
steps is measured: twins take them with the reference too, from a start whose numbers differ in the last place of the
narrowest format that products have: between those, XLA on CPUs leaves out roundings.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ..models.isolation import nonfinite_allowed
from .traced_step import Traced

COMPARED = 3  # steps
TWINS = 2  # the first differs in every number of the start, the others in every second, chosen at random
BEYOND = 10.0  # times what the twins differ by, rounding does not explain
FEW = 0.01  # share of a leaf's elements that rounding may turn over, as the sign of a gradient of zero in Adam
LEAST = 0.1  # share of what the steps have changed of a leaf, from which so few are an alarm too
DECIDES = 0.5  # share of what the steps have changed in all, from which rounding decides the training

Leaves = list[np.ndarray]
Take = Callable[[Any, Any], Any]  # a step: arrays of the state on devices, and of a batch, give the new arrays


class Apart(NamedTuple):
    """How far two states are apart, leaf by leaf; norms are Euclidean, of elements that are no numbers their count.

    Attributes:
      norm: of the difference.
      of_most: the same without the few elements that differ most.
      relative: the largest difference, in units of the largest value of the second.
    """

    norm: np.ndarray
    of_most: np.ndarray
    relative: np.ndarray

    @classmethod
    def of(cls, ones: Leaves, others: Leaves) -> "Apart":
        return cls(*np.array([_apart(*pair) for pair in zip(ones, others, strict=True)]).reshape(-1, 3).T)


def own_step(traced: Traced, step: Callable[[Any, Any], Any]) -> Take:
    """The user's own step, of arrays, compiled as a whole."""
    state, batch = traced.state, traced.batch
    return jax.jit(lambda arrays, given: state.arrays(step(state.joined(arrays), batch.joined(given))[0]))


def distance(
    names: Sequence[str],
    start: Callable[[Leaves | None], Any],
    reference: Take,
    own: Take,
    batches: Sequence[Any],
    digits: int,
) -> dict[str, Any]:
    """How far the reference, and a step with an inactive fault, are from the user's own step, as JSON values.

    Both have the same bits, which is seen to before a fault strikes: one distance describes both.

    Args:
      names: of the state's arrays.
      start: gives fresh arrays on devices: of the initial state, or those given.
      reference, own: the two steps.
      batches: of the steps.
      digits: bits of the mantissa that products have at least.

    Returns:
      A `sentence`; whether it is an `alarm`; how many `steps` were taken; how many `leaves` there are, how many of
      them differ after the last (`leaves_that_differ`), and the `largest_relative_difference`; what the largest is
      between the reference and a twin (`of_twins`, None where no leaf differs); and in an alarm the `first_leaf`.
    """
    begin: Leaves = [np.asarray(leaf) for leaf in jax.device_get(start(None))]
    ours = [*_taken(reference, start(None), batches)]
    theirs = [*_taken(own, start(None), batches)]
    apart = [Apart.of(*pair) for pair in zip(theirs, ours, strict=True)]
    told: dict[str, Any] = {"alarm": False, "steps": len(ours), "leaves": len(names)}
    differ = int(np.count_nonzero(apart[-1].norm))
    told |= {"leaves_that_differ": differ, "largest_relative_difference": _most(apart[-1].relative), "of_twins": None}
    if not any(np.any(each.norm) for each in apart):
        sentence = f"golden runs are made with barriers in the step: over {len(ours)} steps, they change no bit of it"
        return {"sentence": sentence, **told}
    twins = [[*_taken(reference, start(_nudged(begin, number, digits)), batches)] for number in range(TWINS)]
    of_twins = [[Apart.of(*pair) for pair in zip(twin, ours, strict=True)] for twin in twins]
    told["of_twins"] = max(_most(twin[-1].relative) for twin in of_twins)
    for number, each in enumerate(apart):
        floor = [
            4 * (number + 1) * _unit(leaf, digits) * float(np.linalg.norm(_numbers(leaf))) for leaf in ours[number]
        ]
        moved = Apart.of(ours[number], begin).norm
        noise, noise_of_most = (
            BEYOND * np.max([np.array(floor), *(getattr(twin[number], norm) for twin in of_twins)], axis=0)
            for norm in ("norm", "of_most")
        )
        beyond = (each.of_most > noise_of_most) | (each.norm > np.maximum(noise, LEAST * moved))
        decided = not np.linalg.norm(each.norm) <= DECIDES * np.linalg.norm(moved)
        if beyond.any() or decided:
            at = int(np.argmax(beyond if beyond.any() else each.norm > 0))
            said = _alarm(names[at], number + 1, each.relative[at], max(twin[number].relative[at] for twin in of_twins))
            return {"sentence": said(beyond.any()), **told, "alarm": True, "first_leaf": names[at]}
    sentence = (
        f"golden runs are made with barriers in the step, which change its rounding: after {len(ours)} steps, "
        f"{differ} of {len(names)} leaves differ by at most {told['largest_relative_difference']:.1e} of their largest "
        f"value; a change in the last place of the start makes {told['of_twins']:.1e} of it"
    )
    return {"sentence": sentence, **told}


def _alarm(leaf: str, steps: int, by: float, twin: float) -> Callable[[bool], str]:
    """The sentence, by whether the difference is larger than rounding explains."""
    begin = (
        f"ALARM: golden runs are not made of the step as it is: after {steps} step(s), {leaf!r} is the first leaf that"
    )
    beyond = f"{begin} differs by more than rounding explains, by {by:.1e} of its largest value"
    decided = f"{begin} differs, by {by:.1e} of its largest value, and rounding decides what this training does"
    change = f"a change in the last place of the start makes {twin:.1e} of it"
    held = "what is found holds for the step with barriers, not for the step as it is"
    return lambda is_beyond: f"{beyond if is_beyond else decided}: {change}; {held}"


def _taken(step: Take, arrays: Any, batches: Any) -> Iterator[Leaves]:
    """The state after each step, on the host."""
    with nonfinite_allowed():
        for batch in batches:
            arrays = step(arrays, batch)
            yield [np.asarray(leaf) for leaf in jax.device_get(arrays)]


def _nudged(leaves: Leaves, number: int, digits: int) -> Leaves:
    """The leaves, whose numbers but zeros differ in the last place of so many: of twin 0 all of them."""
    rng = np.random.default_rng(number)
    found = []
    for leaf in leaves:
        new = np.array(leaf)
        if jnp.issubdtype(leaf.dtype, jnp.inexact):
            parts = _parts(new)
            words = parts.view(f"uint{8 * parts.dtype.itemsize}")
            other = words ^ words.dtype.type(1 << max(0, jnp.finfo(leaf.dtype).nmant - digits))
            chosen = (parts != 0) & np.isfinite(other.view(parts.dtype).astype(np.float64))
            if number:
                chosen &= rng.random(parts.shape) < 0.5
            words[chosen] = other[chosen]
            new = parts.view(leaf.dtype).reshape(leaf.shape)
        found.append(new)
    return found


def _parts(leaf: np.ndarray) -> np.ndarray:
    """The numbers of a leaf as a vector; of complex ones, both parts."""
    flat = np.ascontiguousarray(leaf).reshape(-1)
    return flat.view(flat.real.dtype) if flat.dtype.kind == "c" else flat


def _numbers(leaf: np.ndarray) -> np.ndarray:
    return _parts(leaf).astype(np.float64) if jnp.issubdtype(leaf.dtype, jnp.inexact) else np.zeros(0)


def _unit(leaf: np.ndarray, digits: int) -> float:
    """The unit in the last place of 1, of so many bits or of the leaf's; 0 of integers, which are not rounded."""
    if not jnp.issubdtype(leaf.dtype, jnp.inexact):
        return 0.0
    return float(2.0 ** -min(digits, int(jnp.finfo(leaf.dtype).nmant)))


def _apart(one: np.ndarray, other: np.ndarray) -> tuple[float, float, float]:
    """`Apart` of two leaves."""
    if one.tobytes() == other.tobytes():
        return 0.0, 0.0, 0.0
    if not jnp.issubdtype(one.dtype, jnp.inexact):
        count = float(np.sqrt(np.count_nonzero(one != other)))
        return count, count, 1.0
    a, b = _numbers(one), _numbers(other)
    with np.errstate(invalid="ignore"):
        difference = np.where((a == b) | (np.isnan(a) & np.isnan(b)), 0, np.abs(a - b))
    difference = np.where(np.isnan(difference), np.inf, difference)
    largest = np.max(np.abs(b), where=np.isfinite(b), initial=np.finfo(np.float32).tiny)
    few = int(FEW * difference.size)
    most = np.partition(difference, difference.size - few - 1)[: difference.size - few] if few else difference
    of_all, of_most = (float(np.linalg.norm(each)) for each in (difference, most))
    return of_all, of_most, float(np.max(difference, initial=0) / largest)


def _most(values: np.ndarray) -> float:
    return float(np.max(values, initial=0))
