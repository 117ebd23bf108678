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
from ..machine.files import whole_folder
from .checkpoint import Changes, Checkpoint, Described, blocks, is_number, reading

METADATA = "_METADATA"
ITEM = "default"  # where Orbax's CheckpointManager puts the tree of a step
NO_ARRAYS = ("string", "None", "Dict", "List", "empty")  # begin the kinds of leaves without numbers


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
        self._stored, others = {}, []
        for entry in known["tree_metadata"].values():
            keys = [str(part["key"]) for part in entry["key_metadata"]]
            if any(not key or "/" in key or key in (".", "..") for key in keys):
                raise ValueError(f"a leaf is named {keys}")
            if str(entry["value_metadata"]["value_type"]).startswith(NO_ARRAYS):
                others.append("/".join(keys))
            else:
                self._stored["/".join(keys)] = ".".join(keys)
        self.arrays, kept = {}, {}
        for name, stored in self._stored.items():
            array = self._open(tree, stored)
            dtype = array.dtype.numpy_dtype
            if is_number(dtype):
                self.arrays[name], kept[name] = Described(tuple(array.shape), dtype), array
            else:
                others.append(name)
        self._opened, self.others = kept, tuple(others)

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
        for rows in blocks(described):
            with reading(self.path, self.format):
                found = array[rows].read().result()
            yield np.ascontiguousarray(found).view(described.word).reshape(-1)

    def write(self, out: pathlib.Path, changes: Changes) -> None:
        """As `Checkpoint.write`; the folder is copied, and TensorStore writes what changes into the copy."""

        def fill(folder: pathlib.Path) -> None:
            shutil.copytree(self.path, folder, dirs_exist_ok=True, symlinks=True)
            tree = folder / self.tree.relative_to(self.path)
            for name, change in changes.items():
                described, array = self.arrays[name], self._open(tree, self._stored[name])
                values = change.after.view(described.dtype)
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
