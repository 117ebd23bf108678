"""Pickled batches, read without executing anything that a pickle might contain.

A pickle is a program: it may name any function and call it.  Here every name stands for a
`Recorded`, which does nothing but keep the arguments of the call.  Only the few names that
occur in pickles of NumPy arrays and of Python 2's strings are allowed.

>>> found = read_pickle(pickle.dumps({"labels": [3], "data": np.zeros((1, 3072), np.uint8)}))
>>> found[b"labels"], as_pixels(found[b"data"]).shape
([3], (1, 3072))
"""

import io
import math
import pickle
from typing import Any

import numpy as np

ARRAY = {"numpy.core.multiarray._reconstruct", "numpy._core.multiarray._reconstruct"}
BUFFER = {"numpy.core.numeric._frombuffer", "numpy._core.numeric._frombuffer"}  # from protocol 5 on
KNOWN = ARRAY | BUFFER | {"numpy.ndarray", "numpy.dtype", "_codecs.encode"}


class Recorded:
    """What a name in a pickle stands for: a call and a state are recorded, and nothing is executed."""

    def __init__(self, name: str, arguments: tuple[Any, ...] = ()) -> None:
        self.name = name
        self.arguments = arguments
        self.state: Any = None

    def __call__(self, *arguments: Any) -> "Recorded":
        return Recorded(self.name, arguments)

    def __setstate__(self, state: Any) -> None:
        self.state = state


class _PlainUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Recorded:
        if f"{module}.{name}" not in KNOWN:
            raise pickle.UnpicklingError(f"it names {module}.{name}, which no batch of images needs; nothing was run")
        return Recorded(f"{module}.{name}")


def read_pickle(content: bytes) -> dict[bytes, Any]:
    """Read the dictionary in a pickle; arrays and encoded strings in it are `Recorded`.

    Raises:
      ValueError: the pickle is damaged, holds something other than a dictionary, or names
        something that belongs to no array.
    """
    try:
        value = _PlainUnpickler(io.BytesIO(content), encoding="bytes").load()
    except Exception as error:  # damage can surface anywhere in the reader
        raise ValueError(f"the pickle cannot be read: {error or type(error).__name__}") from None
    if not isinstance(value, dict):
        raise ValueError(f"the pickle holds a {type(value).__name__}, expected a dictionary")
    return {as_bytes(key): item for key, item in value.items()}


def as_bytes(value: Any) -> bytes:
    """A string of a pickle as bytes, whichever protocol wrote it; raises ValueError."""
    if isinstance(value, Recorded) and value.name == "_codecs.encode" and value.arguments[1:] in (("latin1",), ()):
        value = value.arguments[0]
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
