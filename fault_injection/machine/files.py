"""Files that are whole or not there: written aside, then renamed; arrays carry a checksum."""

import contextlib
import fcntl
import hashlib
import io
import json
import os
import pathlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, BinaryIO

import numpy as np

from .errors import InputError

CHECKSUM = "sha256"


class DamagedFile(Exception):
    """A file whose content is not what was written; the message names it."""


def write_atomically(path: str | os.PathLike, write: Callable[[BinaryIO], object]) -> None:
    """Let `write` fill the file `.NAME.partial` beside `path`, then rename it to `path`.

    A crash leaves the old content, and at most this one file beside it, which the next write
    to `path` takes over.  Of several processes writing to `path`, one writes at a time.
    """
    path = pathlib.Path(path)
    aside = path.with_name(f".{path.name}.partial")
    with named(path), only_writer(aside) as file:
        try:
            file.truncate()
            write(file)
            file.flush()
            os.fsync(file.fileno())
            aside.replace(path)
        except BaseException:
            aside.unlink(missing_ok=True)
            raise


@contextlib.contextmanager
def named(path: pathlib.Path) -> Iterator[None]:
    """Errors of the system that do not say of which file they are, as of a full disk, say that it is `path`."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            raise OSError(error.errno, error.strerror, str(path)) from None
        raise


@contextlib.contextmanager
def only_writer(path: pathlib.Path, waiting: Callable[[], object] = lambda: None) -> Iterator[BinaryIO]:
    """The file, made where there is none, open from its beginning once no other process is writing to it.

    It is free again when its process ends, however it ends.

    Args:
      waiting: called before waiting for another process.
    """
    while True:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)  # less what the umask takes away
        with os.fdopen(handle, "r+b") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                waiting()
                fcntl.flock(file, fcntl.LOCK_EX)
            try:
                mine = os.path.samestat(os.fstat(handle), path.stat())
            except FileNotFoundError:
                mine = False
            if mine:  # else the writer waited for has renamed or removed this file: open a new one
                yield file
                return


def in_use(path: pathlib.Path) -> bool:
    """Whether a process holds `path` as its `only_writer` now."""
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


def read_text(path: str | os.PathLike) -> str:
    """The text of a file that a person wrote; raises InputError where it cannot be read, or is not UTF-8."""
    try:
        return pathlib.Path(path).read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise InputError(error.strerror or str(error), path) from None
    except UnicodeDecodeError as error:
        raise InputError(f"not a text file: byte {error.start} is not UTF-8", path) from None


def write_text(path: str | os.PathLike, text: str) -> None:
    """Write UTF-8 text; a file name's byte that is not UTF-8 becomes an escape, as JSON has it."""
    write_atomically(path, lambda file: file.write(text.encode(errors="backslashreplace")))


def write_json(path: str | os.PathLike, value: Any) -> None:
    """Write indented JSON; non-finite numbers become the strings `NaN`, `Infinity`, `-Infinity`."""
    write_text(path, json.dumps(strict_json(value), indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def strict_json(value: Any) -> Any:
    """A value that strict JSON can express: non-finite numbers become the strings `NaN`, `Infinity`, `-Infinity`."""
    if isinstance(value, Mapping):
        return {str(key): strict_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [strict_json(item) for item in value]
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not np.isfinite(value):
        return "NaN" if np.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value


def write_arrays(path: str | os.PathLike, arrays: Mapping[str, np.ndarray]) -> None:
    """Write named arrays as an .npz with a checksum over names, types, shapes and bytes."""
    arrays = {name: np.asarray(array) for name, array in arrays.items()}
    checksum = np.frombuffer(_checksum(arrays), np.uint8)
    write_atomically(path, lambda file: np.savez(file, allow_pickle=False, **{CHECKSUM: checksum}, **arrays))


def read_arrays(path: str | os.PathLike) -> dict[str, np.ndarray]:
    """Read what `write_arrays` wrote.

    Raises:
      FileNotFoundError: there is no such file.
      DamagedFile: it is truncated, altered or something else.
    """
    content = pathlib.Path(path).read_bytes()
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as stored:
            arrays = {name: stored[name] for name in stored.files}
        intact = arrays.pop(CHECKSUM).tobytes() == _checksum(arrays)
    except Exception as error:  # damage can surface anywhere in the reader
        raise DamagedFile(f"{path} is damaged ({error})") from None
    if not intact:
        raise DamagedFile(f"{path} is damaged (its checksum does not fit)")
    return arrays


def _checksum(arrays) -> bytes:
    digest = hashlib.sha256()
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        digest.update(f"{name} {array.dtype.str} {array.shape} ".encode() + array.tobytes())
    return digest.digest()
