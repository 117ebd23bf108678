"""HDF5, as Keras and others write it: datasets of numbers, named by their paths.  Needs h5py.

A dataset that lies in one run of bytes is altered where it lies.  Of one that is stored in chunks, h5py
writes the chunks that change anew, with their compression and checksums.
"""

import pathlib
import types
from collections.abc import Iterator
from typing import Any, BinaryIO

import ml_dtypes
import numpy as np

from ..machine.extras import import_extra
from .checkpoint import Altered, blocks, is_number, reading
from .in_place import InPlace, Region

OPAQUE = np.dtype("V2")


class Hdf5(InPlace):
    """A file of HDF5.

    Attributes:
      scattered: datasets that are stored in chunks, which only h5py reads.
    """

    format = "HDF5"

    def __init__(
        self, path: pathlib.Path, regions: dict[str, Region], scattered: frozenset[str], others: tuple[str, ...]
    ) -> None:
        super().__init__(path, regions, others)
        self.scattered = scattered

    def words(self, name: str, index: np.ndarray) -> np.ndarray:
        if name not in self.scattered:
            return super().words(name, index)
        region = self.regions[name]
        with reading(self.path, self.format), _h5py(self.path).File(self.path) as file:
            found = [file[name][place] for place in _coordinates(index, region)]
        return np.array(found, region.described.dtype).view(region.described.word)

    def pieces(self, name: str) -> Iterator[np.ndarray]:
        if name not in self.scattered:
            yield from super().pieces(name)
            return
        described = self.arrays[name]
        with reading(self.path, self.format), _h5py(self.path).File(self.path) as file:
            for rows in blocks(described):
                found = file[name][rows].astype(described.dtype)
                yield np.ascontiguousarray(found).view(described.word).reshape(-1)

    def replace(self, file: BinaryIO, name: str, change: Altered) -> None:
        if name not in self.scattered:
            super().replace(file, name, change)
            return
        region, values = self.regions[name], change.after.view(self.arrays[name].dtype)
        with reading(self.path, self.format), _h5py(self.path).File(file, "r+") as altered:
            dataset = altered[name]
            for place, value in zip(_coordinates(change.places, region), values, strict=True):
                dataset[place] = value


def open_hdf5(path: pathlib.Path) -> Hdf5:
    """Open a file of HDF5; names, types and places of its datasets are read.

    Raises:
      InputError: it is damaged, or h5py is not installed.
    """
    regions: dict[str, Region] = {}
    scattered: list[str] = []
    others: list[str] = []
    size = path.stat().st_size
    h5py = _h5py(path)
    with reading(path, Hdf5.format), h5py.File(path) as file:

        def visit(name: str, item: Any) -> None:
            if not isinstance(item, h5py.Dataset):
                return
            offset, dtype = item.id.get_offset(), item.dtype
            if dtype == OPAQUE and item.attrs.get("dtype") == "bfloat16" and offset is not None:
                dtype = np.dtype(ml_dtypes.bfloat16)  # as Keras writes it
            stored = item.id.get_type().get_size()  # h5py reads types that NumPy lacks as wider ones
            plain = item.shape is not None and not item.is_virtual and not item.external
            if not plain or not is_number(dtype) or stored != dtype.itemsize:
                others.append(name)
                return
            region = regions[name] = Region(offset or 0, item.shape, dtype)
            if offset is None and region.described.size:
                scattered.append(name)
            elif region.end > size:
                raise ValueError(f"{name} reaches beyond the end of the file")

        file.visititems(visit)
    return Hdf5(path, regions, frozenset(scattered), tuple(others))


def _h5py(path: pathlib.Path) -> types.ModuleType:
    return import_extra("h5py", "checkpoints", "files of HDF5", path)


def _coordinates(index: np.ndarray, region: Region) -> list[tuple[int, ...]]:
    return [tuple(map(int, place)) for place in zip(*np.unravel_index(index, region.shape), strict=True)]
