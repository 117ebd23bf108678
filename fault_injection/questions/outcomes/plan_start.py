"""`[start]` of a plan: altered checkpoints that are there, of which each is a fault model of its own."""

import pathlib
from collections.abc import Callable, Mapping
from typing import Any

from ...campaign.plan_reader import LONGEST, Reader, shown_value
from ...checkpoints.flips import AlteredBits, flips_between, flips_of_log, loader_counts, restart_site, saved_arrays
from ...checkpoints.loaded import restart_checkpoint
from ...checkpoints.log import read_mapping
from ...machine.errors import InputError
from ...models.bits import NewBits
from ...seam.program import Program
from ...seam.workload import Workload
from .plan import ALTERED, Model

START = ("epochs", "logs", "mapping", "checkpoints", "saved", "loaders", "seed")


def read_start(start: Mapping[str, Any], workload: Workload, read: Reader) -> tuple[tuple[Model, ...], tuple[str, ...]]:
    """The alterations that a plan lists, as models, and what they strike: one name for each count of loaders.

    Raises:
      InputError: a file is missing or does not fit the workload, or a key has a wrong value.
    """
    kinds = [key for key in ("logs", "checkpoints") if key in start]
    if len(kinds) != 1:
        raise read.wrong("start", "expected either logs, or checkpoints (and saved)")
    for key, belongs_to in (("mapping", "logs"), ("saved", "checkpoints")):
        if key in start and belongs_to not in start:
            raise read.wrong(f"start.{key}", f"belongs to {belongs_to}")
    program, key = workload.program(frozenset()), f"start.{kinds[0]}"
    paths = _files(start, key, read)
    reader = (_of_logs if kinds == ["logs"] else _of_checkpoints)(start, program, read)
    found = {path: reader(path) for path in paths}
    formats = {flips.format: path for path, flips in found.items()}
    if len(formats) > 1:
        named = ", ".join(f"{path.name} is in {format}" for format, path in formats.items())
        raise read.wrong(key, f"{named}; expected one format")
    counts = read.list_of(start, "start.loaders", [1], int, "how many load the altered checkpoint, such as [1, 4]")
    possible = loader_counts(workload)
    if len(set(counts)) < len(counts) or not set(counts) <= set(possible):
        raise read.wrong("start.loaders", f"{shown_value(counts)}; expected distinct counts of {shown_value(possible)}")
    path, flips = next(iter(found.items()))
    sites = tuple(restart_site(workload, flips.format, count, path) for count in counts)
    return tuple(_model(path.name, flips.bits) for path, flips in found.items()), sites


def _model(name: str, bits: NewBits) -> Model:
    options = (("index", tuple(bits.index.tolist())), ("flip", tuple(bits.flip.tolist())))
    return Model(name=name, weight=1.0, values=ALTERED, options=options)


def _of_logs(start: Mapping[str, Any], program: Program, read: Reader) -> Callable[[pathlib.Path], AlteredBits]:
    mapping = read_mapping(_file(start, "start.mapping", read)) if "mapping" in start else {}
    return lambda path: flips_of_log(program, path, mapping)


def _of_checkpoints(start: Mapping[str, Any], program: Program, read: Reader) -> Callable[[pathlib.Path], AlteredBits]:
    if "saved" not in start:
        raise read.wrong("start", "checkpoints need saved = 'FILE', from which they were altered")
    before = restart_checkpoint(program, _file(start, "start.saved", read))
    arrays = saved_arrays(before)
    return lambda path: flips_between(program, arrays, restart_checkpoint(program, path), str(before.path))


def _folder(read: Reader) -> pathlib.Path:
    return pathlib.Path(str(read.path)).parent


def _file(start: Mapping[str, Any], key: str, read: Reader) -> pathlib.Path:
    name = start[key.rpartition(".")[2]]
    if not isinstance(name, str):
        raise read.wrong(key, f"{shown_value(name)}; expected the name of a file")
    return _folder(read) / name


def _files(start: Mapping[str, Any], key: str, read: Reader) -> list[pathlib.Path]:
    """Files of names or patterns, from the folder of the plan."""
    found: list[pathlib.Path] = []
    for pattern in read.list_of(start, key, None, str, "names or patterns of files, such as 'altered/*.npz'"):
        try:
            fitting = sorted(_folder(read).glob(pattern)) if len(pattern) <= LONGEST else []
        except (ValueError, NotImplementedError):  # an empty pattern, or one from the root
            fitting = [pathlib.Path(pattern)] if pattern and pathlib.Path(pattern).exists() else []
        if not fitting:
            raise read.wrong(key, f"no file fits {pattern[:60]!r}, seen from {_folder(read)}/")
        found += [path for path in fitting if path not in found]
    names = [path.name for path in found]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise InputError(f"{key}: two files are called {twice!r}; reports tell them apart by their names", read.path)
    return found
