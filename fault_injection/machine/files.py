"""Files that are whole or absent: each is written aside, then renamed; arrays carry a checksum.

>>> import tempfile
>>> with tempfile.TemporaryDirectory() as folder:
...     write_arrays(f"{folder}/state.npz", {"params/conv1/kernel": np.ones((3, 3), np.float32)})
...     read_arrays(f"{folder}/state.npz")["params/conv1/kernel"].shape
(3, 3)
"""

import contextlib
import errno
import fcntl
import hashlib
import io
import json
import os
import pathlib
import shutil
import stat
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, BinaryIO

import numpy as np

from .errors import InputError
from .termination import unbroken

CHECKSUM = "sha256"
SHOWN = 100  # characters of what a reader says of damage
LARGEST_TEXT = 16 * 2**20  # bytes of a text file that a person writes
KINDS = {stat.S_IFDIR: "a folder", stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket"}


class DamagedFile(Exception):
    """The content of a file is not what was written.  The message is one line and names the file."""


def write_atomically(path: str | os.PathLike[str], write: Callable[[BinaryIO], object]) -> None:
    """Let `write` fill the file `.NAME.partial` beside `path`, then rename it to `path`.

    A crash leaves the old content, and at most this one file beside it, which the next write
    to `path` takes over.  Where several processes write to `path`, one writes at a time.
    A signal that ends this process waits until the file is whole.

    Args:
      path: the file; its folders are made where they are missing.  One that is replaced keeps its mode.
      write: gets the open, empty file.

    Raises:
      OSError: the file cannot be written; the old content stays.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_atomically(f"{folder}/log", lambda file: file.write(b"whole"))
    ...     pathlib.Path(f"{folder}/log").read_bytes()
    b'whole'
    """
    path = pathlib.Path(path)
    aside = path.with_name(f".{path.name}.partial")
    with named(path), unbroken(), only_writer(aside) as file:
        try:
            file.truncate()
            write(file)
            file.flush()
            os.fsync(file.fileno())
            if path.is_file():
                os.fchmod(file.fileno(), stat.S_IMODE(path.stat().st_mode))
            aside.replace(path)
        except BaseException:
            aside.unlink(missing_ok=True)
            raise


def whole_folder(path: pathlib.Path, fill: Callable[[pathlib.Path], object]) -> None:
    """Let `fill` fill the folder `.NAME.partial` beside `path`, then rename it to `path`, which must not be there.

    A crash leaves at most the folder beside it, which the next attempt clears away.

    Raises:
      OSError: it cannot be written, or `path` is there.
    """
    aside = path.with_name(f".{path.name}.partial")
    with named(path), unbroken(), only_writer(aside.with_name(f"{aside.name}.lock")):
        try:
            shutil.rmtree(aside, ignore_errors=True)
            aside.mkdir(parents=True)
            fill(aside)
            for below in aside.rglob("*"):
                if below.is_file() and not below.is_symlink():
                    sync(below)
            aside.rename(path)
        finally:
            shutil.rmtree(aside, ignore_errors=True)
            aside.with_name(f"{aside.name}.lock").unlink(missing_ok=True)


def sync(path: pathlib.Path) -> None:
    """Have the system write a file, or the names in a folder, to its disk: after a loss of power it is there.

    Raises:
      OSError: it cannot.
    """
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextlib.contextmanager
def named(path: pathlib.Path) -> Iterator[None]:
    """Inside this context, system errors that name no file, such as a full disk, name `path`."""
    try:
        yield
    except OSError as error:
        if error.errno is None:  # of a folder that is copied: what failed first, and why
            told = error.args[0] if error.args else ""
            source, _, why = told[0] if isinstance(told, list) and told else (path, None, told)
            raise InputError(f"cannot be copied: {str(why)[:SHOWN]}", source) from None
        if error.filename is None:
            raise OSError(error.errno, error.strerror, str(path)) from None
        raise


@contextlib.contextmanager
def only_writer(
    path: pathlib.Path, waiting: Callable[[], object] = lambda: None, refuse: str | None = None
) -> Iterator[io.BufferedRandom]:
    """Open the file for this process alone, from its beginning, once no other process has it open in this way.

    It is released when the context or the process ends, however that ends.

    Args:
      path: the file; it and its folders are made where they are missing.
      waiting: called before waiting for another process.
      refuse: do not wait: what to say of the file's folder where another process is at work there.

    Raises:
      OSError: the file cannot be made or opened.
      InputError: it is a symbolic link, through which nothing is ever written, or no regular file; or `refuse`.
    """
    while True:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)  # minus the umask
        except OSError as error:
            if path.is_symlink():
                raise InputError("is a symbolic link, through which nothing is written; remove it", path) from None
            if error.errno == errno.ENXIO:  # a socket
                raise InputError("is no regular file; remove it", path) from None
            raise
        with os.fdopen(handle, "r+b") as file:
            if not stat.S_ISREG(os.fstat(handle).st_mode):
                raise InputError("is no regular file; remove it", path)
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if refuse is not None:
                    raise InputError(refuse, path.parent) from None
                waiting()
                fcntl.flock(file, fcntl.LOCK_EX)
            try:
                mine = os.path.samestat(os.fstat(handle), path.lstat())
            except FileNotFoundError:
                mine = False
            if mine:  # else the other writer has renamed or removed this file meanwhile: open a new one
                yield file
                return


def in_use(path: pathlib.Path) -> bool:
    """Whether a process holds `path` as its `only_writer` now."""
    try:
        with open_regular(path) as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


def open_regular(path: str | os.PathLike[str]) -> BinaryIO:
    """Open a regular file for reading; raises OSError where it is something else, and waits for nothing."""
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    mode = os.fstat(handle).st_mode
    if not stat.S_ISREG(mode):
        os.close(handle)
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(path))
        raise OSError(errno.EINVAL, f"is {KINDS.get(stat.S_IFMT(mode), 'a device')}, expected a file", os.fspath(path))
    return os.fdopen(handle, "rb")


def read_bounded(path: str | os.PathLike[str], most: int = LARGEST_TEXT) -> bytes:
    """The content of a regular file of at most `most` bytes.

    Raises:
      OSError: it cannot be read, is larger, or is no regular file, such as a pipe or `/dev/zero`.
    """
    with open_regular(path) as file:
        # As much as there is; `read(most + 1)` would take the memory for that first.
        content = file.read() if os.fstat(file.fileno()).st_size <= most else None
    if content is None or len(content) > most:
        raise OSError(errno.EFBIG, f"has more than {most:,} bytes", os.fspath(path))
    return content


def read_text(path: str | os.PathLike[str]) -> str:
    """The text of a file that a person wrote, a regular one of at most 16 MiB.

    Raises:
      InputError: it cannot be read, is larger, is no regular file, or is not UTF-8.
    """
    try:
        return read_bounded(path).decode("utf-8-sig")
    except OSError as error:
        raise InputError(error.strerror or str(error), path) from None
    except UnicodeDecodeError as error:
        raise InputError(f"not a text file: byte {error.start} is not UTF-8", path) from None
    except ValueError:  # of the name, not of the content
        raise InputError("a file's name has no NUL byte", path) from None


def discard(path: pathlib.Path) -> None:
    """Remove a file that is not used, if it is there; a symbolic link or an empty folder in its place, too.

    Raises:
      InputError: a folder with something in it is in its place.
    """
    try:
        path.unlink(missing_ok=True)
    except OSError:
        if path.is_symlink() or not path.is_dir():
            raise
        try:
            path.rmdir()
        except OSError:
            raise InputError("is a folder with something in it, expected a file; remove it", path) from None


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write text as UTF-8; a byte of a file name that is not UTF-8 becomes an escape such as `\\udce9`, as in JSON."""
    write_atomically(path, lambda file: file.write(text.encode(errors="backslashreplace")))


def write_json(path: str | os.PathLike[str], value: Any) -> None:
    """Write a value as indented JSON; non-finite numbers become the strings `NaN`, `Infinity`, `-Infinity`.

    Args:
      path: the file.
      value: mappings, lists, tuples, strings, numbers (NumPy's too), booleans and None.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_json(f"{folder}/outcome.json", {"loss": np.float32("nan")})
    ...     json.loads(pathlib.Path(f"{folder}/outcome.json").read_text())
    {'loss': 'NaN'}
    """
    write_text(path, json.dumps(strict_json(value), indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def write_sealed(path: str | os.PathLike[str], value: Mapping[str, Any]) -> None:
    """Write a mapping as `write_json` does, with a checksum of it and of the file's name as the last entry."""
    write_json(path, {**value, CHECKSUM: _seal(path, value)})


def read_sealed(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read what `write_sealed` wrote, without the checksum.

    Raises:
      FileNotFoundError: there is no such file.
      DamagedFile: the file is truncated, altered or of another kind, or no regular file.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_sealed(f"{folder}/timing.json", {"seconds": 0.5})
    ...     read_sealed(f"{folder}/timing.json")
    {'seconds': 0.5}
    """
    try:
        known = json.loads(read_bounded(path))
        intact = known.pop(CHECKSUM, None) == _seal(path, known)
    except FileNotFoundError:
        raise
    except (OSError, ValueError, RecursionError, AttributeError, TypeError) as error:
        raise DamagedFile(f"{path} is damaged ({str(error)[:SHOWN]})") from None
    if not intact:
        raise DamagedFile(f"{path} is damaged (its checksum does not match)")
    return dict(known)


def _seal(path: str | os.PathLike[str], value: Mapping[str, Any]) -> str:
    text = json.dumps([pathlib.Path(path).name, strict_json(value)], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def strict_json(value: Any) -> Any:
    """A value that strict JSON can express: non-finite numbers become `NaN`, `Infinity`, `-Infinity` as strings."""
    if isinstance(value, Mapping):
        return {str(key): strict_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [strict_json(item) for item in value]
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not np.isfinite(value):
        return "NaN" if np.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value


def write_arrays(path: str | os.PathLike[str], arrays: Mapping[str, np.ndarray]) -> None:
    """Write named arrays as an .npz file with a checksum over names, types, shapes and bytes.

    Raises:
      ValueError: an array holds Python objects.
      OSError: the file cannot be written.
    """
    arrays = {name: np.asarray(array) for name, array in arrays.items()}
    checksum = np.frombuffer(_checksum(arrays), np.uint8)
    write_atomically(path, lambda file: np.savez(file, allow_pickle=False, **{CHECKSUM: checksum}, **arrays))


def read_arrays(path: str | os.PathLike[str]) -> dict[str, np.ndarray]:
    """Read what `write_arrays` wrote.

    Raises:
      FileNotFoundError: there is no such file.
      DamagedFile: the file is truncated, altered or of another kind, or no regular file.
    """
    try:
        with open_regular(path) as file:
            content = file.read()
    except OSError as error:
        if error.errno in (errno.EISDIR, errno.ELOOP, errno.EINVAL, errno.ENXIO):
            raise DamagedFile(f"{path} is damaged ({error.strerror})") from None
        raise
    try:
        with warnings.catch_warnings(action="ignore"), np.load(io.BytesIO(content), allow_pickle=False) as stored:
            arrays = {name: stored[name] for name in stored.files}
        intact = arrays.pop(CHECKSUM).tobytes() == _checksum(arrays)
    except Exception as error:  # damage can surface anywhere in the reader, which may quote all of the file
        raise DamagedFile(f"{path} is damaged ({str(error)[:SHOWN]})") from None
    if not intact:
        raise DamagedFile(f"{path} is damaged (its checksum does not match)")
    return arrays


def _checksum(arrays: Mapping[str, np.ndarray]) -> bytes:
    return arrays_checksum(
        {name: (written(array.dtype), array.shape, [array.tobytes()]) for name, array in arrays.items()}
    )


def written(dtype: np.dtype) -> str:
    """A type as NumPy reads it from a file: types that NumPy has not are bytes there.

    >>> import ml_dtypes
    >>> written(np.dtype(np.float32)), written(np.dtype(ml_dtypes.bfloat16))
    ('<f4', '|V2')
    """
    return np.dtype(dtype.str).str


def arrays_checksum(arrays: Mapping[str, tuple[str, tuple[int, ...], Iterable[bytes]]]) -> bytes:
    """The checksum of `write_arrays`: a SHA-256 over name, type as NumPy writes it, shape and bytes of each array."""
    digest = hashlib.sha256()
    for name in sorted(arrays):
        kind, shape, content = arrays[name]
        digest.update(f"{name} {kind} {shape or (1,)} ".encode())  # one number counts as an array of one
        for piece in content:
            digest.update(piece)
    return digest.digest()
