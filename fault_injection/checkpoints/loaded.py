"""Checkpoints that a training restarts from: arrays by the names of its leaves, or what its own loader reads."""

import pathlib
import zipfile
from collections.abc import Iterator

import jax
import numpy as np

from ..machine.errors import InputError
from ..machine.files import CHECKSUM
from ..seam.program import Program
from ..seam.state_spec import StateSpec
from .checkpoint import PIECE, Changes, Checkpoint, Described, Raw, is_number
from .formats import open_checkpoint


class LoadedCheckpoint(Checkpoint):
    """What a training has loaded of a checkpoint: its state's arrays, by the names of its leaves.

    Args:
      leaves: the arrays, in the order of the state.
    """

    format = "the training's own form"

    def __init__(self, path: pathlib.Path, state: StateSpec, leaves: list[np.ndarray]) -> None:
        self.path = path
        self._leaves = dict(zip(state.names, leaves, strict=True))
        numbers = {name: leaf for name, leaf in self._leaves.items() if is_number(leaf.dtype)}
        self.arrays = {name: Described(leaf.shape, leaf.dtype) for name, leaf in numbers.items()}
        self.raw = {name: Raw.of(leaf.shape, leaf.dtype) for name, leaf in self._leaves.items() if name not in numbers}

    def words(self, name: str, index: np.ndarray) -> np.ndarray:
        return self._flat(name)[index]

    def pieces(self, name: str) -> Iterator[np.ndarray]:
        flat = self._flat(name)
        step = PIECE // flat.itemsize
        yield from np.split(flat, range(step, flat.size, step))

    def content(self, name: str) -> Iterator[bytes]:
        yield self._leaves[name].tobytes()

    def write(self, out: pathlib.Path, changes: Changes) -> None:
        raise InputError("is in the training's own form, which only the training writes", self.path)

    def _flat(self, name: str) -> np.ndarray:
        return np.ascontiguousarray(self._leaves[name]).reshape(-1).view(self.arrays[name].word)


def restart_checkpoint(program: Program, path: pathlib.Path) -> Checkpoint:
    """Open a checkpoint that a training restarts from.

    Where a training has a loader of its own, the loader reads every checkpoint but those that `golden --save` wrote.

    Raises:
      InputError: there is none, it cannot be loaded, or it is none of this training.
    """
    load = program.extras.load
    if load is None or _ours(path):
        return open_checkpoint(path)
    if not path.exists():
        raise InputError("no such file or folder", path)
    return LoadedCheckpoint(path, program.state, list(map(np.asarray, jax.tree.leaves(load(path)))))


def _ours(path: pathlib.Path) -> bool:
    """Whether a file has the checksum of `machine.files.write_arrays`, and so the names of leaves."""
    if not path.is_file() or not zipfile.is_zipfile(path):
        return False
    try:
        with zipfile.ZipFile(path) as archive:
            return f"{CHECKSUM}.npy" in archive.namelist()
    except zipfile.BadZipFile:
        return False
