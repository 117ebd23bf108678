"""A folder of safetensors with an index of which file has which array, as large models are saved."""

import json
import pathlib
import shutil
from collections.abc import Iterator, Mapping

import numpy as np

from ..machine.errors import InputError
from ..machine.files import read_bounded, whole_folder
from .checkpoint import Changes, Checkpoint, reading
from .safetensors import Safetensors, open_safetensors

INDEX = "*.safetensors.index.json"
LARGEST_INDEX = 1 << 26  # bytes


class Sharded(Checkpoint):
    """A folder of safetensors.

    Attributes:
      files: of its arrays, and of what is none, by name.
    """

    format = "safetensors in several files"

    def __init__(self, path: pathlib.Path, files: Mapping[str, Safetensors]) -> None:
        self.path, self.files = path, files
        self.arrays = {name: file.arrays[name] for name, file in files.items() if name in file.arrays}
        self.raw = {name: file.raw[name] for name, file in files.items() if name in file.raw}

    def words(self, name: str, index: np.ndarray) -> np.ndarray:
        return self.files[name].words(name, index)

    def pieces(self, name: str) -> Iterator[np.ndarray]:
        return self.files[name].pieces(name)

    def content(self, name: str) -> Iterator[bytes]:
        return self.files[name].content(name)

    def write(self, out: pathlib.Path, changes: Changes) -> None:
        """As `Checkpoint.write`; what else is in the folder is copied, and what links lead to."""

        def fill(folder: pathlib.Path) -> None:
            altered = {self.files[name].path for name in changes}
            for path in sorted(self.path.iterdir()):
                if path in altered:
                    of_file = {name: one for name, one in changes.items() if self.files[name].path == path}
                    next(self.files[name] for name in of_file).write(folder / path.name, of_file)
                elif path.is_dir():
                    shutil.copytree(path, folder / path.name)
                else:
                    shutil.copyfile(path, folder / path.name)

        whole_folder(out, fill)


def index_of(path: pathlib.Path) -> pathlib.Path | None:
    """The index in a folder; None where it has none.

    Raises:
      InputError: it has several.
    """
    found = sorted(path.glob(INDEX))
    if len(found) > 1:
        named = ", ".join(one.name for one in found)
        remedy = "copy the checkpoint that you mean into a folder of its own"
        raise InputError(f"has several indexes ({named}); expected one: {remedy}", path)
    return next(iter(found), None)


def open_sharded(path: pathlib.Path) -> Sharded:
    """Open a folder of safetensors; the index and the headers are read.

    Raises:
      InputError: a file is missing or damaged, or has not the arrays that the index says.
    """
    index = index_of(path)
    assert index is not None
    with reading(index, Sharded.format):
        places = json.loads(read_bounded(index, LARGEST_INDEX).decode())["weight_map"]
        if any(not isinstance(one, str) or pathlib.PurePath(one).name != one for one in places.values()):
            raise ValueError("it names what is no file in its folder")
    opened = {}
    for file in sorted(set(places.values())):
        if not (path / file).is_file():
            missing = next(name for name, one in places.items() if one == file)
            raise InputError(f"is missing, in which {index.name} says that {missing} is", path / file)
        opened[file] = open_safetensors(path / file)
    with reading(index, Sharded.format):
        for name, file in places.items():
            if name not in opened[file].regions:
                raise ValueError(f"{name} is not in {file}")
        for file, one in opened.items():
            for name in one.regions:
                if places.get(name) != file:
                    raise ValueError(f"{name} of {file} is not in it")
    return Sharded(path, {name: opened[file] for name, file in places.items()})
