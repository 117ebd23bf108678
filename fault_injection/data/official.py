"""CIFAR-10 as its authors publish it: the binary or the python layout, as a folder or as an archive.

Reference: Krizhevsky, Learning Multiple Layers of Features from Tiny Images, 2009,
https://www.cs.toronto.edu/~kriz/cifar.html.
"""

import gzip
import pathlib
import tarfile
import zlib
from collections.abc import Iterator
from typing import Any, Self

import numpy as np

from ..machine.errors import InputError
from .images import Images, normalisation
from .pickles import as_pixels, read_pickle

PARTS = (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch")
ROWS = 10_000  # images in each
PIXELS = 3 * 32 * 32  # bytes of an image: red, green and blue plane
BINARY_BYTES = ROWS * (1 + PIXELS)
LARGEST_PICKLE = 8 * BINARY_BYTES  # no protocol takes more; a larger file is not read
# Bounds of an archive whose headers are read before anything is known of it.
LARGEST_HEADER = 2**16  # bytes of a long name, or of a member's further properties
MOST_MEMBERS = 1000
DESCRIBING = (tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK, tarfile.XHDTYPE, tarfile.XGLTYPE, b"X")


def is_official(folder: pathlib.Path) -> bool:
    """Whether a folder holds at least one file of either layout."""
    return any((folder / f"{part}{suffix}").is_file() for part in PARTS for suffix in ("", ".bin"))


def read_official(path: pathlib.Path) -> Images:
    """Read a folder or an archive.  Every layout gives the same images in the same order.

    Raises:
      InputError: a file is missing, damaged or not CIFAR-10; the message names it.
      OSError: a file cannot be read.
    """
    pixels = np.empty((len(PARTS) * ROWS, 32, 32, 3), np.uint8)
    labels = np.empty(len(PARTS) * ROWS, np.int32)
    missing = list(PARTS)
    for name, where, content in _files_in_folder(path) if path.is_dir() else _files_in_archive(path):
        part = name.removesuffix(".bin")
        label, planes = _binary(content) if name.endswith(".bin") else _pickled(content, where)
        for record, found in enumerate(label):
            if not 0 <= found <= 9:
                raise InputError(f"label {found} in record {record}, expected 0 to 9", where)
        rows = slice(ROWS * PARTS.index(part), ROWS * (PARTS.index(part) + 1))
        labels[rows] = label
        pixels[rows] = planes.reshape(ROWS, 3, 32, 32).transpose(0, 2, 3, 1)
        if part in missing:
            missing.remove(part)
    if missing:
        raise InputError(f"{', '.join(missing)} missing, expected the six files {', '.join(PARTS)}", path)
    train = len(labels) - ROWS
    return Images(pixels[:train], labels[:train], pixels[train:], labels[train:], normalisation(pixels[:train]))


def _files_in_folder(folder: pathlib.Path) -> Iterator[tuple[str, pathlib.Path, bytes]]:
    """Name, place and content of each file in a folder; of the binary layout, if any file has it."""
    suffix = ".bin" if any((folder / f"{part}.bin").is_file() for part in PARTS) else ""
    for part in PARTS:
        file = folder / f"{part}{suffix}"
        if file.exists():
            _check_size(file.name, file.stat().st_size, file)
            yield file.name, file, file.read_bytes()


class _Header(tarfile.TarInfo):
    """A header that cannot make the reader hold more than a few pages: names and properties have a largest size."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        """As `tarfile` reads it; raises HeaderTooLarge."""
        return super().frombuf(buf, encoding, errors)._small()

    @classmethod
    def _frombuf(cls, *read: Any, **options: Any) -> Self:
        """What `tarfile` reads headers by in Pythons since 2025."""
        return super()._frombuf(*read, **options)._small()  # type: ignore[misc]

    def _small(self) -> Self:
        if self.type in DESCRIBING and not 0 <= self.size <= LARGEST_HEADER:
            raise HeaderTooLarge(f"a member's name or properties of {self.size:,} bytes")
        if self.type == tarfile.GNUTYPE_SPARSE:
            raise HeaderTooLarge("a member with holes")
        return self


class HeaderTooLarge(Exception):
    """A header of an archive describes more than any archive of images needs."""


def _files_in_archive(path: pathlib.Path) -> Iterator[tuple[str, pathlib.Path, bytes]]:
    """The same of an archive, read once from its beginning to its end and never unpacked on disk."""
    try:
        with gzip.open(path) as unzipped:
            with tarfile.open(fileobj=unzipped, mode="r|", tarinfo=_Header) as archive:
                for count, member in enumerate(archive):
                    if count == MOST_MEMBERS:
                        raise HeaderTooLarge(f"more than {MOST_MEMBERS} members")
                    where = path / member.name
                    if "cifar-100" in member.name:
                        raise InputError("an archive of CIFAR-100, expected CIFAR-10", path)
                    if where.name.removesuffix(".bin") in PARTS and member.isfile():
                        _check_size(where.name, member.size, where)
                        file = archive.extractfile(member)
                        yield where.name, where, file.read() if file else b""
            while unzipped.read(2**20):  # to the end, where gzip checks its checksum
                pass
    except HeaderTooLarge as error:
        raise InputError(f"no archive of CIFAR-10: it has {error}", path) from None
    except (tarfile.TarError, gzip.BadGzipFile, zlib.error, EOFError, ValueError, RecursionError) as error:
        raise InputError(f"damaged or truncated, expected a whole .tar.gz archive ({error})", path) from None


def _check_size(name: str, size: int, where: pathlib.Path) -> None:
    if name.endswith(".bin"):
        if size != BINARY_BYTES:
            raise InputError(f"{size:,} bytes, expected {BINARY_BYTES:,}", where)
    elif not ROWS * PIXELS < size < LARGEST_PICKLE:
        raise InputError(f"{size:,} bytes, expected a little more than {ROWS * PIXELS:,}", where)


def _binary(content: bytes) -> tuple[list[int], np.ndarray]:
    """Labels [ROWS] and pixels [ROWS,PIXELS] uint8 of a file of the binary layout."""
    records = np.frombuffer(content, np.uint8).reshape(ROWS, 1 + PIXELS)
    return records[:, 0].tolist(), records[:, 1:]


def _pickled(content: bytes, where: pathlib.Path) -> tuple[list[int], np.ndarray]:
    """The same of a file of the python layout; raises InputError."""
    try:
        batch = read_pickle(content)
        if b"fine_labels" in batch:
            raise InputError("a file of CIFAR-100, expected CIFAR-10", where)
        for key in (b"labels", b"data"):
            if key not in batch:
                raise InputError(f"no entry {key.decode()!r}, expected 'labels' and 'data'", where)
        labels, pixels = batch[b"labels"], as_pixels(batch[b"data"])
    except ValueError as error:
        raise InputError(str(error), where) from None
    if not isinstance(labels, list) or not all(type(label) is int for label in labels):
        raise InputError(f"'labels' holds a {type(labels).__name__}, expected a list of whole numbers", where)
    if len(labels) != ROWS:
        raise InputError(f"{len(labels):,} labels, expected {ROWS:,}", where)
    if pixels.shape != (ROWS, PIXELS):
        raise InputError(f"'data' has shape {pixels.shape}, expected {(ROWS, PIXELS)}", where)
    return labels, pixels
