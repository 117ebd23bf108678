"""Pickled batches, read without executing anything that a pickle might contain.

A pickle is a program: it may name any function and call it.  Here every name stands for an
inert `Recorded`, which keeps what it would have been called with, and only the few names
that NumPy's arrays and Python 2's strings are written with are understood.
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
    """What a name in a pickle stands for: being called or given a state is recorded, nothing more."""

    def __init__(self, name: str, arguments: tuple = ()):
        self.name = name
        self.arguments = arguments
        self.state: Any = None

    def __call__(self, *arguments):
        return Recorded(self.name, arguments)

    def __setstate__(self, state):
        self.state = state


class _Reader(pickle.Unpickler):
    def find_class(self, module, name):
        if f"{module}.{name}" not in KNOWN:
            raise pickle.UnpicklingError(f"it names {module}.{name}, which no batch of images needs; nothing was run")
        return Recorded(f"{module}.{name}")


def read_pickle(content: bytes) -> dict[bytes, Any]:
    """The dictionary in a pickle; arrays and encoded strings in it are `Recorded`.

    Raises:
      ValueError: it is damaged, is no dictionary, or names something else than an array.
    """
    try:
        value = _Reader(io.BytesIO(content), encoding="bytes").load()
    except Exception as error:  # damage can surface anywhere in the reader
        raise ValueError(f"not readable as a pickle: {error or type(error).__name__}") from None
    if not isinstance(value, dict):
        raise ValueError(f"a pickled {type(value).__name__}, expected a dictionary")
    return {as_bytes(key): item for key, item in value.items()}


def as_bytes(value: Any) -> bytes:
    """A string as bytes, however the pickle's protocol spells it; raises ValueError."""
    if isinstance(value, Recorded) and value.name == "_codecs.encode" and value.arguments[1:] in (("latin1",), ()):
        value = value.arguments[0]
    if isinstance(value, str):
        return value.encode("latin1")
    if isinstance(value, bytes | bytearray):
        return bytes(value)
    raise ValueError(f"a {type(value).__name__} where a string was expected")


def as_pixels(value: Any) -> np.ndarray:
    """The uint8 array that a pickle would have made; raises ValueError."""
    match value:
        case Recorded(name=name, state=(_, shape, dtype, by_column, raw)) if name in ARRAY:
            pass  # made empty, then given its content as a state
        case Recorded(name=name, arguments=(raw, dtype, shape, order)) if name in BUFFER:
            by_column = order == "F"
        case _:
            raise ValueError(f"not an array but a {getattr(value, 'name', type(value).__name__)}")
    match dtype:
        case Recorded(name="numpy.dtype", arguments=(kind, *_)) if as_bytes(kind) == b"u1":
            pass
        case _:
            raise ValueError("an array of another type than uint8")
    raw = as_bytes(raw)
    if not (isinstance(shape, tuple) and all(type(size) is int for size in shape) and math.prod(shape) == len(raw)):
        raise ValueError(f"an array of shape {shape} with {len(raw):,} bytes")
    return np.frombuffer(raw, np.uint8).reshape(shape, order="F" if by_column else "C")
