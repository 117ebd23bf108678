"""How one tensor differs from another: numbers that a step makes of both, so that neither leaves its device."""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from ..isolation import isolated
from ..largest import largest
from ..overwrite import bits


class TensorDifference(NamedTuple):
    """What differs between a tensor of the golden run and the same tensor of a faulty one.

    Largest and root-mean-square values count the elements that are finite in both; of integers and truth values, which
    have no magnitude here, they are 0.  They are float32.

    Attributes:
      differs: uint32, elements whose bits differ.  Two NaN of the same bits do not; 0 and −0 do.
      nonfinite, golden_nonfinite: uint32, elements that are not finite.
      largest, rms: of the differences, both halved: a difference of two finite numbers may overflow.
      golden_largest, golden_rms: of the golden tensor.
    """

    differs: jax.Array
    nonfinite: jax.Array
    golden_nonfinite: jax.Array
    largest: jax.Array
    rms: jax.Array
    golden_largest: jax.Array
    golden_rms: jax.Array


@jax.jit
def differences(golden: list[jax.Array], faulty: list[jax.Array]) -> tuple[jax.Array, jax.Array]:
    """How each of some tensors differs: uint32 [n,3] and float32 [n,4], the fields of `TensorDifference`.

    >>> one, other = jnp.float32([1, -3, jnp.nan]), jnp.float32([1, 1, jnp.nan])
    >>> counts, magnitudes = differences([one], [other])
    >>> counts.tolist(), [round(x, 3) for x in magnitudes[0].tolist()]
    ([[1, 1, 1]], [2.0, 1.414, 3.0, 2.236])

    Args:
      golden, faulty: tensors of any dtype, in pairs of one shape.
    """
    found = []
    for one, other in zip(golden, faulty, strict=True):
        with isolated("false"):  # tensors of one shape share one piece of program
            found.append(difference(one, other))
    return jnp.array([each[:3] for each in found]), jnp.array([each[3:] for each in found])


@jax.jit
def difference(golden: jax.Array, faulty: jax.Array) -> TensorDifference:
    """How one tensor differs from another of its shape and dtype, see `TensorDifference`."""
    zero, none = jnp.uint32(0), jnp.float32(0)
    if not math.prod(golden.shape):
        return TensorDifference(zero, zero, zero, none, none, none, none)
    if jnp.issubdtype(golden.dtype, jax.dtypes.prng_key):
        golden, faulty = jax.random.key_data(golden), jax.random.key_data(faulty)
    apart = _bits(golden) != _bits(faulty)
    if jnp.issubdtype(golden.dtype, jnp.complexfloating):
        apart = jnp.any(apart.reshape(*golden.shape, -1), axis=-1)
    differs = jnp.sum(apart, dtype=jnp.uint32)
    if not jnp.issubdtype(golden.dtype, jnp.inexact):
        return TensorDifference(differs, zero, zero, none, none, none, none)
    a, b = _numbers(golden), _numbers(faulty)
    sound = jnp.isfinite(a) & jnp.isfinite(b)
    # Of what is not finite there is no magnitude, so no NaN can be lost; it is counted.
    halves = jnp.where(sound, a / 2 - b / 2, 0)
    top, rms = _magnitudes(halves, jnp.sum(sound))
    golden_top, golden_rms = _magnitudes(jnp.where(sound, a, 0), jnp.sum(sound))
    lost, golden_lost = (jnp.sum(~jnp.isfinite(each), dtype=jnp.uint32) for each in (faulty, golden))
    return TensorDifference(differs, lost, golden_lost, top, rms, golden_top, golden_rms)


def _magnitudes(tensor: jax.Array, count: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Largest and root-mean-square value of so many elements; squares are taken of shares, so that none overflows."""
    top = largest(tensor)
    shares = tensor / jnp.where(top > 0, top, 1)
    mean = jnp.sum(shares * shares) / jnp.where(count > 0, count, 1).astype(tensor.dtype)
    return top.astype(jnp.float32), (top * jnp.sqrt(mean)).astype(jnp.float32)


def _bits(tensor: jax.Array) -> jax.Array:
    """The bits of each element; of a complex one, of its two parts."""
    if jnp.issubdtype(tensor.dtype, jnp.complexfloating):
        return jnp.stack([bits(tensor.real), bits(tensor.imag)], -1)
    return bits(tensor)


def _numbers(tensor: jax.Array) -> jax.Array:
    """In float32 at least; complex numbers as pairs."""
    if jnp.issubdtype(tensor.dtype, jnp.complexfloating):
        tensor = jnp.stack([tensor.real, tensor.imag], -1)
    return tensor if tensor.dtype.itemsize >= 4 else lax.convert_element_type(tensor, jnp.float32)
