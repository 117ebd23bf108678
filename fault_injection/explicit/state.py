"""The state of an explicit network's training, and the names and roles of its leaves."""

from typing import Any

import jax
import optax
from flax import struct

from ..models.arrays import Stats
from ..models.precision import MAXIMA, remembered
from ..seam.leaves import Leaf, Role
from ..seam.trees import leaf_names
from . import sparse
from .optimizers import history

Leaves = dict[str, dict[str, Any]]  # by layer and name: arrays, or their shapes and dtypes


@struct.dataclass
class ExplicitState:
    """What a step reads and writes: parameters, running statistics, optimizer state; what is kept of sparse tables."""

    params: Leaves
    stats: Leaves
    opt_state: optax.OptState
    tables: sparse.Tables = struct.field(default_factory=dict)


def named_leaves(state: ExplicitState) -> tuple[Leaf, ...]:
    """Names and roles of the state's leaves."""
    names = leaf_names(state)
    named = jax.tree.unflatten(jax.tree.structure(state), names)
    of_history = {
        name: Leaf(name, Role.HISTORY, moment, parameter)
        for moment, tree in history(named.opt_state, named.params).items()
        for name, parameter in zip(jax.tree.leaves(tree), jax.tree.leaves(named.params), strict=True)
    }

    def role(name: str) -> Role:
        if name.startswith("tables/"):
            return Role.KEPT
        if name.startswith("stats/"):
            return Role.VARIANCE if name.endswith("/var") else Role.STATISTIC
        return Role.PARAMETER if name.startswith("params/") else Role.OTHER

    return tuple(of_history.get(name) or Leaf(name, role(name)) for name in names)


def with_maxima(stats: Stats, now: dict[str, jax.Array]) -> Stats:
    """The statistic of largest values with those of this step; none where no format needs scales."""
    return {MAXIMA: {site: remembered(stats[MAXIMA][site], each) for site, each in now.items()}} if now else {}
