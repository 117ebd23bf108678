"""What each leaf of a user's state is to the training: by what sites read, names, shapes, and what the step does."""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence, Set
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax.tree_utils as otu

from ..machine.errors import InputError, did_you_mean
from ..machine.reading import matches
from ..seam.leaves import SUMS, Leaf, Role

# Fields of Optax's states whose meaning is known.  (A leaf `m` or `v` of a user's may be any moment.)
MOMENTS = ("mu", "nu", *SUMS)
GIVEN = (Role.PARAMETER, Role.STATISTIC, Role.VARIANCE, Role.HISTORY, Role.OTHER)  # that a user can say
Shapes = Mapping[str, tuple[int, ...]]  # of arrays by their names
Flow = Mapping[str, Set[str]]  # names of the leaves from which the new value of each leaf is computed, at most


def state_leaves(
    names: Sequence[str],
    arrays: Sequence[Any],
    state: Any,
    parameters: set[str],
    given: Mapping[str, str],
    flows: Sequence[Flow] = (),
) -> tuple[Leaf, ...]:
    """Names and roles of a state's leaves.

    What is kept for parameters is history, whatever it is called: see `kept_for`.  For which one, `owner` says.

    Args:
      names: of the leaves, by their paths.
      arrays: the leaves.
      state: the user's own tree, in which Optax's moments are recognised.
      parameters: names of leaves that a site reads as its parameter.
      given: the user's word, which goes before: patterns of names, with `parameters`, `statistics`,
        `running_variance`, `history:MOMENT` or `other`.
      flows: of the step: what is computed element by element from what, and then also by products.

    Raises:
      InputError: a pattern fits no leaf, or a role is unknown.

    >>> import optax
    >>> params = {"w": jnp.ones(2), "b": jnp.ones(())}
    >>> state = {"params": params, "ema": params, "opt": optax.adam(1e-3).init(params)}
    >>> paths, arrays = zip(*jax.tree_util.tree_flatten_with_path(state)[0])
    >>> names = [jax.tree_util.keystr(path, simple=True, separator="/") for path in paths]
    >>> leaves = state_leaves(names, arrays, state, {"params/w"}, {})
    >>> [(leaf.name, leaf.role.value, leaf.moment) for leaf in leaves][1:5]
    [('ema/w', 'history', 'ema/*'), ('opt/0/count', 'other', ''), ('opt/0/mu/b', 'history', 'mu'), \
('opt/0/mu/w', 'history', 'mu')]
    """
    moments = {id(leaf): moment for moment in MOMENTS for leaf in _history(state, moment)}
    tops = {name.partition("/")[0] for name in parameters if "/" in name}
    flat = any("/" not in name for name in parameters)

    def found(name: str, array: Any) -> Leaf:
        parts = _parts(name)
        below = next((i for i, part in enumerate(parts) if part.startswith("opt")), len(parts))
        moment = moments.get(id(array)) or next((part for part in parts[below:] if part in MOMENTS), "")
        if not jnp.issubdtype(jnp.result_type(array), jnp.inexact):
            return Leaf(name)
        if moment:
            return Leaf(name, Role.HISTORY, moment)
        if "batch_stats" in parts or (parts[-1] in ("mean", "var") and name not in parameters):
            return Leaf(name, Role.VARIANCE if parts[-1] == "var" else Role.STATISTIC)
        in_parameters = parts[0] in tops or (flat and "/" not in name and np.ndim(array) > 0)
        if name in parameters or (below == len(parts) and in_parameters):
            return Leaf(name, Role.PARAMETER)
        return Leaf(name)

    leaves = {name: found(name, array) for name, array in zip(names, arrays, strict=True)} | _said(names, given)
    inexact = {
        name: np.shape(array)
        for name, array in zip(names, arrays, strict=True)
        if jnp.issubdtype(jnp.result_type(array), jnp.inexact)
    }
    owners = _owners(leaves, inexact, parameters, flows)
    for name, leaf in leaves.items():
        parameter, subtree = owners.get(name, ("", ""))
        if leaf.role == Role.HISTORY:
            leaves[name] = leaf._replace(parameter=parameter)
        elif leaf.role == Role.OTHER and name in inexact and not matches(name, given):
            if subtree:
                leaves[name] = Leaf(name, Role.HISTORY, f"{subtree}/*", parameter)
            elif flat and inexact[name]:
                leaves[name] = Leaf(name, Role.PARAMETER)
    return tuple(leaves[name] for name in names)


def owner(candidates: Collection[str], joined: Set[str], read: Set[str]) -> str:
    """The parameter that a leaf is kept for; empty where that cannot be told.

    The one of the candidates that the step joins with the leaf, and of several the one that a site reads: of fast and
    slow weights the fast ones.

    >>> owner(["q1/w", "q2/w"], {"q2/w", "q2/b"}, set())
    'q2/w'
    >>> owner(["q1/w", "q2/w"], set(), {"q1/w", "q2/w"})
    ''
    """
    found = [name for name in candidates or joined if name in joined or not joined]
    if len(found) > 1:
        found = [name for name in found if name in read]
    return found[0] if len(found) == 1 else ""


def _owners(
    leaves: Mapping[str, Leaf], inexact: Shapes, read: Set[str], flows: Sequence[Flow]
) -> dict[str, tuple[str, str]]:
    """Of leaves that are kept for a parameter: which one, as far as that can be told, and the part of the state.

    Where flows are known, names and shapes alone make nothing history: statistics may have the shapes of parameters.
    """
    known = [name for name, leaf in leaves.items() if leaf.role == Role.PARAMETER]
    shapes = {name: inexact[name] for name in known if name in inexact}
    kept = kept_for(shapes, inexact, {name: leaf.moment for name, leaf in leaves.items()})
    by_flow, found = [_joined(flow, shapes) for flow in flows], {}
    for name, leaf in leaves.items():
        candidates = kept.get(name, {})
        joined = next((each[name] for each in by_flow if each.get(name)), frozenset())
        certain = not by_flow or name in by_flow[0] or len(joined) == 1
        if leaf.role == Role.HISTORY or (certain and candidates.keys() & (joined or candidates.keys())):
            parameter = owner(candidates, joined, read)
            found[name] = parameter, candidates.get(parameter) or next(iter(candidates.values()), "")
    return found


def _joined(flow: Flow, parameters: Shapes) -> dict[str, Set[str]]:
    """By leaf, the parameters that the step moves by it; where there are none, those that its new value is made of."""
    out: dict[str, set[str]] = defaultdict(set)
    for parameter in parameters:
        for name in flow.get(parameter, ()):
            out[name].add(parameter)
    found = {name: out.get(name) or given & parameters.keys() for name, given in flow.items()}
    return {name: joined for name, joined in found.items() if joined}


def kept_for(parameters: Shapes, leaves: Shapes, moments: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """Of arrays that are kept for parameters: for which ones they may be, and the part of the state that they lie in.

    Moments, accumulators and averages are trees like that of the parameters.  So an array is kept for a parameter if
    its path ends as the parameter's, but for what all of these begin with; it may have another shape, such as a row's,
    but is no single number.  Or it belongs to a part of the state whose arrays have the shapes of all parameters in
    their order, or of those in one folder.  Folders of the same shapes make it several.

    Args:
      moments: of leaves, as far as they are known: one part of the state is one moment of the parameters.

    >>> params = {"params/a": (3,), "params/b": (3, 2)}
    >>> kept_for(params, {**params, "opt/m/0": (3,), "opt/m/1": (3, 2), "ema/b": (3, 2), "scale": ()}, {})
    {'opt/m/0': {'params/a': 'opt/m'}, 'opt/m/1': {'params/b': 'opt/m'}, 'ema/b': {'params/b': 'ema'}}
    """
    found = _kept_by_shape(parameters, leaves, moments) | _kept_by_path(parameters, leaves)
    return {name: found[name] for name in leaves if name in found}


def _kept_by_path(parameters: Shapes, leaves: Shapes) -> dict[str, dict[str, str]]:
    own = {name: _parts(name) for name in parameters}
    in_place = zip(*(parts[:-1] for parts in own.values()), strict=False)
    begin = (*(len(set(parts)) == 1 for parts in in_place), False).index(False)  # of what is not the same in all
    ends = {parts[begin:]: name for name, parts in own.items()}
    found = {}
    for name in leaves.keys() - own.keys():
        parts = _parts(name)
        parameter = next((ends[parts[i:]] for i in range(len(parts)) if parts[i:] in ends), None)
        if parameter is not None and (leaves[name] or not parameters[parameter]):
            alike = [a == b for a, b in zip(reversed(parts), reversed(own[parameter]), strict=False)]
            shared = (*alike, False).index(False)
            found[name] = {parameter: "/".join(parts[: len(parts) - shared])}
    return found


def _kept_by_shape(parameters: Shapes, leaves: Shapes, moments: Mapping[str, str]) -> dict[str, dict[str, str]]:
    in_order = defaultdict(list, {tuple(parameters.values()): [list(parameters)]})
    for names in _folders({name: _parts(name) for name in parameters}).values():
        if 1 < len(names) < len(parameters):
            in_order[tuple(parameters[name] for name in names)].append(names)
    found: dict[str, dict[str, str]] = {}
    folders = _folders({name: (*_parts(name), "") for name in leaves})
    for kept, folder in {tuple(names): folder for folder, names in folders.items()}.items():  # the lowest of the same
        several = len({moments.get(name, "") for name in kept}) > 1
        if several or parameters.keys() & set(kept) or not any(leaves[name] for name in kept):
            continue
        theirs = in_order.get(tuple(leaves[name] for name in kept), [])
        for place, name in enumerate(kept):
            if theirs and name not in found:  # in a part of the state around this one
                found[name] = {each[place]: folder for each in theirs}
    return found


def _folders(paths: Mapping[str, tuple[str, ...]]) -> dict[str, list[str]]:
    """The names in each folder of a tree and in those below it, the uppermost folder first."""
    found: dict[str, list[str]] = {}
    for depth in range(1, max(map(len, paths.values()), default=0)):
        for name, parts in paths.items():
            if len(parts) > depth:
                found.setdefault("/".join(parts[:depth]), []).append(name)
    return found


def _parts(name: str) -> tuple[str, ...]:
    """A name's parts, without those by which a variable of Flax NNX holds its array."""
    return tuple(part for part in name.split("/") if part not in ("value", "raw_value")) or (name,)


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
        fitting = [name for name in names if matches(name, [pattern])]
        if not fitting:
            raise InputError(f"roles: no leaf of the state fits {pattern!r}{did_you_mean(pattern, names)}")
        found |= {name: Leaf(name, Role(role), moment) for name in fitting}
    return found
