"""Initial values, drawn on the host: no compilation, the same numbers on every device."""

import math
import zlib

import jax
import numpy as np

from ..arrays import Key, Shape

DEVIATION_CUT_AT_2 = 0.87962566103423978  # of a standard normal truncated to [-2, 2]


def glorot_normal(key: Key, name: str, shape: Shape) -> np.ndarray | jax.ShapeDtypeStruct:
    """Kernel [..., I, O] from a normal truncated at two deviations, of variance 2/(fan_in + fan_out).

    Args:
      key: integers, such as the seed; `name` completes the address of the draw.  None draws
        nothing and gives the shape alone.

    Reference: Glorot and Bengio, AISTATS 2010; Keras `GlorotNormal`.

    >>> kernel = glorot_normal((0,), "fc", (300, 100))
    >>> kernel.dtype, round(float(kernel.std() ** 2 * (300 + 100)), 1)
    (dtype('float32'), 2.0)
    """
    return _truncated_normal(key, name, shape, 2 / (math.prod(shape[:-2]) * (shape[-2] + shape[-1])))


def fan_in_normal(key: Key, name: str, shape: Shape) -> np.ndarray | jax.ShapeDtypeStruct:
    """As `glorot_normal`, of variance 1/fan_in.

    Reference: LeCun et al., 1998; Keras `VarianceScaling` with scale 1 and mode `fan_in`.

    >>> kernel = fan_in_normal((0,), "fc", (300, 100))
    >>> round(float(kernel.std() ** 2 * 300), 1)
    1.0
    """
    return _truncated_normal(key, name, shape, 1 / math.prod(shape[:-1]))


def small_normal(key: Key, name: str, shape: Shape) -> np.ndarray | jax.ShapeDtypeStruct:
    """As `glorot_normal`, of deviation 0.02: for tables, whose rows are read and not summed.

    Reference: Radford et al., Language Models are Unsupervised Multitask Learners, 2019 (its code).

    >>> round(float(small_normal((0,), "embed_tokens", (300, 100)).std()), 3)
    0.02
    """
    return _truncated_normal(key, name, shape, 0.02**2)


def uniform_by_rows(key: Key, name: str, shape: Shape) -> np.ndarray | jax.ShapeDtypeStruct:
    """Table [V,C], uniform between ±√(1/V): the fewer rows, the more often each is read, and the larger it is.

    Reference: Naumov et al., arXiv 1906.00091 (its code).

    >>> table = uniform_by_rows((0,), "emb_0", (100, 16))
    >>> table.dtype, round(float(np.abs(table).max()), 2)
    (dtype('float32'), 0.1)
    """
    if key is None:
        return jax.ShapeDtypeStruct(shape, np.float32)
    table = np.random.default_rng([*key, zlib.crc32(name.encode())]).random(shape, np.float32)
    table -= np.float32(0.5)  # in place: a table may be large
    table *= np.float32(2 / math.sqrt(shape[0]))
    return table


def _truncated_normal(key: Key, name: str, shape: Shape, variance: float) -> np.ndarray | jax.ShapeDtypeStruct:
    if key is None:
        return jax.ShapeDtypeStruct(shape, np.float32)
    random = np.random.default_rng([*key, zlib.crc32(name.encode())])
    draw = random.standard_normal(shape, np.float32)
    while (outside := np.abs(draw) > 2).any():
        draw[outside] = random.standard_normal(outside.sum(), np.float32)
    return (draw * (np.sqrt(variance) / DEVIATION_CUT_AT_2)).astype(np.float32)


def filled(value: float, size: int) -> np.ndarray:
    """Vector [size] float32 of one value.

    >>> filled(1, 3)
    array([1., 1., 1.], dtype=float32)
    """
    return np.full(size, value, np.float32)
