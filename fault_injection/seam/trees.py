"""Trees of arrays, on devices and on the host: names, shapes, bits."""

from typing import Any

import jax
import numpy as np
from jax.experimental.multihost_utils import process_allgather

from .leaves import State

Array = jax.Array | np.ndarray  # on a device, or fetched from it


def leaf_names(tree: Any) -> list[str]:
    """Names of a tree's leaves by their paths.

    >>> leaf_names({"params": {"fc": {"bias": 0, "kernel": 1}}})
    ['params/fc/bias', 'params/fc/kernel']
    """
    paths = jax.tree_util.tree_flatten_with_path(tree)[0]
    return [jax.tree_util.keystr(path, simple=True, separator="/") for path, _ in paths]


def abstract(tree: Any) -> Any:
    """Shapes and dtypes of a tree of arrays."""
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(np.shape(leaf), np.result_type(leaf)), tree)


def fetched(tree: Any) -> Any:
    """Arrays on the host, whole: also those of which several processes hold a piece each, which all have to ask for.

    >>> fetched({"a": jax.numpy.arange(2)})
    {'a': array([0, 1], dtype=int32)}
    """
    if jax.process_count() == 1:
        return jax.device_get(tree)

    def whole(leaf: Any) -> Any:
        here = not isinstance(leaf, jax.Array) or leaf.is_fully_addressable or leaf.is_fully_replicated
        return leaf if here else process_allgather(leaf, tiled=True)

    return jax.device_get(jax.tree.map(whole, tree))


def same_bits(one: State, other: State) -> bool:
    """Whether two states are equal bit by bit; as numbers, −0 would equal 0, and NaN nothing.

    Of several processes all have to ask.

    >>> same_bits([np.float32(0.0)], [np.float32(-0.0)])
    False
    """
    pairs = zip(*map(jax.tree.leaves, fetched((one, other))), strict=True)
    return all(np.asarray(a).tobytes() == np.asarray(b).tobytes() for a, b in pairs)
