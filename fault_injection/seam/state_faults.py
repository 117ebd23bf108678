"""Faults in the state: what a step reads differs from what the step before has written."""

import dataclasses
import functools
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ..machine.errors import InputError
from ..models.bits import host_words, rewritten, unstruck
from ..models.fault import INACTIVE, LARGEST_OPERAND, Fault, Operand, Struck, nothing_struck, site_id
from ..models.overwrite import overwritten
from ..models.site import Site, TensorSpec
from .leaves import Leaf, Role, State, part_of
from .program import Program
from .stages import STATE
from .state_spec import StateSpec


def state_sites(state: StateSpec) -> dict[str, Site]:
    """What a fault can strike of a state, by name; the one operand is `Operand.INPUT`.

    These are the leaves, and the parts of the state, such as `params` and `opt_state/v`: a part is a vector of
    all elements of its leaves, in their order.

    Raises:
      ValueError: two names have the same id.
    """
    found = {}
    for name, leaves in _targets(state).items():
        of_part = leaves[0].leaf.name != name
        # One number has the position 0.
        shape = (sum(leaf.size for leaf in leaves),) if of_part else leaves[0].shape or (1,)
        operands = {Operand.INPUT: TensorSpec(shape, leaves[0].dtype)}
        found[name] = Site(name, "" if of_part else name, STATE, operands)
    if len({site_id(name) for name in found}) < len(found):
        raise ValueError("two leaves of the state have names with the same id")
    return found


def struck_state(program: Program, state: State, fault: Fault) -> tuple[State, Struck] | None:
    """The state with a fault in it, or in one worker's copy of it; None where the fault strikes something else.

    The state given keeps its buffers, so that the control can start from it.

    Raises:
      InputError: one worker's copy is to be struck, and there are several processes.
    """
    leaves_struck = _by_id(program.state).get(int(fault.site))
    if leaves_struck is None:
        return None
    leaves, tree = jax.tree.flatten(jax.tree.map(jnp.copy, state))
    if program.state.copies and jax.process_count() > 1:
        raise InputError("one worker's copy of the state can be struck in one process only")
    r = int(fault.worker) if program.state.copies else None
    own = leaves if r is None else [leaf[r] for leaf in leaves]
    struck = _strike(own, leaves_struck, fault)
    if r is not None:
        leaves = [leaf.at[r].set(one) for leaf, one in zip(leaves, own, strict=True)]
    return jax.tree.unflatten(tree, leaves), struck


class Placed(NamedTuple):
    """A leaf of a state: its number among the leaves, what it is, its shape and its dtype."""

    number: int
    leaf: Leaf
    shape: tuple[int, ...]
    dtype: np.dtype

    @property
    def size(self) -> int:
        return math.prod(self.shape)


def located_in_leaves(leaves: Sequence[Placed], index: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Of positions that count through all elements of leaves: in which leaf they are, and where in it, int64 both."""
    begins = np.cumsum([0, *(leaf.size for leaf in leaves)])
    which = np.searchsorted(begins, index, side="right") - 1
    return which, index - begins[which]


def placed_leaves(state: StateSpec) -> list[Placed]:
    """The leaves of a state, of one copy where each worker has one."""
    tensors = jax.tree.leaves(state.abstract)
    own = 1 if state.copies else 0  # the leading axis is that of the workers
    placed = zip(enumerate(state.leaves), tensors, strict=True)
    return [Placed(*each, tensor.shape[own:], tensor.dtype) for each, tensor in placed]


def cannot_be_struck(one: Placed) -> str:
    """Why a leaf is no target; empty where it is one."""
    return unstruck(one.dtype) if one.size else "has no element"


def left_out_of_targets(state: StateSpec) -> list[str]:
    """The leaves that no fault can strike, one text each."""
    return [f"{one.leaf.name} {why}" for one in placed_leaves(state) if (why := cannot_be_struck(one))]


@functools.lru_cache(maxsize=8)  # every step that is struck asks for it
def _targets(state: StateSpec) -> Mapping[str, list[Placed]]:
    """What a fault can strike of the state, by name, as the leaves that it consists of."""
    leaves = placed_leaves(state)
    leaves = [one for one in leaves if not cannot_be_struck(one)]
    found = {one.leaf.name: [one] for one in leaves if one.leaf.role != Role.KEPT}
    in_parts = [one for one in leaves if one.leaf.role not in (Role.KEPT, Role.OTHER)]
    for part, group in itertools.groupby(in_parts, key=lambda one: part_of(one.leaf.name)):
        of_part = list(group)
        alike = len({one.dtype for one in of_part}) == 1
        if part not in found and alike and sum(one.size for one in of_part) <= LARGEST_OPERAND:
            found[part] = of_part
    return found


@functools.lru_cache(maxsize=8)
def _by_id(state: StateSpec) -> Mapping[int, list[Placed]]:
    return {site_id(name): leaves for name, leaves in _targets(state).items()}


def _strike(leaves: list[jax.Array], struck: list[Placed], fault: Fault) -> Struck:
    """Strike leaves in place, of which a position of the fault counts through all elements."""
    (which, index), (of_source, source) = (located_in_leaves(struck, at) for at in (fault.index, fault.source))
    keep, flip = np.array(fault.keep), np.array(fault.flip)
    for k in np.flatnonzero((fault.index >= 0) & (which != of_source)):  # a copy from another leaf
        word = _word(leaves[struck[of_source[k]].number], source[k])
        keep[k], flip[k], source[k] = 0, rewritten(word, keep[k], flip[k]), index[k]
    told = nothing_struck(fault)
    for number in np.unique(which[fault.index >= 0]):
        here = (fault.index >= 0) & (which == number)
        local = dataclasses.replace(
            fault,
            index=np.where(here, index, INACTIVE).astype(np.int32),
            source=np.where(here, source, 0).astype(np.int32),
            keep=keep,
            flip=flip,
        )
        at = struck[number].number
        leaves[at], done = _overwritten(leaves[at], local)
        told = jax.tree.map(lambda one, other: one + np.asarray(other), told, done)
    return dataclasses.replace(told, hits=told.hits + np.int32(1))


def _word(leaf: jax.Array, at: int) -> Any:
    """The bits of an element."""
    return host_words(np.asarray(leaf.reshape(-1)[at]))[()]


@jax.jit
def _overwritten(leaf: Any, fault: Fault) -> tuple[jax.Array, Struck]:
    return overwritten(leaf, fault)
