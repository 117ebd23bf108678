"""Trainings of others, imported from where they were fetched; no line of them is changed."""

import contextlib
import importlib
import json
import pathlib
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

FETCHED = pathlib.Path(__file__).parent / "fetched"


def module(folder: str, name: str) -> ModuleType:
    """A module of a fetched folder, which imports its neighbours by their bare names."""
    for other, known in [*sys.modules.items()]:  # another training has a `train`, too
        if str(getattr(known, "__file__", None)).startswith(str(FETCHED)):
            del sys.modules[other]
    with _first_on_the_path(FETCHED / folder):
        return importlib.import_module(name)


def cells(notebook: str, *numbers: int) -> dict[str, Any]:
    """What cells of a fetched notebook define, run one after the other."""
    all_cells = json.loads((FETCHED / notebook).read_text(encoding="utf-8"))["cells"]
    names: dict[str, Any] = {"__name__": pathlib.Path(notebook).stem}
    for number in numbers:
        exec(compile("".join(all_cells[number]["source"]), f"{notebook}, cell {number}", "exec"), names)
    return names


@contextlib.contextmanager
def _first_on_the_path(folder: pathlib.Path) -> Iterator[None]:
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder} is not there: examples/gallery/README.md says how it is fetched")
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))
