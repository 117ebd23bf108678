"""Initial values, drawn on the host: no compilation, the same numbers on every device."""

import zlib

import jax
import numpy as np

DEVIATION_CUT_AT_2 = 0.87962566103423978  # of a standard normal truncated to [-2, 2]


def glorot_normal(key: tuple[int, ...] | None, name: str, shape: tuple[int, ...]) -> np.ndarray | jax.ShapeDtypeStruct:
    """Kernel [..., I, O] from a normal truncated at two deviations, of variance 2/(fan_in + fan_out).

    Args:
      key: integers, such as the seed; `name` completes the address of the draw.  None draws
        nothing and gives the shape alone.

    Reference: Glorot and Bengio, AISTATS 2010; Keras `GlorotNormal`.
    """
    if key is None:
        return jax.ShapeDtypeStruct(shape, np.float32)
    random = np.random.default_rng([*key, zlib.crc32(name.encode())])
    draw = random.standard_normal(shape, np.float32)
    while (outside := np.abs(draw) > 2).any():
        draw[outside] = random.standard_normal(outside.sum(), np.float32)
    positions = np.prod(shape[:-2], dtype=int)
    deviation = np.sqrt(2 / (positions * (shape[-2] + shape[-1])))
    return (draw * (deviation / DEVIATION_CUT_AT_2)).astype(np.float32)


def filled(value: float, size: int) -> np.ndarray:
    """Vector [size] float32 of one value."""
    return np.full(size, value, np.float32)
