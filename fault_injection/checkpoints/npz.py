"""NumPy's .npy, one array, and .npz, a ZIP archive of them.  Our own checkpoints are .npz, with a SHA-256 beside.

What is stored uncompressed is altered where it lies, and the CRC-32 of its member is renewed by what
changed.  An archive of which a compressed member changes is written anew.
"""

import contextlib
import pathlib
import shutil
import zipfile
from collections.abc import Iterator
from typing import IO, Any, BinaryIO

import ml_dtypes
import numpy as np

from ..machine.files import CHECKSUM, arrays_checksum, write_atomically, written
from .checkpoint import PIECE, Altered, Changes, Described, Raw, is_number, reading, replaced
from .in_place import BYTES, InPlace, Region, by_columns
from .stored_zip import Archive, flips_of

UNNAMED = "arr_0"
# NumPy has no bfloat16 of its own, and writes two bytes without a meaning.
NAMELESS = {np.dtype("V2"): np.dtype(ml_dtypes.bfloat16)}


class Npz(InPlace):
    """An .npz archive.

    Attributes:
      members: of its arrays, by their names.
      ours: whether it carries the checksum of `machine.files.write_arrays`.
    """

    format = "npz"

    def __init__(self, path: pathlib.Path, archive: zipfile.ZipFile) -> None:
        self.archive = Archive(path, archive)
        self.members = {info.filename.removesuffix(".npy"): info for info in self.archive.members}
        regions, raw = {}, {}
        for name, info in self.members.items():
            regions[name], left = _region(self.archive, archive, info)
            if left is not None:
                raw[name] = left
        if len(self.members) < len(archive.infolist()):
            raise ValueError("a name stands in it twice")
        super().__init__(path, regions, raw)
        if not self.arrays and not all(left.compared for left in raw.values()):
            raise ValueError("it holds Python objects, and nothing is ever unpickled")
        self.ours = self.arrays.get(CHECKSUM) == Described((32,), np.dtype(np.uint8))
        if self.ours:
            self.arrays = {name: array for name, array in self.arrays.items() if name != CHECKSUM}
            if self.checksum({}) != self.words(CHECKSUM, np.arange(32)).tobytes():
                raise ValueError("its checksum does not match")

    def words(self, name: str, index: np.ndarray) -> np.ndarray:
        if self.members[name].compress_type == zipfile.ZIP_STORED:
            return super().words(name, index)
        places, begin = self.regions[name].places(index), 0
        words = np.empty(len(index), self.regions[name].described.word)
        for piece in self.stored(name):
            here = (begin <= places) & (places < begin + len(piece))
            words[here] = piece[places[here] - begin]
            begin += len(piece)
        return words

    @contextlib.contextmanager
    def opened(self, name: str) -> Iterator[IO[bytes]]:
        info = self.members[name]
        if info.compress_type == zipfile.ZIP_STORED:
            with super().opened(name) as file:
                yield file
            return
        with reading(self.path, self.format), zipfile.ZipFile(self.path) as archive, archive.open(info) as member:
            member.read(self._header(name))
            yield member

    def _header(self, name: str) -> int:
        """Bytes of a member before its array."""
        region = self.regions[name]
        return self.members[name].file_size - region.described.size * region.dtype.itemsize

    def checksum(self, changes: Changes) -> bytes:
        """The SHA-256 of all arrays with some elements replaced."""

        def content(name: str) -> Iterator[bytes]:
            pieces, change = self.pieces(name), changes.get(name)
            for piece in pieces if change is None else replaced(pieces, change.places, change.after):
                yield piece.astype(self.regions[name].word).tobytes()

        contents = {name: content(name) for name in self.arrays} | {name: self.content(name) for name in self.raw}
        types = {name: (written(self.regions[name].dtype), self.regions[name].shape) for name in contents}
        return arrays_checksum({name: (*types[name], contents[name]) for name in contents})

    def write(self, out: pathlib.Path, changes: Changes) -> None:
        if self.ours:
            every, new = np.arange(32), np.frombuffer(self.checksum(changes), np.uint8)
            changes = {**changes, CHECKSUM: Altered(every, self.words(CHECKSUM, every), new)}
        if any(self.members[name].compress_type != zipfile.ZIP_STORED for name in changes):
            write_atomically(out, lambda file: self._rewrite(file, changes))
        else:
            super().write(out, changes)

    def replace(self, file: BinaryIO, name: str, change: Altered) -> None:
        """As `InPlace.replace`; the CRC-32 of the member follows."""
        super().replace(file, name, change)
        region, info = self.regions[name], self.members[name]
        begin = region.offset - self.archive.begin(info)
        places = begin + region.places(change.places) * region.dtype.itemsize
        with reading(self.path, self.format):
            self.archive.renew(file, info, [flips_of(places, change.before, change.after, region.word)])

    def _rewrite(self, file: BinaryIO, changes: Changes) -> None:
        """Write the archive anew, each member compressed as it was."""
        with reading(self.path, self.format), zipfile.ZipFile(self.path) as old, zipfile.ZipFile(file, "w") as new:
            for name, info in self.members.items():
                copied = zipfile.ZipInfo(info.filename, info.date_time)
                copied.compress_type, copied.external_attr = info.compress_type, info.external_attr
                change = changes.get(name)
                with (
                    reading(self.path, self.format),
                    old.open(info) as source,
                    new.open(copied, "w", force_zip64=True) as target,
                ):
                    if change is None:
                        shutil.copyfileobj(source, target, PIECE)
                        continue
                    target.write(source.read(self._header(name)))
                    region = self.regions[name]
                    for piece in replaced(self.stored(name), region.places(change.places), change.after):
                        target.write(piece.astype(region.word).tobytes())


def open_npz(path: pathlib.Path) -> Npz:
    """Open an .npz archive; the headers of its arrays are read, and of our own files everything is checked.

    Raises:
      InputError: it is damaged, has members that lie in each other, or arrays of Python objects, which
        would have to be unpickled.
    """
    with reading(path, Npz.format), zipfile.ZipFile(path) as archive:
        return Npz(path, archive)


def _region(places: Archive, archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> tuple[Region, Raw | None]:
    """Where a member's array is in the file, or in what it decompresses to; and what it is, if no array of numbers."""
    if info.filename.endswith((".pkl", ".pickle")):
        raise ValueError(f"{info.filename} is a pickle, and nothing is ever unpickled; save it as safetensors")
    region, raw = Region(0, (info.file_size,), BYTES), None
    if not info.filename.endswith(".npy"):
        raw = Raw(f"a file of {info.file_size} bytes")
    else:
        with archive.open(info) as member:
            region, raw = _array(member, info.filename, info.file_size)
    if info.compress_type != zipfile.ZIP_STORED:
        return region, raw
    return region._replace(offset=places.begin(info) + region.offset), raw


class Npy(InPlace):
    """A file of one array, which is called as NumPy calls an array without a name."""

    format = "npy"


def open_npy(path: pathlib.Path) -> Npy:
    """Open NumPy's .npy: one array; its header is read.

    Raises:
      InputError: it is damaged, or holds Python objects, which would have to be unpickled.
    """
    with reading(path, Npy.format), path.open("rb") as file:
        region, raw = _array(file, path.name, path.stat().st_size)
        if raw is not None and not raw.compared:
            raise ValueError("it holds Python objects, and nothing is ever unpickled")
    return Npy(path, {UNNAMED: region}, {} if raw is None else {UNNAMED: raw})


def _array(member: IO[bytes], name: str, size: int) -> tuple[Region, Raw | None]:
    """Where in a member of so many bytes its array is; and what it is, if no array of numbers."""
    version = np.lib.format.read_magic(member)
    read: Any = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    if version == (3, 0):  # of structures whose names are not ASCII
        return Region(0, (size,), BYTES), Raw(f"an array of {size} bytes with its header")
    if version not in read:
        raise ValueError(f"{name} has version {version} of its format, expected (1, 0) to (3, 0)")
    shape, columns_first, dtype = read[version](member)
    header = member.tell()
    dtype = NAMELESS.get(dtype, dtype)
    if any(n < 0 for n in shape):
        raise ValueError(f"{name} has shape {shape}")
    if dtype.hasobject:
        return Region(0, (size,), BYTES), Raw.of(shape, dtype)
    region = Region(header, shape, dtype, by_columns(shape) if columns_first and len(shape) > 1 else None)
    if region.end != size:
        raise ValueError(f"{name} has {size:,} bytes, expected {region.end:,}")
    if is_number(dtype):
        return region, None
    raw = Raw.of(shape, dtype)
    return region, raw._replace(text=f"{raw.text} by columns") if region.strides else raw
