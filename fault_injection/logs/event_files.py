"""TensorBoard's event files, read by TensorBoard's own package: the extra `logs`.

A folder's files are read in the order of their names, which begin with their time; files of its subfolders, such as
`train` and `validation`, have their tags under the subfolder's name.
"""

import pathlib
from typing import Any

from ..machine.errors import InputError
from ..machine.extras import import_extra
from ..machine.files import open_regular
from .cells import Cell
from .source import Source
from .table import LogTable

NAME = "TensorBoard event files"
NEEDED = ("logs", "event files of TensorBoard")
FRAME = 16  # bytes of a record beside its content: length, and two checksums
MARK, HEAD = b"brain.Event:", 128


def fits(source: Source) -> bool:
    """Whether the file is called or begins as event files do, or the folder holds one."""
    if source.is_folder:
        return bool(_files(source.path))
    if "tfevents" in source.path.name:
        return source.path.is_file()
    try:
        with open_regular(source.path) as file:
            return MARK in file.read(HEAD)
    except (OSError, ValueError):
        return False  # said by the family that opens it


def _files(folder: pathlib.Path) -> list[pathlib.Path]:
    return sorted(path for path in folder.rglob("*tfevents*") if path.is_file())


def read(source: Source) -> LogTable:
    """The table of all scalars.

    Raises:
      InputError: TensorBoard is not installed, or there is no scalar.
    """
    files = _files(source.path) if source.is_folder else [source.path]
    rows: list[tuple[int, list[Cell]]] = []
    notes, others = [], 0
    for file in files:
        before = file.parent.relative_to(source.path).as_posix() if source.is_folder else "."
        found, more, note = _scalars(file, "" if before == "." else f"{before}/")
        rows += [(0, row) for row in found]
        others += more
        notes += [note] if note else []
    if not rows:
        raise InputError(f"no scalar in {len(files)} event file(s); {others} other value(s)", source.path)
    notes += [f"{others} value(s) that are no scalars are left out"] if others else []
    names = ("step", "tag", "value", "wall_time")
    return LogTable(NAME, names, rows, "step", "wall_time", "tag", "value", notes=tuple(notes))


def _scalars(file: pathlib.Path, before: str) -> tuple[list[list[Cell]], int, str]:
    """Rows of one file, how many of its values are no scalars, and what is to be said of it."""
    loader = import_extra("tensorboard.backend.event_processing.event_file_loader", *NEEDED, file)
    event_of = import_extra("tensorboard.compat.proto.event_pb2", *NEEDED, file).Event.FromString
    array_of = import_extra("tensorboard.util.tensor_util", *NEEDED, file).make_ndarray
    broken = import_extra("google.protobuf.message", *NEEDED, file).DecodeError
    rows: list[list[Cell]] = []
    others, read_bytes = 0, 0
    try:
        for record in loader.RawEventFileLoader(str(file)).Load():
            event = event_of(record)
            read_bytes += len(record) + FRAME
            for value in event.summary.value:
                scalar = _scalar(value, array_of)
                if scalar is None:
                    others += 1
                else:
                    rows.append([event.step, before + value.tag, scalar, event.wall_time])
    except (broken, OSError) as error:
        raise InputError(f"no event file, or damaged after {read_bytes:,} bytes ({error})", file) from None
    size = file.stat().st_size
    missing = f"{file.name}: cut off or damaged after {read_bytes:,} of {size:,} bytes; what follows is not read"
    return rows, others, missing if read_bytes < size else ""


def _scalar(value: Any, array_of: Any) -> float | None:
    """The number of a summary's value, None where it is something else."""
    if value.HasField("simple_value"):
        return float(value.simple_value)
    if not value.HasField("tensor"):
        return None
    try:
        array = array_of(value.tensor)
        return float(array.item()) if array.size == 1 and array.dtype.kind in "fiu" else None
    except (TypeError, ValueError, AttributeError):
        return None
