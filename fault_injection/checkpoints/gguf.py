"""GGUF, the files of llama.cpp: a header that says where each tensor lies, then the tensors.  It carries no checksum.

The header is read here, and no byte of it is trusted: a count or a length beyond the file is damage.

Source: the format's description, docs/gguf.md of https://github.com/ggml-org/ggml; versions 2 and 3.
"""

import math
import os
import pathlib
from typing import BinaryIO

import ml_dtypes
import numpy as np

from .checkpoint import Raw, reading
from .in_place import BYTES, InPlace, Region

MAGIC, VERSIONS, METADATA = b"GGUF", (2, 3), "GGUF metadata"
SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}  # bytes of a value, by its type
UINT32, STRING, ARRAY = 4, 8, 9
ALIGNMENT = 32  # bytes, where `general.alignment` says nothing
DIMENSIONS = 8  # more are damage
TYPES = {
    0: np.dtype("<f4"),
    1: np.dtype("<f2"),
    28: np.dtype("<f8"),
    30: np.dtype(ml_dtypes.bfloat16),
    24: np.dtype("i1"),
    25: np.dtype("<i2"),
    26: np.dtype("<i4"),
    27: np.dtype("<i8"),
}
# Types whose elements are packed into blocks with scales.
PACKED = {
    2: "Q4_0",
    3: "Q4_1",
    6: "Q5_0",
    7: "Q5_1",
    8: "Q8_0",
    9: "Q8_1",
    10: "Q2_K",
    11: "Q3_K",
    12: "Q4_K",
    13: "Q5_K",
    14: "Q6_K",
    15: "Q8_K",
    16: "IQ2_XXS",
    17: "IQ2_XS",
    18: "IQ3_XXS",
    19: "IQ1_S",
    20: "IQ4_NL",
    21: "IQ3_S",
    22: "IQ2_S",
    23: "IQ4_XS",
    29: "IQ1_M",
    34: "TQ1_0",
    35: "TQ2_0",
    39: "MXFP4",
}


class Gguf(InPlace):
    """A file of GGUF."""

    format = "GGUF"


class _GgufHeader:
    """The header's values, one after the other."""

    def __init__(self, file: BinaryIO) -> None:
        self.file, self.size = file, os.fstat(file.fileno()).st_size
        self.big = False

    def take(self, count: int) -> bytes:
        self._require(count)
        return self.file.read(count)

    def over(self, count: int) -> None:
        """Pass so many bytes; none of them is read."""
        self._require(count)
        self.file.seek(count, os.SEEK_CUR)

    def _require(self, count: int) -> None:
        if self.file.tell() + count > self.size:
            raise ValueError("the file ends within its header")

    def whole(self, width: int = 8) -> int:
        return int.from_bytes(self.take(width), "big" if self.big else "little")

    def text(self) -> str:
        return self.take(self.whole()).decode()

    def skip(self, kind: int) -> None:
        """Pass a value of some type."""
        if kind == STRING:
            self.over(self.whole())
        elif kind == ARRAY:
            kind, count = self.whole(4), self.whole()
            if kind in SIZES:
                self.over(count * SIZES[kind])
            else:
                for _ in range(min(count, self.size)):  # each takes a byte at least, so a larger count is damage
                    self.skip(kind)
        elif kind in SIZES:
            self.over(SIZES[kind])
        else:
            raise ValueError(f"a value of its header has the type {kind}")


def open_gguf(path: pathlib.Path) -> Gguf:
    """Open a file of GGUF; the header alone is read.

    Raises:
      InputError: its header is not sound, or tensors overlap or lie beyond the file.
    """
    with reading(path, Gguf.format), path.open("rb") as file:
        header = _GgufHeader(file)
        header.take(len(MAGIC))
        version = header.whole(4)
        if not version & 0xFFFF:  # which no version is
            header.big, version = True, int.from_bytes(version.to_bytes(4, "little"), "big")
        if version not in VERSIONS:
            raise ValueError(f"version {version}, expected one of {VERSIONS}")
        tensors, values, alignment = header.whole(), header.whole(), ALIGNMENT
        for _ in range(min(values, header.size)):
            key, kind = header.text(), header.whole(4)
            if (key, kind) == ("general.alignment", UINT32):
                alignment = header.whole(4)
            else:
                header.skip(kind)
        found = [_tensor(header) for _ in range(min(tensors, header.size))]
        if not alignment or alignment & (alignment - 1):
            raise ValueError(f"an alignment of {alignment} bytes")
        end = file.tell()
        begin = -(-end // alignment) * alignment
        return _opened(path, found, end, begin, header)


def _tensor(header: _GgufHeader) -> tuple[int, str, tuple[int, ...], int]:
    """Offset behind the header, name, shape in row-major order and type of a tensor."""
    name, count = header.text(), header.whole(4)
    if count > DIMENSIONS:
        raise ValueError(f"{name[:60]} has {count} dimensions")
    shape = tuple(header.whole() for _ in range(count))[::-1]
    kind = header.whole(4)
    return header.whole(), name, shape, kind


def _opened(
    path: pathlib.Path, tensors: list[tuple[int, str, tuple[int, ...], int]], end: int, begin: int, header: _GgufHeader
) -> Gguf:
    """The checkpoint: tensors of numbers as arrays; blocks, which end where the next tensor begins, as they are."""
    regions, raw = {METADATA: Region(0, (end,), BYTES)}, {METADATA: Raw(f"{end:,} bytes")}
    places = sorted(tensors)
    for (offset, name, shape, kind), after in zip(places, [*(one[0] for one in places[1:]), None], strict=True):
        room = (header.size if after is None else begin + after) - (begin + offset)
        if (dtype := TYPES.get(kind)) is not None:
            region = Region(begin + offset, shape, dtype.newbyteorder(">") if header.big else dtype)
        else:
            region = Region(begin + offset, (max(room, 0),), BYTES)
            raw[name] = Raw(f"{PACKED.get(kind, f'GGML type {kind}')} {list(shape)}", math.prod(shape))
        if name in regions:
            raise ValueError(f"{name[:60]} stands in it twice")
        if region.end - region.offset > room:
            raise ValueError(f"{name[:60]} reaches beyond the file, or into the next tensor")
        regions[name] = region
    of_file = [name for _, name, _, _ in tensors]  # in the order in which the header names them
    return Gguf(path, {name: regions[name] for name in (METADATA, *of_file)}, raw)
