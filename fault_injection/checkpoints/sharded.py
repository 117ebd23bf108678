"""A folder of safetensors, or of files of PyTorch, with an index of which file has which array: large models."""

import json
import pathlib
import shutil
from collections.abc import Iterator, Mapping

import numpy as np

from ..machine.errors import InputError
from ..machine.files import read_bounded, whole_folder
from .checkpoint import Changes, Checkpoint, reading
from .in_place import InPlace
from .pytorch import open_pytorch
from .safetensors import open_safetensors

INDEXES = {"*.safetensors.index.json": open_safetensors, "*.bin.index.json": open_pytorch}
FORMAT = "indexed"
LARGEST_INDEX = 1 << 26  # bytes


class Sharded(Checkpoint):
    """A folder of safetensors, or of files of PyTorch.

    Attributes:
      files: of its arrays, and of what is none, by name.
    """

    def __init__(self, path: pathlib.Path, files: Mapping[str, InPlace]) -> None:
        self.path, self.files = path, files
        self.format = f"{next(iter(files.values())).format} in several files" if files else FORMAT
        self.arrays = {name: file.arrays[name] for name, file in files.items() if name in file.arrays}
        self.raw = {name: file.raw[name] for name, file in files.items() if name in file.raw}

    def words(self, name: str, index: np.ndarray) -> np.ndarray:
        return self.files[name].words(name, index)

    def pieces(self, name: str) -> Iterator[np.ndarray]:
        return self.files[name].pieces(name)

    def content(self, name: str) -> Iterator[bytes]:
        return self.files[name].content(name)

    def repeated(self, names: Mapping[str, object]) -> Mapping[str, np.ndarray | None]:
        found: dict[str, np.ndarray | None] = {}
        for file in self._distinct():
            found |= file.repeated({name: None for name in names if self.files[name] is file})
        return found

    def sharing(self, changes: Changes) -> Mapping[str, tuple[str, ...]]:
        found: dict[str, tuple[str, ...]] = {}
        for file in self._distinct():
            found |= file.sharing({name: one for name, one in changes.items() if self.files[name] is file})
        return found

    def struck_twice(self, changes: Changes) -> str | None:
        each = (
            file.struck_twice({name: one for name, one in changes.items() if self.files[name] is file})
            for file in self._distinct()
        )
        return next((one for one in each if one is not None), None)

    def _distinct(self) -> list[InPlace]:
        return list({file.path: file for file in self.files.values()}.values())

    def write(self, out: pathlib.Path, changes: Changes) -> None:
        """As `Checkpoint.write`; what else is in the folder is copied, and what links lead to."""
        whole_folder(out, lambda folder: self.fill(folder, changes))

    def fill(self, folder: pathlib.Path, changes: Changes) -> None:
        """Write the altered copies, and what else there is, into an empty folder."""
        altered = {self.files[name].path for name in changes}
        for path in sorted(self.path.iterdir()):
            if path in altered:
                of_file = {name: one for name, one in changes.items() if self.files[name].path == path}
                next(self.files[name] for name in of_file).write(folder / path.name, of_file)
            elif path.is_dir():
                shutil.copytree(path, folder / path.name)
            else:
                shutil.copyfile(path, folder / path.name)


def index_of(path: pathlib.Path) -> pathlib.Path | None:
    """The index in a folder; None where it has none.

    Raises:
      InputError: it has several.
    """
    found = sorted(one for pattern in INDEXES for one in path.glob(pattern))
    if len(found) > 1:
        named = ", ".join(one.name for one in found)
        remedy = "name the one that you mean"
        raise InputError(f"has several indexes ({named}); expected one: {remedy}", path)
    return next(iter(found), None)


def is_index(path: pathlib.Path) -> bool:
    """Whether a file is named as an index is."""
    return any(map(path.match, INDEXES))


def open_sharded(path: pathlib.Path, index: pathlib.Path) -> Sharded:
    """Open a folder of several files; the index and the headers are read.

    Args:
      index: which of its files says where each array is.

    Raises:
      InputError: a file is missing or damaged, or has not the arrays that the index says.
    """
    opener = next(opener for pattern, opener in INDEXES.items() if index.match(pattern))
    with reading(index, FORMAT):
        places = json.loads(read_bounded(index, LARGEST_INDEX).decode())["weight_map"]
        if any(not isinstance(one, str) or pathlib.PurePath(one).name != one for one in places.values()):
            raise ValueError("it names what is no file in its folder")
    opened: dict[str, InPlace] = {}
    for file in sorted(set(places.values())):
        if not (path / file).is_file():
            missing = next(name for name, one in places.items() if one == file)
            raise InputError(f"is missing, in which {index.name} says that {missing} is", path / file)
        opened[file] = opener(path / file)
    with reading(index, FORMAT):
        for name, file in places.items():
            if name not in opened[file].regions:
                raise ValueError(f"{name} is not in {file}")
        for file, one in opened.items():
            for name in one.regions:
                if places.get(name) != file:
                    raise ValueError(f"{name} of {file} is not in it")
    if not places:
        raise InputError('names no array; expected {"weight_map": {array: file, …}}', index)
    return Sharded(path, {name: opened[file] for name, file in places.items()})
