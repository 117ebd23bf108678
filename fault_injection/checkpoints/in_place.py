"""Checkpoints in one file, in which every array is a run of bytes: elements are read and replaced where they lie."""

import contextlib
import itertools
import operator
import os
import pathlib
import shutil
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import IO, BinaryIO, NamedTuple

import numpy as np

from ..machine.files import write_atomically
from .checkpoint import PIECE, Altered, Changes, Checkpoint, Described, Raw

BYTES = np.dtype(np.uint8)


class Region(NamedTuple):
    """Where an array lies in a file.

    Attributes:
      offset: of its first byte.
      shape: of the array.
      dtype: of its elements, with the byte order of the file.
      strides: how many elements lie between neighbours along each axis; None where the last axis runs fastest and
        there is nothing between.
      in_a_byte: elements in one byte, the first of them in its lowest bits.
    """

    offset: int
    shape: tuple[int, ...]
    dtype: np.dtype
    strides: tuple[int, ...] | None = None
    in_a_byte: int = 1

    @property
    def described(self) -> Described:
        """The array."""
        return Described(self.shape, self.dtype.newbyteorder("="))

    @property
    def word(self) -> np.dtype:
        """The type of its words in the file."""
        return np.dtype(f"{'>' if self.dtype.byteorder == '>' else '<'}u{self.dtype.itemsize}")

    @property
    def span(self) -> int:
        """How many elements lie from its first to its last one."""
        if self.strides is None or not self.described.size:
            return self.described.size
        return 1 + sum((n - 1) * stride for n, stride in zip(self.shape, self.strides, strict=True))

    @property
    def end(self) -> int:
        """Behind its last byte."""
        return self.offset + -(-self.span // self.in_a_byte) * self.dtype.itemsize

    def places(self, index: np.ndarray) -> np.ndarray:
        """int64 [n]: the positions in the file, in elements, of row-major positions."""
        if self.strides is None or not self.shape:
            return index
        found = np.zeros(len(index), np.int64)
        for axis, stride in zip(np.unravel_index(index, self.shape), self.strides, strict=True):
            found += axis * stride
        return found


def by_columns(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The strides of an array of which the first axis runs fastest, as in Fortran.

    >>> by_columns((2, 3, 4))
    (1, 2, 6)
    """
    return tuple(itertools.accumulate(shape[:-1], operator.mul, initial=1))


class InPlace(Checkpoint):
    """A checkpoint in one file.

    Attributes:
      regions: where its arrays are, and what is compared of `raw`.
    """

    def __init__(
        self, path: pathlib.Path, regions: Mapping[str, Region], raw: Mapping[str, Raw] = MappingProxyType({})
    ) -> None:
        self.path, self.regions, self.raw = path, regions, raw
        self.arrays = {name: region.described for name, region in regions.items() if name not in raw}

    def words(self, name: str, index: np.ndarray) -> np.ndarray:
        region = self.regions[name]
        if not len(index):
            return np.empty(0, region.described.word)
        # Only the pages touched are read.
        places, count = region.places(index), -(-region.span // region.in_a_byte)
        mapped = np.memmap(self.path, region.word, "r", region.offset, (count,))
        found = np.asarray(mapped[places // region.in_a_byte]).astype(region.described.word)
        if region.in_a_byte == 1:
            return found
        width = region.described.width
        return found >> (places % region.in_a_byte * width).astype(found.dtype) & found.dtype.type((1 << width) - 1)

    def pieces(self, name: str) -> Iterator[np.ndarray]:
        region = self.regions[name]
        if region.strides is None and region.in_a_byte == 1:
            yield from self.stored(name)
            return
        step, size = PIECE // 8, region.described.size  # places are of 8 bytes
        for start in range(0, size, step):
            yield self.words(name, np.arange(start, min(start + step, size)))

    def stored(self, name: str) -> Iterator[np.ndarray]:
        """As `pieces`, in the order of the file."""
        region = self.regions[name]
        step, size = PIECE // region.dtype.itemsize, region.described.size
        with self.opened(name) as file:
            for start in range(0, size, step):
                content = file.read(min(step, size - start) * region.dtype.itemsize)
                yield np.frombuffer(content, region.word).astype(region.described.word)

    def content(self, name: str) -> Iterator[bytes]:
        region = self.regions[name]
        left = region.end - region.offset
        with self.opened(name) as file:
            while left and (piece := file.read(min(left, PIECE))):
                left -= len(piece)
                yield piece

    @contextlib.contextmanager
    def opened(self, name: str) -> Iterator[IO[bytes]]:
        """A file to read an array from, at its first byte."""
        with self.path.open("rb") as file:
            file.seek(self.regions[name].offset)
            yield file

    def write(self, out: pathlib.Path, changes: Changes) -> None:
        write_atomically(out, lambda file: self.fill(file, changes))

    def fill(self, file: BinaryIO, changes: Changes) -> None:
        """Write the altered copy into an open, empty file."""
        copy_into(self.path, file)
        for name, change in changes.items():
            self.replace(file, name, change)

    def replace(self, file: BinaryIO, name: str, change: Altered) -> None:
        """Replace elements of an array in a copy of this file."""
        region = self.regions[name]
        places = region.places(change.places)
        width = region.dtype.itemsize
        if region.in_a_byte > 1:
            self._replace_packed(file, region, places, change.after)
            return
        content = change.after.astype(region.word).tobytes()
        for k, place in enumerate(places.tolist()):
            file.seek(region.offset + place * width)
            file.write(content[k * width : (k + 1) * width])

    @staticmethod
    def _replace_packed(file: BinaryIO, region: Region, places: np.ndarray, words: np.ndarray) -> None:
        """Replace elements that share their bytes with neighbours."""
        width = region.described.width
        for place, word in zip(places.tolist(), words.tolist(), strict=True):
            shift = place % region.in_a_byte * width
            file.seek(region.offset + place // region.in_a_byte)
            kept = file.read(1)[0] & ~((1 << width) - 1 << shift)
            file.seek(-1, os.SEEK_CUR)
            file.write(bytes([kept | word << shift]))


def copy_into(path: pathlib.Path, file: BinaryIO) -> None:
    """Copy a file into an open, empty one, by the system where it can."""
    with path.open("rb") as source:
        if hasattr(os, "copy_file_range"):
            with contextlib.suppress(OSError):  # between two file systems, perhaps; what was copied is written again
                while os.copy_file_range(source.fileno(), file.fileno(), 1 << 30):
                    pass
                return
        source.seek(0)
        file.seek(0)
        shutil.copyfileobj(source, file, PIECE)
