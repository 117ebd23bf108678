"""MLflow's file store: one file per metric, of lines `TIMESTAMP VALUE STEP`, under `metrics/` of a run's folder."""

import pathlib
import re

from ..machine.errors import InputError
from ..machine.reading import SHOWN
from .cells import Cell
from .source import Source
from .table import LogTable

NAME = "MLflow metrics"
LINE = re.compile(r"([0-9]{10,16})\s+(\S+)\s+(-?[0-9]{1,15})")
MOST = 10_000  # files of a folder


def fits(source: Source) -> bool:
    """Whether it is a file of such lines, or a folder that holds such files."""
    if not source.is_folder:
        return bool(source.beginning) and LINE.fullmatch(source.beginning[0]) is not None
    return bool(_folders(source.path)) or any(
        LINE.fullmatch(line) for file in _files(source.path)[:3] for line in Source(file).beginning[:1]
    )


def _folders(path: pathlib.Path) -> list[pathlib.Path]:
    """The folders `metrics` of the runs in a folder, or the folder's own."""
    found = (path / "metrics", *path.glob("*/metrics"), *path.glob("*/*/metrics"))
    return sorted(each for each in found if each.is_dir())


def _files(path: pathlib.Path) -> list[pathlib.Path]:
    found = sorted(each for each in path.rglob("*") if each.is_file() and not each.name.startswith("."))
    if len(found) > MOST:
        raise InputError(f"has {len(found)} files; expected the folder of one run of MLflow", path)
    return found


def read(source: Source) -> LogTable:
    """The table: of one metric, or of all of a run.

    Raises:
      InputError: a line is none of MLflow's, or the folder has several runs.
    """
    root = source.path
    if source.is_folder:
        folders = _folders(root)
        if len(folders) > 1:
            runs = ", ".join(folder.parent.name for folder in folders[:3])
            raise InputError(f"holds {len(folders)} runs ({runs} …); expected the folder of one", root)
        root = folders[0] if folders else root
        files = _files(root)
    else:
        files = [root]
    rows: list[tuple[int, list[Cell]]] = []
    for file in files:
        name = file.relative_to(root).as_posix() if file != root else file.name
        for line, text in Source(file).lines():
            match = LINE.fullmatch(text)
            if not match:
                raise InputError(f"{text[:SHOWN]!r}; expected TIMESTAMP VALUE STEP, as MLflow writes it", file, line)
            rows.append((line, [match[3], name, match[2], match[1]]))
    names = ("step", "metric", "value", "timestamp")
    return LogTable(NAME, names, rows, "step", "timestamp", "metric", "value")
