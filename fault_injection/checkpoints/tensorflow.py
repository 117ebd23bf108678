"""TensorFlow's checkpoints: an index that says where each tensor lies, and files of data.  TensorFlow is not needed.

Elements are replaced where they lie.  The checksum of each altered tensor, and that of its block of the index, follow.
"""

import itertools
import math
import pathlib
import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import ml_dtypes
import numpy as np

from ..machine.errors import InputError
from ..machine.files import read_bounded
from .checkpoint import PIECE, Changes, Raw, is_number, reading
from .in_place import BYTES, InPlace, Region
from .sharded import LARGEST_INDEX, Sharded
from .tensor_table import Crc, TableEntry, crc32c, fields, masked, numbers, read_table, renew_block

FORMAT = "TensorFlow"
DATA = re.compile(r"(?P<prefix>.+)\.data-\d{5}-of-\d{5}")
MOST_FILES = 100_000  # as many as the names can count
# Numbers of types, as `types.proto` has them; quantised numbers are their whole numbers.
NUMBERS_OF_TYPES = {
    "float32": (1,),
    "float64": (2,),
    "float16": (19,),
    "bfloat16": (14,),
    "float8_e5m2": (24,),
    "float8_e4m3fn": (25,),
    "complex64": (8,),
    "complex128": (18,),
    "bool": (10,),
    "int8": (6, 11),
    "int16": (5, 15),
    "int32": (3, 13),
    "int64": (9,),
    "uint8": (4, 12),
    "uint16": (17, 16),
    "uint32": (22,),
    "uint64": (23,),
}
TYPES = {number: np.dtype(getattr(ml_dtypes, name, name)) for name, each in NUMBERS_OF_TYPES.items() for number in each}
STRING = 7


class BundleTensor(NamedTuple):
    """What the index says of a tensor.

    Attributes:
      entry: of the index.
      shard: number of its file of data.
      region, raw: where it is there; and what it is, if no array of numbers.
      checksum: where in the index its checksum stands; None where it was left out, since it is 0.
    """

    entry: TableEntry
    shard: int
    region: Region
    raw: Raw | None
    checksum: int | None


class DataFile(InPlace):
    """A file of data."""

    format = FORMAT


class TensorFlow(Sharded):
    """A checkpoint of TensorFlow: the folder that it is in, and one index in it.

    Attributes:
      index: the file.
    """

    def __init__(self, index: pathlib.Path, tensors: Mapping[str, BundleTensor], files: Mapping[str, InPlace]) -> None:
        super().__init__(index.parent, files)
        self.format, self.index, self._tensors = FORMAT, index, tensors

    def fill(self, folder: pathlib.Path, changes: Changes) -> None:
        super().fill(folder, changes)
        crc, content = crc32c(self.index), bytearray(read_bounded(self.index, LARGEST_INDEX))
        for name in changes:
            tensor, at = self._tensors[name], self._checked(name, content, crc)
            content[at : at + 4] = masked(_crc(folder / self.files[name].path.name, tensor.region, crc))
        for block in {self._tensors[name].entry.block for name in changes}:
            renew_block(content, block, crc)
        (folder / self.index.name).write_bytes(content)

    def _checked(self, name: str, content: bytes | bytearray, crc: Crc) -> int:
        """Where in the index a tensor's checksum stands; raises InputError where it is not that of the data."""
        tensor, file = self._tensors[name], self.files[name]
        at = tensor.checksum
        if at is None or masked(_crc(file.path, tensor.region, crc)) != content[at : at + 4]:
            raise InputError(f"the checksum of {name} in {self.index.name} is not that of its data", file.path)
        return at

    def whole(self) -> dict[str, np.ndarray]:
        """All arrays by name; raises InputError where one is not what was saved, by its checksum."""
        crc, content = crc32c(self.index), read_bounded(self.index, LARGEST_INDEX)
        for name in self.arrays:
            self._checked(name, content, crc)
        return {name: self.array(name) for name in self.arrays}


def _crc(path: pathlib.Path, region: Region, crc: Crc) -> int:
    """The CRC-32C of a tensor's bytes."""
    found, left = 0, region.end - region.offset
    with path.open("rb") as file:
        file.seek(region.offset)
        while left and (piece := file.read(min(left, PIECE))):
            found, left = crc(found, piece), left - len(piece)
    return found


def open_tensorflow(index: pathlib.Path) -> TensorFlow:
    """Open a checkpoint of TensorFlow; its index is read, and no tensor is.

    Raises:
      InputError: the index is damaged, a file of data is missing or too short, or a tensor is saved in slices.
    """
    crc = crc32c(index)
    with reading(index, FORMAT):
        content = read_bounded(index, LARGEST_INDEX)
        first, *entries = read_table(content, crc)
        if first.key:
            raise ValueError("it has no header")
        header = {number: value for number, value, _ in fields(content, first.begin, first.end)}
        count, order = numbers(header, 1, 2)
        if not 1 <= count <= MOST_FILES or order > 1:
            raise ValueError(f"it is of {count} files of data, in byte order {order}")
        tensors = {entry.key.decode(): _tensor(content, entry, bool(order)) for entry in entries}
        if odd := next((name for name, one in tensors.items() if one.shard >= count), None):
            raise ValueError(f"{odd} is in file {tensors[odd].shard} of {count}")
    files: dict[str, InPlace] = {}
    for shard in sorted({one.shard for one in tensors.values()}):
        path = index.with_name(f"{index.name.removesuffix('.index')}.data-{shard:05}-of-{count:05}")
        of_file = {name: one for name, one in tensors.items() if one.shard == shard}
        if not path.is_file():
            raise InputError(f"is missing, in which {index.name} says that {next(iter(of_file))} is", path)
        with reading(path, FORMAT):
            _check_places(of_file, path.stat().st_size)
        raw = {name: one.raw for name, one in of_file.items() if one.raw is not None}
        files |= dict.fromkeys(of_file, DataFile(path, {name: one.region for name, one in of_file.items()}, raw))
    return TensorFlow(index, tensors, {name: files[name] for name in tensors})


def _check_places(tensors: Mapping[str, BundleTensor], size: int) -> None:
    """See that tensors lie in a file of so many bytes, and not in each other; raises ValueError."""
    places = sorted((one.region.offset, one.region.end, name) for name, one in tensors.items() if one.region.span)
    for (_, end, name), (begin, _, other) in itertools.pairwise(places):
        if end > begin:
            raise ValueError(f"{name} and {other} lie in each other")
    if places and places[-1][1] > size:
        raise ValueError(f"{places[-1][2]} ends at byte {places[-1][1]:,}, the file at {size:,}")


def _tensor(content: bytes, entry: TableEntry, big: bool) -> BundleTensor:
    """What an entry of the index says."""
    found: dict[int, int | bytes] = {}
    checksum, shape = None, tuple[int, ...]()
    for number, value, at in fields(content, entry.begin, entry.end):
        if number == 7:
            raise ValueError(f"{entry.key.decode()} is saved in slices, as partitioned variables are")
        found[number] = value
        if number == 2:
            size = len(value) if isinstance(value, bytes) else 0
            shape = tuple(_dimensions(content, at, at + size))
        if number == 6:
            checksum = at if isinstance(value, bytes) and len(value) == 4 else None
    kind, shard, offset, size = numbers(found, 1, 3, 4, 5)
    text = f"{'string' if kind == STRING else f'of type {kind}'} {list(shape)}, {size} bytes"
    bare, raw = Region(offset, (size,), BYTES), Raw(text)
    if (dtype := TYPES.get(kind)) is None:
        return BundleTensor(entry, shard, bare, raw, checksum)
    if size != math.prod(shape) * dtype.itemsize:
        raise ValueError(f"{entry.key.decode()} has {size} bytes for {dtype.name} of shape {list(shape)}")
    if not is_number(dtype):
        return BundleTensor(entry, shard, bare, Raw.of(shape, dtype.newbyteorder(">" if big else "<")), checksum)
    return BundleTensor(entry, shard, Region(offset, shape, dtype.newbyteorder(">" if big else "<")), None, checksum)


def _dimensions(content: bytes, begin: int, end: int) -> Iterator[int]:
    """The sizes in a message of a shape."""
    for number, value, at in fields(content, begin, end):
        if number == 2 and isinstance(value, bytes):
            yield numbers({key: one for key, one, _ in fields(content, at, at + len(value))}, 1)[0]
        elif number == 3 and value:
            raise ValueError("a tensor has no shape")
