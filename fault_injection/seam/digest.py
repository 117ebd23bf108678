"""Reductions of whole trees inside a step: a digest of every bit, and the largest absolute values."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ..models.isolation import isolated
from ..models.largest import magnitude_words, reduced_rows
from ..models.overwrite import bits

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
    return reduced_rows(words * ((position * jnp.uint32(ODD)) | jnp.uint32(1)), jnp.sum)


def magnitude(tree: Any) -> jax.Array:
    """Largest absolute value of each leaf as float32; 0 for integers, and where there is no element.

    Of complex numbers the two parts count each by itself.  A float64 beyond float32 counts as the largest float32.  The
    values are compared by their bits, so that no NaN is lost to a comparison.

    >>> magnitude([jnp.float32([1, -3]), jnp.complex64([1 + 2j, jnp.nan]), jnp.int32(7), jnp.zeros(0)])
    Array([ 3., nan,  0.,  0.], dtype=float32)
    """
    tops = _of_each(_magnitudes, jax.tree.leaves(tree))
    return lax.bitcast_convert_type(tops, jnp.float32)


@jax.jit
@isolated("true")
def _magnitudes(leaves: jax.Array) -> jax.Array:
    if not jnp.issubdtype(leaves.dtype, jnp.inexact):
        return jnp.zeros(leaves.shape[0], jnp.uint32)
    tops = reduced_rows(magnitude_words(leaves), jnp.max)
    if tops.dtype == jnp.uint32:
        return tops
    wide = lax.bitcast_convert_type(tops, jnp.float64)
    most = jnp.finfo(jnp.float32).max.astype(wide.dtype)
    return lax.bitcast_convert_type(
        jnp.where(jnp.isfinite(wide), jnp.minimum(wide, most), wide).astype(jnp.float32), jnp.uint32
    )


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


def _words(leaves: jax.Array) -> jax.Array:
    """The bits of leaves [m,n] as uint32: one word per element, two where it has 64 bits, four where 128."""
    if jnp.issubdtype(leaves.dtype, jnp.complexfloating):
        return jnp.concatenate([_words(leaves.real), _words(leaves.imag)], 1)
    if leaves.dtype.itemsize >= 4:
        return lax.bitcast_convert_type(leaves, jnp.uint32).reshape(len(leaves), -1)
    return bits(leaves).astype(jnp.uint32)
