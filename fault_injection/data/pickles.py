"""Pickled batches, read without executing anything that a pickle might contain.

`plain_pickle.py` takes a pickle apart.  Only the few names that occur in pickles of NumPy arrays and of Python 2's
strings are allowed.

>>> import pickle
>>> found = read_pickle(pickle.dumps({"labels": [3], "data": np.zeros((1, 3072), np.uint8)}))
>>> found[b"labels"], as_pixels(found[b"data"]).shape
([3], (1, 3072))
"""

import math
from typing import Any

import numpy as np

from .plain_pickle import Recorded, read_as_data

ARRAY = {"numpy.core.multiarray._reconstruct", "numpy._core.multiarray._reconstruct"}
BUFFER = {"numpy.core.numeric._frombuffer", "numpy._core.numeric._frombuffer"}  # from protocol 5 on
KNOWN = ARRAY | BUFFER | {"numpy.ndarray", "numpy.dtype", "_codecs.encode"}


def read_pickle(content: bytes) -> dict[bytes, Any]:
    """Read the dictionary in a pickle; arrays and encoded strings in it are `Recorded`.

    Raises:
      ValueError: the pickle is damaged, holds something other than a dictionary, or names
        something that belongs to no array.
    """
    value = read_as_data(content, KNOWN, "a batch of images")
    if not isinstance(value, dict):
        raise ValueError(f"the pickle holds a {type(value).__name__}, expected a dictionary")
    return {as_bytes(key): item for key, item in value.items()}


def as_bytes(value: Any) -> bytes:
    """A string of a pickle as bytes, whichever protocol wrote it; raises ValueError."""
    match value:
        case Recorded(name="_codecs.encode", arguments=(text,) | (text, "latin1")):
            value = text
    if isinstance(value, str):
        return value.encode("latin1")
    if isinstance(value, bytes | bytearray):
        return bytes(value)
    raise ValueError(f"the pickle holds a {type(value).__name__} where a string was expected")


def as_pixels(value: Any) -> np.ndarray:
    """The uint8 array that a pickle describes; raises ValueError where it describes something else."""
    match value:
        case Recorded(name=name, state=(_, shape, dtype, by_column, raw)) if name in ARRAY:
            pass  # the array is made empty, and gets its content as a state
        case Recorded(name=name, arguments=(raw, dtype, shape, order)) if name in BUFFER:
            by_column = order == "F"
        case _:
            raise ValueError(f"the pickle holds a {getattr(value, 'name', type(value).__name__)}, expected an array")
    match dtype:
        case Recorded(name="numpy.dtype", arguments=(kind, *_)) if as_bytes(kind) == b"u1":
            pass
        case _:
            raise ValueError("the pickle holds an array of another type than uint8")
    raw = as_bytes(raw)
    if not (isinstance(shape, tuple) and all(type(size) is int for size in shape) and math.prod(shape) == len(raw)):
        raise ValueError(f"the pickle holds {len(raw):,} bytes for an array of shape {shape}")
    return np.frombuffer(raw, np.uint8).reshape(shape, order="F" if by_column else "C")
