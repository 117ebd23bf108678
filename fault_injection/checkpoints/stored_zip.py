"""ZIP archives of which stored members are altered where they lie: where they are, and their CRC-32 afterwards."""

import functools
import itertools
import pathlib
import zipfile
import zlib
from collections.abc import Sequence
from typing import BinaryIO, NamedTuple

import numpy as np

from .checkpoint import PIECE

LOCAL, CENTRAL = 30, 46  # bytes of the headers of a member, without names and extras
CRC_OF_LOCAL, CRC_OF_CENTRAL = 14, 16  # where in them the CRC-32 stands
AFTERWARDS = 8  # a flag: the CRC-32 stands behind the member, since it was not known before
ENCRYPTED = 1  # a flag
ACCOUNTED = 1 << 18  # bytes: to read so many twice takes as long as to account for one change


class Flips(NamedTuple):
    """Bits inverted in a member.

    Attributes:
      places: of the bytes inverted, counted from the member's first; each run begins at one.
      content: of the runs, by what each is XORed, one after the other.
      width: bytes of a run.
    """

    places: Sequence[int]
    content: bytes
    width: int


class Archive:
    """Where the members of an archive are.

    Attributes:
      members: in the order of the directory.
    """

    def __init__(self, path: pathlib.Path, archive: zipfile.ZipFile) -> None:
        self.path, self.members, self._directory = path, archive.infolist(), archive.start_dir
        spans = sorted((info.header_offset, info.header_offset + info.compress_size) for info in self.members)
        if any(end > start for (_, end), (start, _) in itertools.pairwise(spans)):
            raise ValueError("two of its members lie in each other")
        if spans and spans[-1][1] > archive.start_dir:
            raise ValueError("a member reaches beyond the end")
        self._entries: dict[str, int] = {}

    def begin(self, info: zipfile.ZipInfo) -> int:
        """Where the bytes of a stored member begin.

        Raises:
          ValueError: it is not stored as it is, or has no header there.
        """
        if info.compress_type != zipfile.ZIP_STORED or info.flag_bits & ENCRYPTED:
            raise ValueError(f"{info.filename} is compressed or encrypted")
        if info.compress_size != info.file_size:
            raise ValueError(f"{info.filename} has two sizes")
        with self.path.open("rb") as file:
            file.seek(info.header_offset)
            header = file.read(LOCAL)
        if header[:4] != b"PK\x03\x04" or len(header) < LOCAL:
            raise ValueError(f"{info.filename} has no header where the directory says")
        names = sum(int.from_bytes(header[k : k + 2], "little") for k in (LOCAL - 4, LOCAL - 2))
        return info.header_offset + LOCAL + names

    def renew(self, file: BinaryIO, info: zipfile.ZipInfo, flips: Sequence[Flips]) -> None:
        """Renew the CRC-32 of a stored member in a copy of the archive in which it was altered.

        Raises:
          ValueError: the archive has it nowhere that is known; the copy is of no use then.
        """
        begin, size = self.begin(info), info.file_size
        crc = info.CRC
        if sum(len(one.places) for one in flips) * ACCOUNTED > size:
            with self.path.open("rb") as source:
                crc ^= _crc(source, begin, size) ^ _crc(file, begin, size)
        else:
            for one in flips:
                for k, place in enumerate(one.places):
                    run = one.content[k * one.width : (k + 1) * one.width]
                    crc ^= crc_of_flip(run, size - place - one.width)
        if info.flag_bits & AFTERWARDS:
            file.seek(begin + size)
            at = begin + size + 4 * (file.read(4) == b"PK\x07\x08")  # the signature is usual but optional
        else:
            at = info.header_offset + CRC_OF_LOCAL
        for place in (at, self._entry(file, info) + CRC_OF_CENTRAL):
            file.seek(place)
            if file.read(4) != info.CRC.to_bytes(4, "little"):
                raise ValueError(f"{info.filename} has two checksums")
            file.seek(place)
            file.write(crc.to_bytes(4, "little"))

    def _entry(self, file: BinaryIO, wanted: zipfile.ZipInfo) -> int:
        """Where the entry of a member in the central directory begins."""
        if not self._entries:
            at = self._directory
            for info in self.members:
                self._entries[info.filename] = at
                file.seek(at + 28)
                at += CENTRAL + sum(int.from_bytes(file.read(2), "little") for _ in range(3))
        return self._entries[wanted.filename]


def flips_of(places: np.ndarray, before: np.ndarray, after: np.ndarray, word: np.dtype) -> Flips:
    """The flips of words at places, int64 [n] in bytes; `word` has the byte order of the file."""
    return Flips(places.tolist(), (before ^ after).astype(word).tobytes(), word.itemsize)


def _crc(file: BinaryIO, begin: int, size: int) -> int:
    file.seek(begin)
    crc = 0
    while size and (content := file.read(min(size, PIECE))):
        crc, size = zlib.crc32(content, crc), size - len(content)
    return crc


def crc_of_flip(flipped: bytes, behind: int) -> int:
    """By what the CRC-32 of bytes changes, by XOR, where some of them are XORed with `flipped`.

    A CRC-32 is linear but for a constant: that of `flipped` and then of as many zeros as there are bytes
    behind, without the constant.  A zero is a multiplication by x⁸ modulo the polynomial.

    >>> content, other = b"any bytes", b"aNy bytes"
    >>> zlib.crc32(content) ^ crc_of_flip(b"\\x20", behind=7) == zlib.crc32(other)
    True

    Args:
      behind: bytes behind those that change.
    """
    return _times(zlib.crc32(flipped) ^ zlib.crc32(bytes(len(flipped))), _zeros(behind))


POLYNOMIAL, ONE = 0xEDB88320, 1 << 31  # bit 31 is the coefficient of x⁰


def _times(a: int, b: int) -> int:
    """The product of two polynomials over two elements, modulo that of CRC-32."""
    product = 0
    while a:
        if a & ONE:
            product ^= b
        a = (a << 1) & 0xFFFFFFFF
        b = (b >> 1) ^ (POLYNOMIAL if b & 1 else 0)
    return product


@functools.lru_cache(maxsize=1024)
def _zeros(count: int) -> int:
    """x^(8·count) modulo the CRC polynomial: appending `count` zero bytes multiplies a CRC by it."""
    power, square = ONE, ONE >> 8
    while count:
        if count & 1:
            power = _times(power, square)
        square, count = _times(square, square), count >> 1
    return power
