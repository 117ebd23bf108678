"""Keras's own files, `.keras`: an archive that has the weights as a file of HDF5.  It is unpacked to be altered."""

import pathlib
import shutil
import tempfile
import weakref
import zipfile
from collections.abc import Iterator
from typing import BinaryIO

import numpy as np

from ..machine.errors import InputError
from ..machine.files import write_atomically
from .checkpoint import PIECE, Changes, Checkpoint, reading
from .hdf5 import open_hdf5

WEIGHTS = "model.weights.h5"


class Keras(Checkpoint):
    """An archive of Keras; its arrays are those of its weights."""

    format = "Keras"

    def __init__(self, path: pathlib.Path) -> None:
        self.path, self._folder = path, pathlib.Path(tempfile.mkdtemp(prefix="fault_injection_"))
        weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
        weights = self._folder / WEIGHTS
        with zipfile.ZipFile(path) as archive, weights.open("wb") as file:
            if archive.getinfo(WEIGHTS).compress_type != zipfile.ZIP_STORED:
                raise ValueError(f"{WEIGHTS} is compressed, which Keras never does")
            with archive.open(WEIGHTS) as member:
                shutil.copyfileobj(member, file, PIECE)
        self.weights = open_hdf5(weights)
        self.arrays, self.raw = self.weights.arrays, self.weights.raw

    def words(self, name: str, index: np.ndarray) -> np.ndarray:
        return self.weights.words(name, index)

    def pieces(self, name: str) -> Iterator[np.ndarray]:
        return self.weights.pieces(name)

    def content(self, name: str) -> Iterator[bytes]:
        return self.weights.content(name)

    def write(self, out: pathlib.Path, changes: Changes) -> None:
        altered = self._folder / f"altered.{WEIGHTS}"
        self.weights.write(altered, changes)

        def fill(file: BinaryIO) -> None:
            with reading(self.path, self.format), zipfile.ZipFile(self.path) as old, zipfile.ZipFile(file, "w") as new:
                for info in old.infolist():
                    source = altered.open("rb") if info.filename == WEIGHTS else old.open(info)
                    with source, new.open(info, "w", force_zip64=True) as target:
                        shutil.copyfileobj(source, target, PIECE)

        write_atomically(out, fill)


def open_keras(path: pathlib.Path) -> Keras:
    """Open an archive of Keras; its weights are unpacked.

    Raises:
      InputError: it is damaged, or h5py is not installed.
    """
    with reading(path, Keras.format):
        try:
            return Keras(path)
        except InputError as error:  # which names what was unpacked
            raise InputError(str(error).partition(f"{WEIGHTS}: ")[2] or str(error), path) from None


def is_keras(path: pathlib.Path) -> bool:
    """Whether an archive has the weights of a model of Keras."""
    with reading(path, Keras.format), zipfile.ZipFile(path) as archive:
        return WEIGHTS in archive.namelist()
