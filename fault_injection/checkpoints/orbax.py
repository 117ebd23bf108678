"""Orbax: a folder with a file of metadata and one array of TensorStore for each leaf.  Needs orbax-checkpoint.

Arrays lie in a database (OCDBT) or in folders of their own; both are read and altered through TensorStore.
"""

import json
import pathlib
import shutil
import types
from collections.abc import Iterator
from typing import Any

import numpy as np

from ..machine.extras import import_extra
from ..machine.files import read_bounded, whole_folder
from .checkpoint import Changes, Checkpoint, Described, Raw, blocks, is_number, reading, unique_name

METADATA = "_METADATA"
ITEM = "default"  # where Orbax's CheckpointManager puts the tree of a step
NOTHING = ("None", "Dict", "List", "empty")  # begin the kinds of leaves in which there is nothing
STRINGS = "_strings.json"


class Orbax(Checkpoint):
    """A folder of Orbax.

    Attributes:
      tree: the folder of the tree, in or at `path`.
    """

    format = "Orbax"

    def __init__(self, tensorstore: types.ModuleType, path: pathlib.Path, tree: pathlib.Path) -> None:
        self._tensorstore, self.path, self.tree = tensorstore, path, tree
        known = json.loads((tree / METADATA).read_bytes())
        self._ocdbt, self._driver = bool(known["use_ocdbt"]), "zarr3" if known["use_zarr3"] else "zarr"
        self._stored: dict[str, str] = {}
        self._opened: dict[str, Any] = {}
        self.arrays, self.raw, self._strings = {}, {}, {}
        strings = self._read_strings()
        for entry in known["tree_metadata"].values():
            keys = [str(part["key"]) for part in entry["key_metadata"]]
            name, stored = unique_name(keys, {**self.arrays, **self.raw}), ".".join(keys)
            if any(part in ("", ".", "..") for part in stored.split("/")) or "" in keys or name in self._stored:
                raise ValueError(f"a leaf is named {keys}")
            self._stored[name] = stored
            kind = str(entry["value_metadata"]["value_type"])
            if kind.startswith("string"):
                self._strings[name] = json.dumps(strings.get(stored)).encode()
                self.raw[name] = Raw("a string", compared=stored in strings)
                continue
            if kind.startswith(NOTHING):
                self._strings[name], self.raw[name] = b"", Raw(f"nothing ({kind})")
                continue
            array = self._opened[name] = self._open(tree, stored)
            shape, dtype = tuple(array.shape), array.dtype.numpy_dtype
            if is_number(dtype):
                self.arrays[name] = Described(shape, dtype)
            else:
                self.raw[name] = Raw.of(shape, dtype)

    def _read_strings(self) -> dict[str, Any]:
        """Leaves that are strings, as Orbax stores them; none where it stores them otherwise."""
        path = self.tree / STRINGS
        found = json.loads(read_bounded(path)) if path.exists() else {}
        if not isinstance(found, dict):
            raise ValueError(f"{STRINGS} holds no object")
        return found

    def _open(self, tree: pathlib.Path, stored: str) -> Any:
        files = {"driver": "ocdbt", "base": f"file://{tree.resolve()}/", "path": f"{stored}/"}
        plain = {"driver": "file", "path": f"{tree.resolve()}/{stored}/"}
        spec = {"driver": self._driver, "kvstore": files if self._ocdbt else plain}
        return self._tensorstore.open(spec, open=True).result()

    def words(self, name: str, index: np.ndarray) -> np.ndarray:
        described = self.arrays[name]
        if not len(index):
            return np.empty(0, described.word)
        with reading(self.path, self.format):
            if not described.shape:
                return np.asarray(self._opened[name].read().result()).view(described.word).reshape(1)[index]
            places = np.unravel_index(index, described.shape)
            return np.asarray(self._opened[name].vindex[places].read().result()).view(described.word)

    def pieces(self, name: str) -> Iterator[np.ndarray]:
        described, array = self.arrays[name], self._opened[name]
        if not described.shape or not described.size:
            yield self.words(name, np.arange(described.size))
            return
        for part in blocks(described):
            with reading(self.path, self.format):
                found = array[part].read().result()
            yield np.ascontiguousarray(found).view(described.word).reshape(-1)

    def content(self, name: str) -> Iterator[bytes]:
        if name in self._strings:
            yield self._strings[name]
            return
        array = self._opened[name]
        for part in blocks(Described(tuple(array.shape), array.dtype.numpy_dtype)):
            with reading(self.path, self.format):
                found = array[part].read().result()
            yield np.ascontiguousarray(found).tobytes()

    def write(self, out: pathlib.Path, changes: Changes) -> None:
        """As `Checkpoint.write`; the folder is copied, and TensorStore writes what changes into the copy."""

        def fill(folder: pathlib.Path) -> None:
            shutil.copytree(self.path, folder, dirs_exist_ok=True)  # with what links lead to, as files
            tree = folder / self.tree.relative_to(self.path)
            for name, change in changes.items():
                described, values = self.arrays[name], change.after.view(self.arrays[name].dtype)
                with reading(self.path, self.format):
                    array = self._open(tree, self._stored[name])
                    if described.shape:
                        array.vindex[np.unravel_index(change.places, described.shape)].write(values).result()
                    elif len(values):
                        array.write(values[0]).result()

        whole_folder(out, fill)


def is_orbax(path: pathlib.Path) -> bool:
    """Whether a folder is one of Orbax, or a step of its CheckpointManager."""
    return (path / METADATA).is_file() or (path / ITEM / METADATA).is_file()


def open_orbax(path: pathlib.Path) -> Orbax:
    """Open a folder of Orbax; metadata alone are read.

    Raises:
      InputError: it is damaged, or orbax-checkpoint is not installed.
    """
    tensorstore = import_extra("tensorstore", "checkpoints", "checkpoints of Orbax", path)
    with reading(path, Orbax.format):
        return Orbax(tensorstore, path, path if (path / METADATA).is_file() else path / ITEM)
