"""What each leaf of a user's state is to the training: found by Optax's names, and by what the sites read."""

import fnmatch
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import optax.tree_utils as otu

from ..machine.errors import InputError, did_you_mean
from ..seam.leaves import OTHERS, SUMS, Leaf, Role

# Fields of Optax's states that are gradient history.  (A leaf `m` or `v` of a user's may be anything.)
MOMENTS = ("mu", "nu", *SUMS, *OTHERS)
GIVEN = (Role.PARAMETER, Role.STATISTIC, Role.VARIANCE, Role.HISTORY, Role.OTHER)  # that a user can say


def state_leaves(
    names: Sequence[str], arrays: Sequence[Any], state: Any, parameters: set[str], given: Mapping[str, str]
) -> tuple[Leaf, ...]:
    """Names and roles of a state's leaves.

    Args:
      names: of the leaves, by their paths.
      arrays: the leaves.
      state: the user's own tree, in which Optax's states are recognised.
      parameters: names of leaves that a site reads as its parameter.
      given: the user's word, which goes before: patterns of names, with `parameters`, `statistics`,
        `running_variance`, `history:MOMENT` or `other`.

    Raises:
      InputError: a pattern fits no leaf, or a role is unknown.

    >>> import optax
    >>> params = {"w": jnp.ones(2), "b": jnp.ones(())}
    >>> state = {"params": params, "opt": optax.adam(1e-3).init(params)}
    >>> paths, arrays = zip(*jax.tree_util.tree_flatten_with_path(state)[0])
    >>> names = [jax.tree_util.keystr(path, simple=True, separator="/") for path in paths]
    >>> [(leaf.name, leaf.role.value) for leaf in state_leaves(names, arrays, state, {"params/w"}, {})][:3]
    [('opt/0/count', 'other'), ('opt/0/mu/b', 'history'), ('opt/0/mu/w', 'history')]
    """
    said = _said(names, given)
    moments = {id(leaf): moment for moment in MOMENTS for leaf in _history(state, moment)}
    tops = {name.partition("/")[0] for name in parameters if "/" in name}
    flat = any("/" not in name for name in parameters)

    def found(name: str, array: Any) -> Leaf:
        parts = [part for part in name.split("/") if part not in ("value", "raw_value")]
        below = next((i for i, part in enumerate(parts) if part.startswith("opt")), len(parts))
        moment = moments.get(id(array)) or next((part for part in parts[below:] if part in MOMENTS), "")
        if not jnp.issubdtype(jnp.result_type(array), jnp.inexact):
            return Leaf(name)
        if moment:
            return Leaf(name, Role.HISTORY, moment)
        if "batch_stats" in parts or (parts[-1] in ("mean", "var") and name not in parameters):
            return Leaf(name, Role.VARIANCE if parts[-1] == "var" else Role.STATISTIC)
        if name in parameters or (below == len(parts) and parts[0] in tops) or (flat and jnp.ndim(array)):
            return Leaf(name, Role.PARAMETER)
        return Leaf(name)

    return tuple(said.get(name) or found(name, array) for name, array in zip(names, arrays, strict=True))


def _history(state: Any, moment: str) -> list[Any]:
    """The leaves of all fields of this name of the named tuples in a state."""

    def of_tuple(path: Any, value: Any) -> bool:
        return bool(path) and isinstance(path[-1], otu.NamedTupleKey)

    return [leaf for _, tree in otu.tree_get_all_with_path(state, moment, of_tuple) for leaf in jax.tree.leaves(tree)]


def _said(names: Sequence[str], given: Mapping[str, str]) -> dict[str, Leaf]:
    found: dict[str, Leaf] = {}
    for pattern, text in given.items():
        role, _, moment = text.partition(":")
        if role not in GIVEN:
            raise InputError(f"roles: {text!r} for {pattern!r}{did_you_mean(role, [each.value for each in GIVEN])}")
        fitting = fnmatch.filter(names, pattern)
        if not fitting:
            raise InputError(f"roles: no leaf of the state fits {pattern!r}{did_you_mean(pattern, names)}")
        found |= {name: Leaf(name, Role(role), moment) for name in fitting}
    return found
