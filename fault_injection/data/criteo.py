"""Criteo's display advertising challenge: `train.txt`, read once into a file of numbers that is mapped into memory."""

import hashlib
import os
import pathlib
from typing import BinaryIO

import numpy as np

from ..machine.environment import cache_folder, data_folder
from ..machine.errors import InputError
from ..machine.files import named, only_writer
from ..machine.processes import say
from ..machine.progress_bar import progress_bar
from ..machine.termination import heed
from .clicks import Clicks
from .criteo_text import COLUMNS, NUMBERS, converted

FILE = "train.txt"
# Different values of each category in the whole file, as published with DLRM: the rows of its tables.
SIZES: tuple[int, ...] = (
    *(1460, 583, 10131227, 2202608, 305, 24, 12517, 633, 3, 93145, 5683, 8351593, 3194),
    *(27, 14992, 5461306, 10, 5652, 2173, 4, 7046547, 18, 15, 286181, 105, 142572),
)
DAYS = 7  # that the file covers, in their order; the last is the test part
LAYOUT = 1  # of the converted file; another one is converted anew
CHUNK = 1 << 24  # bytes looked at together
ROW = 4 * COLUMNS  # bytes of a converted row
CHECKSUM = 32  # bytes of SHA-256, behind the rows


def load_criteo(folder: pathlib.Path | None, sizes: tuple[int, ...] = SIZES) -> Clicks:
    """The examples of `train.txt`: its beginning is the training part, and the last seventh, a day, the test part.

    As public DLRM does it: a number x becomes log(1 + max(x, 0)); a category, 32 bits in hexadecimal
    digits, becomes its value modulo the size of its table; what is missing is 0.  Here an index is
    that value itself.  (There, the values that occur are counted first, and numbered.)

    The text is converted once, to 160 bytes a row in the cache, filed under its path, size and time
    of change.  The conversion reads 16 MiB at a time, and appears when it is whole.  It has a
    checksum, looked at whenever it is opened, and is made again where that does not match.

    Args:
      folder: has `train.txt`; None looks in `$FAULT_INJECTION_DATA` (by default `data` in the cache).
      sizes: of the tables, for each category.

    Raises:
      InputError: there is no such file, it has fewer than 7 rows, or a row that is none; the message
        names file and line.
      OSError: it cannot be read, or the conversion not be written.

    Reference: Naumov et al., arXiv 1906.00091 (its code); the file's columns: Criteo, 2014.
    """
    source = find_criteo(folder)
    path = _conversion(source)
    if (looked_at := _looked_at(path)) is None:
        say(f"{path}: is damaged (its checksum does not match); it is made again")
        path.unlink()
        path = _conversion(source)
        if (looked_at := _looked_at(path)) is None:
            raise InputError("is damaged again, just after it was written: its checksum does not match", path)
    rows = np.memmap(path, "<i4", "r", shape=(_rows(path), COLUMNS))
    trained = _trained(len(rows))
    modulus = np.array(sizes, np.uint32)

    def columns(stored: np.ndarray) -> np.ndarray:
        numbers = np.log1p(np.maximum(stored[..., :NUMBERS], 0).astype(np.float32)).view(np.int32)
        categories = np.ascontiguousarray(stored[..., NUMBERS:]).view(np.uint32) % modulus
        return np.concatenate([numbers, categories.astype(np.int32)], axis=-1)

    sha256, positive = looked_at
    return Clicks(rows[:trained], rows[trained:], columns, positive / trained, sha256)


def find_criteo(folder: pathlib.Path | None) -> pathlib.Path:
    """`train.txt` in the folder given, or else where this looks by default.

    Raises:
      InputError: it is not there.
    """
    found = folder or data_folder()
    if not (found / FILE).is_file():
        raise InputError(f"has no {FILE}; expected that of Criteo's challenge; name its folder with --data-dir", found)
    return found / FILE


def _conversion(source: pathlib.Path) -> pathlib.Path:
    """The converted file, made where it is missing; a process that is making it is waited for."""
    stat = source.stat()
    identity = f"{LAYOUT} {source.resolve()} {stat.st_size} {stat.st_mtime_ns}"
    path = cache_folder() / "criteo" / f"{hashlib.sha256(os.fsencode(identity)).hexdigest()[:16]}.rows"
    if path.exists():
        return path
    partial = path.with_name(f".{path.name}.partial")
    with named(partial), only_writer(partial, lambda: say(f"waiting for another process to convert {source}")) as file:
        try:
            if not path.exists():
                file.truncate()
                _convert(source, file)
                file.flush()
                os.fsync(file.fileno())
                partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)
    return path


def _convert(source: pathlib.Path, file: BinaryIO) -> None:
    """Write the rows of the text and their checksum."""
    checksum, rows = hashlib.sha256(), 0
    size = source.stat().st_size
    with source.open("rb") as text, progress_bar(total=size, unit="B", unit_scale=True, desc=f"{FILE}", delay=2) as bar:
        while lines := text.read(CHUNK) + text.readline(CHUNK):
            heed()
            bar.update(len(lines))
            if not lines.endswith(b"\n"):  # the last line, or one that is longer than any of this format
                lines += b"\n"
            found = converted(lines, rows, source)
            rows += len(found)
            content = found.astype("<i4").tobytes()
            checksum.update(content)
            file.write(content)
    if rows < DAYS:
        raise InputError(f"{rows} rows; expected at least {DAYS}: the last seventh is the test part", source)
    file.write(checksum.digest())


def _rows(path: pathlib.Path) -> int:
    """How many a converted file has."""
    return max(0, path.stat().st_size - CHECKSUM) // ROW


def _trained(rows: int) -> int:
    """How many of them are the training part."""
    return rows - rows // DAYS


def _looked_at(path: pathlib.Path) -> tuple[str, int] | None:
    """The checksum of a converted file and how many training labels are 1; None where the checksum does not match."""
    checksum, positive, left = hashlib.sha256(), 0, _rows(path)
    trained = _trained(left)
    with path.open("rb") as file:
        while left and (chunk := file.read(min(left, CHUNK // ROW) * ROW)):
            checksum.update(chunk)
            labels = np.frombuffer(chunk, "<i4")[::COLUMNS]
            positive += int(labels[: max(0, trained)].sum())
            trained, left = trained - len(labels), left - len(labels)
        return (checksum.hexdigest(), positive) if file.read() == checksum.digest() else None
