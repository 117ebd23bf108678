"""safetensors: a header in JSON that says where each array lies, then the arrays.  It carries no checksum."""

import json
import math
import pathlib
from typing import Any

import ml_dtypes
import numpy as np

from .checkpoint import Raw, reading
from .in_place import BYTES, InPlace, Region

LARGEST_HEADER = 100_000_000  # bytes, as the format's own library has it
TYPES = {
    **{f"F{8 * width}": np.dtype(f"<f{width}") for width in (2, 4, 8)},
    **{f"{kind}{8 * width}": np.dtype(f"<{kind.lower()}{width}") for kind in "IU" for width in (1, 2, 4, 8)},
    "BOOL": np.dtype(bool),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "F8_E4M3": np.dtype(ml_dtypes.float8_e4m3fn),
    "F8_E5M2": np.dtype(ml_dtypes.float8_e5m2),
    "F8_E8M0": np.dtype(ml_dtypes.float8_e8m0fnu),
}
# Two elements in a byte, the first of them in its lower half.
HALVES = {"F4": np.dtype(ml_dtypes.float4_e2m1fn)}


class Safetensors(InPlace):
    """A file of safetensors."""

    format = "safetensors"


def open_safetensors(path: pathlib.Path) -> Safetensors:
    """Open a file of safetensors; the header alone is read.

    Raises:
      InputError: its header is not sound, or the arrays do not fill the file, one after the other.
    """
    size = path.stat().st_size
    with reading(path, Safetensors.format), path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > min(size - 8, LARGEST_HEADER):
            raise ValueError(f"its header has {length:,} bytes, the file {size:,}")
        begin, entries = 8 + length, json.loads(file.read(length).decode(), object_pairs_hook=_distinct)
        entries.pop("__metadata__", None)
        found = {name: _region(entry, begin) for name, entry in entries.items()}
        at = begin
        for start, end, name in sorted((one.offset, one.end, name) for name, (one, _) in found.items()):
            if start != at:
                raise ValueError(f"{name} begins at byte {start - begin}, expected {at - begin}")
            at = end
        if at != size:
            raise ValueError(f"its arrays end at byte {at:,}, the file at {size:,}")
    raw = {name: left for name, (_, left) in found.items() if left is not None}
    return Safetensors(path, {name: region for name, (region, _) in found.items()}, raw)


def _region(entry: dict[str, Any], begin: int) -> tuple[Region, Raw | None]:
    """Where an array is, behind the header's end; and what it is, if NumPy does not know its type."""
    start, end = entry["data_offsets"]
    shape, kind = tuple(entry["shape"]), str(entry["dtype"])
    if not all(type(n) is int and n >= 0 for n in (*shape, start, end)) or start > end:
        raise ValueError(f"shape {list(shape)}, bytes {start} to {end}")
    size, elements = end - start, math.prod(shape)
    if (dtype := TYPES.get(kind)) is not None:
        if size != elements * dtype.itemsize:
            raise ValueError(f"{size} bytes for {kind} of shape {list(shape)}")
        return Region(begin + start, shape, dtype), None
    if (dtype := HALVES.get(kind)) is not None:
        if 2 * size != elements:
            raise ValueError(f"{size} bytes for {kind} of shape {list(shape)}")
        return Region(begin + start, shape, dtype, in_a_byte=2), None
    width = 8 * size // elements if elements and 8 * size % elements == 0 else 0
    text = f"{kind} {list(shape)}"
    return Region(begin + start, (size,), BYTES), Raw(text, elements, width) if width else Raw(f"{text}, {size} bytes")


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a name stands in it twice")
    return found
