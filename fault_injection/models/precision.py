"""The number formats of a step: what is narrower than float32, and where it is rounded.

Parameters, running statistics and the optimizer's state are float32 throughout.  An operation reads
and gives numbers of the format, and sums in float32.  Norms, softmax, activations and the loss are
computed in float32 and rounded once; sums of two activations are rounded as they are.
"""

import jax
import jax.numpy as jnp
from jax import lax

from .isolation import on_cpus
from .largest import largest, largest_along

MAXIMA = "maxima"  # name of the statistic that holds each operand's largest values
# Bits of the mantissa that multipliers of a narrower type than float32 read; exponents have 8 bits in all of them.
MANTISSA = {"tensorfloat32": 10, "bfloat16": 7}
HISTORY = 16  # steps whose largest value gives the scale of an operand of 8 bits


def wide(tensor: jax.Array) -> jax.Array:
    """A tensor in float32, if it has a narrower floating-point type; else as it is.

    >>> wide(jnp.ones(2, jnp.bfloat16)).dtype, wide(jnp.ones(2, jnp.int8)).dtype
    (dtype('float32'), dtype('int8'))
    """
    if not jnp.issubdtype(tensor.dtype, jnp.floating) or tensor.dtype.itemsize >= 4:
        return tensor
    return tensor.astype(jnp.float32)


def natively(a: jax.Array, b: jax.Array, held: str | None) -> bool:
    """Whether the device itself multiplies operands of 16 bits, sums in float32, and rounds the result to `held`."""
    # XLA for CPUs sums in float32 in some places only.  Operands of float32 are rounded here, whatever the device.
    return held is not None and a.dtype == b.dtype == held and a.dtype.itemsize == 2 and not on_cpus()


def as_multiplied(a: jax.Array, b: jax.Array, held: str | None) -> tuple[jax.Array, jax.Array]:
    """The operands of a product as multipliers read them, in float32 at least.

    They are rounded to the matrix precision of JAX's configuration.  Devices without multipliers of
    that width thus compute the same products; those that have them find nothing left to round.  An
    operation with an operand of integers is a lookup: it multiplies nothing, and nothing is rounded.

    >>> with jax.default_matmul_precision("bfloat16"):
    ...     as_multiplied(jnp.float32(1.001), jnp.float32(3.14), None)[1].item()
    3.140625
    """
    if natively(a, b, held):
        return wide(a), wide(b)
    a, b = wide(a), wide(b)
    digits = MANTISSA.get(jax.config.jax_default_matmul_precision)  # type: ignore[attr-defined]
    if digits is not None and jnp.issubdtype(a.dtype, jnp.floating):
        a, b = (lax.reduce_precision(t, 8, digits) for t in (a, b))
    return a, b


def largest_values(a: jax.Array, b: jax.Array) -> jax.Array:
    """float32 [2], the largest absolute value of each; NaN where one is in it."""
    return jnp.stack([largest(tensor) for tensor in (a, b)])


def scale(history: jax.Array, formats: tuple[str, str]) -> jax.Array:
    """float32 [2]: what each operand is divided by, so that the largest value of the last steps just fits.

    Args:
      history: float32 [2, steps], the largest absolute value of each operand in the last steps; one
        that is not finite is passed over.
      formats: of the operands.

    >>> scale(jnp.array([[448.0, 896.0], [jnp.nan, 0.0]]), ("float8_e4m3fn", "float8_e5m2")).tolist()
    [2.0, 1.0]
    """
    top = largest_along(jnp.where(jnp.isfinite(history), history, 0), axis=1)
    return jnp.where(top > 0, top / jnp.array([float(jnp.finfo(name).max) for name in formats], top.dtype), 1)


def narrowed(tensor: jax.Array, by: jax.Array, name: str) -> jax.Array:
    """A tensor divided by its scale and rounded to a format; what lies beyond its largest number becomes that.

    >>> narrowed(jnp.array([3.14, 1e9, -1e9]), jnp.float32(1), "float8_e4m3fn").tolist()
    [3.25, 448.0, -448.0]
    """
    most = float(jnp.finfo(name).max)
    scaled = wide(tensor) / by
    return jnp.where(jnp.isnan(scaled), scaled, jnp.clip(scaled, -most, most)).astype(name)


def remembered(history: jax.Array, now: jax.Array) -> jax.Array:
    """The history [2, steps] with the largest values of another step [2]; the oldest are forgotten."""
    return jnp.concatenate([now[:, None], history[:, :-1]], axis=1)
