"""The largest absolute value: the one function for it, because XLA's own maximum loses NaN.

On CPUs, `max` and `min` over float32 or float64 arrays of 4,096 elements or more, and `min` over 16 bits, pass over a
NaN (openxla/xla issue 21461).  Without its sign, a number is the larger, the larger its bits are as an unsigned
integer; infinity is larger than any number, and NaN is larger still.  So bits are compared.
"""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
from jax import lax

from .overwrite import bits


def largest(tensor: jax.Array) -> jax.Array:
    """The largest absolute value, NaN where one is in the tensor, 0 of none: float32, or float64 of such.

    Args:
      tensor: of floating-point numbers of any kind, or complex ones, whose two parts count each by itself.

    >>> largest(jnp.ones(300_000).at[7].set(-jnp.nan)), largest(jnp.ones((2, 0)))
    (Array(nan, dtype=float32), Array(0., dtype=float32))
    """
    return largest_of_rows(tensor.reshape(1, -1))[0]


def largest_of_rows(tensor: jax.Array) -> jax.Array:
    """The largest absolute value of each row [m,n], as `largest` has it: [m].

    >>> largest_of_rows(jnp.ones((2, 5000)).at[1, 7].set(-jnp.nan)).tolist()
    [1.0, nan]
    """
    words = magnitude_words(tensor)
    return lax.bitcast_convert_type(reduced_rows(words, jnp.max), _float_of(words))


def by_bits(maximum: Callable[..., jax.Array], *magnitudes: jax.Array) -> jax.Array:
    """A maximum of absolute values of float32 or float64, by their bits.

    >>> by_bits(jnp.maximum, jnp.float32(1), jnp.float32(jnp.nan))
    Array(nan, dtype=float32)
    """
    return lax.bitcast_convert_type(maximum(*map(bits, magnitudes)), magnitudes[0].dtype)


def largest_along(magnitudes: jax.Array, axis: int = 0) -> jax.Array:
    """The largest of absolute values along one axis.

    >>> largest_along(jnp.ones((2, 4096)).at[1, 7].set(jnp.nan))[7].item()
    nan
    """
    return by_bits(partial(jnp.max, axis=axis), magnitudes)


def largest_across(magnitudes: jax.Array, axis: str | tuple[str, ...]) -> jax.Array:
    """The largest of absolute values, element by element, of the devices of mesh axes."""
    return by_bits(partial(lax.pmax, axis_name=axis), magnitudes)


def magnitude_words(tensor: jax.Array) -> jax.Array:
    """The absolute values as the bits of float32, or of float64: what is narrower is widened, which is exact.

    >>> [hex(word) for word in magnitude_words(jnp.array([-1.0, 0.5], "bfloat16")).tolist()]
    ['0x3f800000', '0x3f000000']
    """
    if jnp.issubdtype(tensor.dtype, jnp.complexfloating):
        tensor = jnp.stack([tensor.real, tensor.imag], -1).reshape(*tensor.shape[:-1], -1)
    if tensor.dtype.itemsize < 4:
        tensor = tensor.astype(jnp.float32)
    words = bits(tensor)
    return words & words.dtype.type((1 << 8 * words.dtype.itemsize - 1) - 1)


def reduced_rows(words: jax.Array, reduce: Callable[..., jax.Array]) -> jax.Array:
    """Sum (modulo 2ⁿ) or maximum of unsigned integers [m,n] over n; 0 of none.

    XLA rewrites a reduction over more than 32 elements of an axis into windows, which on a
    CPU is several times slower than reading a row of 32×32.

    >>> reduced_rows(jnp.uint32([[3, 1], [2, 5]]), jnp.max)
    Array([3, 5], dtype=uint32)
    """
    kind = words.dtype  # which JAX widens as it adds up
    if not words.shape[1]:
        return jnp.zeros(words.shape[0], kind)
    while words.shape[1] > 32:
        words = jnp.pad(words, ((0, 0), (0, -words.shape[1] % 1024))).reshape(len(words), -1, 32, 32)
        words = reduce(words, (2, 3)).astype(kind)
    return reduce(words, 1).astype(kind)


def _float_of(words: jax.Array) -> jnp.dtype:
    return jnp.dtype(f"float{8 * words.dtype.itemsize}")
