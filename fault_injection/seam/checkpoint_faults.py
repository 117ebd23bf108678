"""Faults in a checkpoint: what some of those load that a run restarts from differs from what was saved.

What becomes of it is decided by the strategy: a worker's own copy may be overwritten by that of worker 0, or
only a share of what was loaded may count (docs/strategies.md).
"""

import functools
import math
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import jax
import ml_dtypes
import numpy as np

from ..models.bits import host_words, of_host_words, rewritten
from ..models.fault import LARGEST_OPERAND, Fault, Operand, Struck, site_id
from ..models.site import Site, TensorSpec
from .leaves import Role, State
from .program import Program
from .stages import CHECKPOINT
from .state_faults import Placed, cannot_be_struck, located_in_leaves, placed_leaves
from .state_spec import StateSpec
from .trees import fetched

PARTS = {
    "model": (Role.PARAMETER, Role.STATISTIC, Role.VARIANCE),
    "optimizer": (Role.HISTORY,),
    "state": (Role.PARAMETER, Role.STATISTIC, Role.VARIANCE, Role.HISTORY),
}
# Number formats in which checkpoints are saved; those that are narrower than the state's own are offered beside it.
FORMATS = (np.dtype(np.float32), np.dtype(ml_dtypes.bfloat16), np.dtype(np.float16))


class _Target(NamedTuple):
    """What a fault strikes.

    Attributes:
      leaves: whose elements it counts through, one after the other.
      dtype: in which an element is saved.
      loaders: how many load the altered checkpoint: the fault's worker, and those after it.
    """

    leaves: list[Placed]
    dtype: np.dtype
    loaders: int


def checkpoint_sites(state: StateSpec) -> dict[str, Site]:
    """What a fault can strike of a checkpoint, by name; the one operand is `Operand.INPUT`.

    A name says the part of the state, the format in which it is saved, and how many of those that load a
    checkpoint load the altered one: `checkpoint/model/float32/4`.
    """
    return {
        name: Site(
            name,
            f"{target.loaders} of {state.loaders}",
            CHECKPOINT,
            {Operand.INPUT: TensorSpec((sum(leaf.size for leaf in target.leaves),), target.dtype)},
        )
        for name, target in _targets(state).items()
    }


def saved_leaves(state: StateSpec, part: str = "state") -> list[Placed]:
    """The leaves of a part of a checkpoint, in the order in which a fault counts through their elements."""
    return [leaf for leaf in placed_leaves(state) if leaf.leaf.role in PARTS[part] and not cannot_be_struck(leaf)]


def elements_of(state: StateSpec, site: str, index: np.ndarray) -> list[tuple[str, int]]:
    """Which elements a fault strikes of a checkpoint: of each the array's name and the row-major position in it."""
    leaves = _targets(state)[site].leaves
    return [(leaves[k].leaf.name, int(at)) for k, at in zip(*located_in_leaves(leaves, index), strict=True)]


def restarted(program: Program, state: State, fault: Fault) -> tuple[State, Struck] | None:
    """The state from which a run goes on that was saved, altered and loaded; None where something else is struck.

    Where an element is saved in a narrower format, it alone is rounded to it.  So a run without a fault is the
    golden one.  Several processes call this together.
    """
    target = _by_id(program.state).get(int(fault.site))
    if target is None:
        return None
    saved, first = fetched(state), max(int(fault.worker), 0)
    struck = {(first + k) % program.state.loaders for k in range(target.loaders)}

    def load(r: int) -> State:
        own = program.state.single(saved, r)
        return _altered(own, target, fault)[0] if r in struck else own

    # What the fault does is told of the first that loads it: in `local` the others' elements may have been others.
    return program.start(load), _altered(program.state.single(saved, first), target, fault)[1]


@functools.lru_cache(maxsize=8)  # every step that is struck asks for it
def _targets(state: StateSpec) -> Mapping[str, _Target]:
    found = {}
    for part in PARTS:
        leaves = saved_leaves(state, part)
        dtypes = {leaf.dtype for leaf in leaves}
        if len(dtypes) != 1 or sum(leaf.size for leaf in leaves) > LARGEST_OPERAND:
            continue
        (own,) = dtypes
        for dtype in (own, *(each for each in FORMATS if each.itemsize < own.itemsize)):
            for loaders in _counts(state.loaders):
                found[f"{CHECKPOINT}/{part}/{dtype.name}/{loaders}"] = _Target(leaves, dtype, loaders)
    return found


@functools.lru_cache(maxsize=8)
def _by_id(state: StateSpec) -> Mapping[int, _Target]:
    return {site_id(name): target for name, target in _targets(state).items()}


def _counts(loaders: int) -> Iterable[int]:
    """Powers of two, and all."""
    return sorted({2**k for k in range(math.floor(math.log2(loaders)) + 1)} | {loaders})


def _altered(state: State, target: _Target, fault: Fault) -> tuple[State, Struck]:
    """One copy of a state with the fault in it, on the host, and what the fault did."""
    leaves, tree = jax.tree.flatten(state)
    listed = fault.index >= 0

    def places(index: np.ndarray) -> list[tuple[int, int]]:
        return [
            (target.leaves[k].number, at)
            for k, at in zip(*located_in_leaves(target.leaves, index[listed]), strict=True)
        ]

    def words(index: np.ndarray) -> np.ndarray:
        each = [np.asarray(leaves[number]).reshape(-1)[at] for number, at in places(index)]
        return np.array([_word(element, target.dtype) for element in each], fault.keep.dtype)

    old, new = (np.zeros(len(listed), fault.keep.dtype) for _ in range(2))
    old[listed] = words(fault.index)
    new[listed] = rewritten(words(fault.source), fault.keep[listed], fault.flip[listed])
    for number in {number for number, _ in places(fault.index)}:
        leaves[number] = np.array(leaves[number])
    for (number, at), word in zip(places(fault.index), new[listed], strict=True):
        leaves[number].reshape(-1)[at] = _number(word, target.dtype, leaves[number].dtype)
    differ = np.int32(np.sum(old != new))
    return jax.tree.unflatten(tree, leaves), Struck(np.int32(1), old, new, differ, differ, None)


def _word(element: Any, dtype: np.dtype) -> int:
    """The bits of an element as it is saved."""
    with np.errstate(over="ignore", under="ignore"):
        return int(host_words(element.astype(dtype))[()])


def _number(word: np.unsignedinteger, dtype: np.dtype, wide: np.dtype) -> Any:
    """The element that is loaded of these bits."""
    return of_host_words(np.asarray(word), dtype).astype(wide)
