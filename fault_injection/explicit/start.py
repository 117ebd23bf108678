"""How a training starts from what several workers have loaded: each its own, worker 0's for all, or a share of each.

One rule serves all strategies.  Of each element some loader's value counts.  A device contributes the bits of the
elements that its loaders own, and zeros for all others; the sum of these integers over the devices is the state.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding

from ..machine.errors import InputError
from ..seam.leaves import State
from ..seam.strategies import StartRule, Strategy
from ..seam.trees import leaf_names
from .mesh import AXIS, SPLIT, WHOLE, part_named

Load = Callable[[int], State]


def owned(rule: StartRule, loader: int, loaders: int, size: int, stage: int = 0) -> slice:
    """Which elements of an array, counted row by row, are those of a loader.

    Args:
      rule: any but `OWN`, where each worker's copy is its own.
      size: of the array.
      stage: to which the array belongs.

    >>> [owned(StartRule.SHARE, r, 4, 10) for r in range(4)]
    [slice(0, 3, None), slice(3, 6, None), slice(6, 9, None), slice(9, 10, None)]
    >>> owned(StartRule.FIRST, 0, 4, 10), owned(StartRule.FIRST, 1, 4, 10)
    (slice(0, 10, None), slice(0, 0, None))
    """
    if rule is StartRule.SHARE:
        share = -(-size // loaders)
        return slice(min(loader * share, size), min((loader + 1) * share, size))
    return slice(0, size if loader == (stage if rule is StartRule.STAGE else 0) else 0)


def starting(
    mesh: Mesh, strategy: Strategy, abstract: State, specs: Any, workers: int, stages: Mapping[str, int]
) -> Callable[[Load], State]:
    """A function that makes the state on the devices from what loaders give.

    Args:
      abstract: shapes and dtypes of one copy of the state.
      specs: what each device has of each array of the state.
      workers: each has a copy, where the strategy says so.
      stages: by the name of a leaf, to which stage it belongs; none where there are no stages.

    Returns:
      A function of `load`, which gives the state that loader r has read, on the host; it is called for those
      loaders alone that are on devices of this process.  It raises InputError where a state has another shape.
    """
    count, loaders = mesh.devices.size, strategy.loaders(workers)
    copies = workers if strategy.copies else 0
    paths, structure = jax.tree_util.tree_flatten_with_path(abstract)
    names, leaves = leaf_names(abstract), [leaf for _, leaf in paths]
    rules = [strategy.at_start(part_named(path)) for path, _ in paths]
    shardings = jax.tree.map(lambda spec: NamedSharding(mesh, spec), specs)

    def joined(rows: list[jax.Array]) -> list[jax.Array]:
        """What this device has of each leaf, of its copies [W,…], or of the words [1,…] of every device."""
        return [
            row if rule is StartRule.OWN else _copied(_value(lax.psum(row[0], AXIS), leaf.dtype), copies // count)
            for row, rule, leaf in zip(rows, rules, leaves, strict=True)
        ]

    on_devices = jax.shard_map(joined, mesh=mesh, in_specs=SPLIT, out_specs=SPLIT if copies else WHOLE, check_vma=False)
    make = jax.jit(lambda rows: jax.tree.unflatten(structure, on_devices(rows)), out_shardings=shardings)

    def start(load: Load) -> State:
        here = [i for i, device in enumerate(mesh.devices.flat) if device.process_index == jax.process_index()]
        # Loaders are on devices as workers are: as many on each, in order; a single one is on the first.
        on = {device: [r for r in range(loaders) if r * count // loaders == device] for device in here}
        read = {r: _checked(load(r), r, names, leaves, structure) for mine in on.values() for r in mine}

        def row(number: int, device: int) -> np.ndarray:
            rule, leaf = rules[number], leaves[number]
            if rule is StartRule.OWN:
                return np.stack([read[r][number] for r in on[device]])
            words = np.zeros(leaf.size, np.uint32)
            for r in on[device]:
                mine = owned(rule, r, loaders, leaf.size, stages.get(names[number], 0))
                words[mine] = _words(read[r][number])[mine]
            return words.reshape(1, *leaf.shape)

        def rows(number: int) -> jax.Array:
            own = workers if rules[number] is StartRule.OWN else count
            shape, sharding = (own, *leaves[number].shape), NamedSharding(mesh, SPLIT)

            def of_device(index: tuple[slice, ...] | None) -> np.ndarray:
                first = index[0].start if index else None
                return row(number, (first or 0) * count // own)

            return jax.make_array_from_callback(shape, sharding, of_device)

        return make([rows(number) for number in range(len(leaves))])

    return start


def stages_of(names: Iterable[str], stages: Sequence[Collection[str]]) -> dict[str, int]:
    """Which stage each leaf of a state belongs to: the first that has its layer; stage 0 where it is no layer's.

    Args:
      names: of the leaves, such as `opt_state/m/fc/kernel`.
      stages: names of the layers of each.

    >>> stages_of(["params/fc/bias", "opt_state/m/fc/bias", "opt_state/iterations"], [["conv1"], ["fc"]])
    {'params/fc/bias': 1, 'opt_state/m/fc/bias': 1, 'opt_state/iterations': 0}
    """
    of_layer = {layer: k for k, layers in reversed([*enumerate(stages)]) for layer in layers}
    return {name: next((of_layer[part] for part in name.split("/") if part in of_layer), 0) for name in names}


def _checked(state: State, loader: int, names: list[str], leaves: list[Any], structure: Any) -> list[np.ndarray]:
    """The arrays of a loader's state; raises InputError where it is not one of this program."""
    if jax.tree.structure(state) != structure:
        raise InputError(f"loader {loader} has read a state of another structure; expected {len(names)} arrays")
    arrays = [np.asarray(leaf) for leaf in jax.tree.leaves(state)]
    for name, array, leaf in zip(names, arrays, leaves, strict=True):
        if (array.shape, array.dtype) != (leaf.shape, leaf.dtype):
            found = f"loader {loader} has read {name} as {array.dtype}{list(array.shape)}"
            raise InputError(f"{found}; expected {leaf.dtype}{list(leaf.shape)}")
    return arrays


def _words(array: np.ndarray) -> np.ndarray:
    """The bits of an array's elements, uint32 [n]: as integers they add up without being rounded."""
    flat = np.ascontiguousarray(array).reshape(-1)
    return flat.view(f"uint{8 * flat.dtype.itemsize}").astype(np.uint32)


def _value(words: jax.Array, dtype: Any) -> jax.Array:
    """The elements that have these bits."""
    if jnp.issubdtype(dtype, jnp.bool_):
        return words != 0
    return lax.bitcast_convert_type(words.astype(f"uint{8 * np.dtype(dtype).itemsize}"), dtype)


def _copied(leaf: jax.Array, copies: int) -> jax.Array:
    return jnp.broadcast_to(leaf, (copies, *leaf.shape)) if copies else leaf
