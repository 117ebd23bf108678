"""Reductions of whole trees inside a step: a digest of every bit, and the largest absolute values."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ..models.isolation import isolated

COPIED = 1 << 16  # elements up to which leaves of one size are copied together to be looked at
ODD = 0x9E3779B1  # 2³² / golden ratio


def digest(tree: Any) -> jax.Array:
    """One integer per leaf: Σ bits(element) · odd hash(position), modulo 2³².

    Integer sums do not depend on the order of summation, hence not on sharding.  An odd
    factor is invertible, so a leaf that differs in one element never has the same digest.
    Two states that differ in several elements of one leaf agree by chance once in 2³².

    >>> digest({"a": jnp.float32([1, 2]), "b": jnp.int32(3)}) == digest({"a": jnp.float32([2, 1]), "b": jnp.int32(3)})
    Array([False,  True], dtype=bool)

    Args:
      tree: arrays of any dtype.

    Returns:
      uint32 [leaves], in the order of `jax.tree.leaves`.
    """
    return _of_each(_digests, jax.tree.leaves(tree))


@jax.jit
@isolated("true")
def _digests(leaves: jax.Array) -> jax.Array:
    words = _words(leaves)
    position = lax.iota(jnp.uint32, words.shape[1])
    return _reduce(words * ((position * jnp.uint32(ODD)) | jnp.uint32(1)), jnp.sum)


def magnitude(tree: Any) -> jax.Array:
    """Largest absolute value of each leaf as float32; 0 for integers.

    The values are compared by their bits, so that no NaN is lost to a comparison.

    >>> magnitude([jnp.float32([1, -3]), jnp.float32([jnp.nan, 2]), jnp.int32(7)])
    Array([ 3., nan,  0.], dtype=float32)
    """
    tops = _of_each(_magnitudes, jax.tree.leaves(tree))
    return lax.bitcast_convert_type(tops, jnp.float32)


@jax.jit
@isolated("true")
def _magnitudes(leaves: jax.Array) -> jax.Array:
    if not jnp.issubdtype(leaves.dtype, jnp.floating):
        return jnp.zeros(leaves.shape[0], jnp.uint32)
    return _reduce(_words(leaves.astype(jnp.float32)) & jnp.uint32(0x7FFFFFFF), jnp.max)


def _of_each(function: Callable[[jax.Array], jax.Array], leaves: list[jax.Array]) -> jax.Array:
    """`function` of each leaf [n].  It takes several of one size at once, [m,size], and gives [m].

    Small leaves are copied together by their size: a network has thousands of them and few
    sizes, and each call is a piece of program to be compiled and loaded.
    """
    groups: dict[tuple[Any, ...], list[int]] = {}
    for i, leaf in enumerate(leaves):
        alone = i if leaf.size > COPIED else None
        groups.setdefault((leaf.dtype, leaf.size, alone), []).append(i)
    found = []
    for members in groups.values():
        together = jnp.concatenate([leaves[i].reshape(1, -1) for i in members])
        with isolated("false"):
            found.append(function(together))
    order = np.argsort([i for members in groups.values() for i in members])
    return jnp.concatenate(found)[order]


def _reduce(words: jax.Array, reduce: Callable[..., jax.Array]) -> jax.Array:
    """Sum (modulo 2³²) or maximum of unsigned integers [m,n] over n.

    XLA rewrites a reduction over more than 32 elements of an axis into windows, which on a
    CPU is several times slower than reading a row of 32×32.
    """
    while words.shape[1] > 32:
        words = jnp.pad(words, ((0, 0), (0, -words.shape[1] % 1024))).reshape(len(words), -1, 32, 32)
        words = reduce(words, (2, 3))
    return reduce(words, 1).astype(jnp.uint32)


def _words(leaves: jax.Array) -> jax.Array:
    """The bits of leaves [m,n] as uint32: one word per element, two where it has 64 bits."""
    if leaves.dtype == bool:
        return leaves.astype(jnp.uint32)
    width = leaves.dtype.itemsize * 8
    if width >= 32:
        return lax.bitcast_convert_type(leaves, jnp.uint32).reshape(len(leaves), -1)
    return lax.bitcast_convert_type(leaves, jnp.dtype(f"uint{width}")).astype(jnp.uint32)
