"""HDF5, as Keras and others write it: datasets of numbers, named by their paths.  Needs h5py.

A dataset that lies in one run of bytes is altered where it lies.  Of others, stored in chunks, in their headers or
not at all yet, h5py writes what changes, with its compression and checksums.
"""

import math
import pathlib
import types
from collections.abc import Iterator
from typing import Any, BinaryIO

import ml_dtypes
import numpy as np

from ..machine.extras import import_extra
from .checkpoint import Altered, Block, Described, Raw, blocks, is_number, reading
from .in_place import BYTES, InPlace, Region

OPAQUE = np.dtype("V2")
CACHE = 1 << 26  # bytes of chunks that stay decompressed, at least
CHUNKS = 1_000_003  # places for chunks that stay decompressed; a prime number, as HDF5 advises
LARGEST_CHUNK = 1 << 30  # bytes, which are in memory together
LARGEST_RATIO = 1032  # of what DEFLATE decompresses; so a small file cannot claim to hold any number of elements


class Hdf5(InPlace):
    """A file of HDF5.

    Attributes:
      scattered: datasets that do not lie in one run of bytes, which only h5py reads; and how h5py calls them, in
        bytes where a name is no text.
    """

    format = "HDF5"

    def __init__(
        self, path: pathlib.Path, regions: dict[str, Region], scattered: dict[str, str | bytes], raw: dict[str, Raw]
    ) -> None:
        super().__init__(path, regions, raw)
        self.scattered = scattered

    def words(self, name: str, index: np.ndarray) -> np.ndarray:
        if name not in self.scattered:
            return super().words(name, index)
        described = self.arrays[name]
        words = np.empty(len(index), described.word)
        with reading(self.path, self.format), self._opened() as file:
            for slab, which, places in _slabs(file[self.scattered[name]], index):
                words[which] = _native(file[self.scattered[name]][slab], described)[places]
        return words

    def pieces(self, name: str) -> Iterator[np.ndarray]:
        if name not in self.scattered:
            yield from super().pieces(name)
            return
        described = self.arrays[name]
        with reading(self.path, self.format), self._opened(name) as file:
            dataset = file[self.scattered[name]]
            for part in blocks(described):
                yield _native(dataset[part], described).reshape(-1)

    def content(self, name: str) -> Iterator[bytes]:
        """As `Checkpoint.content`; h5py converts nothing, so that types that NumPy lacks keep their bits."""
        if name not in self.scattered:
            yield from super().content(name)
            return
        with reading(self.path, self.format), self._opened(name) as file:
            stored = file[self.scattered[name]].id
            space, shape = stored.get_space(), stored.shape
            for part in blocks(Described(shape, np.dtype(f"V{stored.get_type().get_size()}"))):
                begins = tuple(one if isinstance(one, int) else one.start for one in part)
                counts = tuple(1 if isinstance(one, int) else one.stop - one.start for one in part)
                if begins:
                    begins += (0,) * (len(shape) - len(begins))
                    counts += shape[len(counts) :]
                    space.select_hyperslab(begins, counts)
                found = np.empty(counts, f"V{stored.get_type().get_size()}")
                memory = _h5py(self.path).h5s.create_simple(counts) if begins else space
                stored.read(memory, space, found, stored.get_type())
                yield found.tobytes()

    def replace(self, file: BinaryIO, name: str, change: Altered) -> None:
        if name not in self.scattered:
            super().replace(file, name, change)
            return
        with reading(self.path, self.format), _h5py(self.path).File(file, "r+") as altered:
            dataset = altered[self.scattered[name]]
            for slab, which, places in _slabs(dataset, change.places):
                found = np.array(dataset[slab])  # a dataset of no dimensions gives a number
                values = change.after[which].view(self.arrays[name].dtype)
                values = values.view(OPAQUE) if found.dtype == OPAQUE else values
                found[places] = values.reshape(np.shape(found[places]))
                dataset[slab] = found

    def _opened(self, name: str | None = None) -> Any:
        """The file; to read all of a dataset in its order, with room for the chunks that this passes again and again.

        HDF5 keeps no chunk that is larger than the room, and would decompress it for each piece.
        """
        h5py = _h5py(self.path)
        room = CACHE
        if name is not None:
            with h5py.File(self.path) as file:
                room = max(room, min(_beside(file[self.scattered[name]]), LARGEST_CHUNK))
        return h5py.File(self.path, rdcc_nbytes=room, rdcc_w0=1.0, rdcc_nslots=CHUNKS)


def open_hdf5(path: pathlib.Path) -> Hdf5:
    """Open a file of HDF5; names, types and places of its datasets are read.

    Raises:
      InputError: it is damaged, or h5py is not installed.
    """
    regions: dict[str, Region] = {}
    scattered: dict[str, str | bytes] = {}
    raw: dict[str, Raw] = {}
    size = path.stat().st_size
    h5py = _h5py(path)
    with reading(path, Hdf5.format), h5py.File(path) as file:

        def visit(key: str | bytes, item: Any) -> None:
            if not isinstance(item, h5py.Dataset):
                return
            name = key if isinstance(key, str) else key.decode(errors="backslashreplace")
            if (left := _left_out(item, size)) is not None:
                raw[name] = left
                if not left.compared or not left.elements:
                    regions[name] = Region(0, (0,), BYTES)
                    return
            offset, shape, stored = item.id.get_offset(), item.shape, item.id.get_type().get_size()
            if left is not None:
                region = Region(offset or 0, (math.prod(shape) * stored,), BYTES)
            else:
                region = Region(offset or 0, shape, np.dtype(ml_dtypes.bfloat16) if _keras(item) else item.dtype)
            regions[name] = region
            if offset is None and region.described.size:
                scattered[name] = key
            elif region.end > size:
                raise ValueError(f"{name} reaches beyond the end of the file")

        file.visititems(visit)
    return Hdf5(path, regions, scattered, raw)


def _left_out(item: Any, size: int) -> Raw | None:
    """What a dataset is, in a file of so many bytes, if it cannot be altered."""
    if item.shape is None:
        return Raw("no elements", 0, 8)
    stored, elements = item.id.get_type().get_size(), math.prod(item.shape)
    if item.is_virtual or item.external:
        return Raw(f"{item.dtype.name} {list(item.shape)} in other files", elements, compared=False)
    chunk = math.prod(item.chunks or ()) * stored
    if item.id.get_offset() is None and (elements * stored > 2**20 + LARGEST_RATIO * size or chunk > LARGEST_CHUNK):
        return Raw(f"{item.dtype.name} {list(item.shape)}, more than its file holds", elements, compared=False)
    if item.dtype.hasobject:  # strings of any length, references: pointers to what is elsewhere in the file
        return Raw(f"objects {list(item.shape)}", elements, compared=False)
    if stored != item.dtype.itemsize:  # h5py reads types that NumPy lacks as wider ones
        return Raw(f"{stored} bytes, read as {item.dtype.name}, {list(item.shape)}", elements, 8 * stored)
    return None if _keras(item) or is_number(item.dtype) else Raw.of(item.shape, item.dtype)


def _beside(dataset: Any) -> int:
    """Bytes of the chunks that lie beside one another in a dataset, with the same place on its first axis."""
    if not dataset.chunks:
        return 0
    across = zip(dataset.shape[1:], dataset.chunks[1:], strict=True)
    rows = math.prod(-(-n // side) * side for n, side in across)
    return int(dataset.chunks[0] * rows * dataset.id.get_type().get_size())


def _keras(item: Any) -> bool:
    """Whether a dataset is of bfloat16 as Keras writes it."""
    return bool(item.dtype == OPAQUE and item.attrs.get("dtype") == "bfloat16")


def _native(found: Any, described: Described) -> np.ndarray:
    """The words of what h5py has read."""
    array = np.asarray(found)
    array = array.view(described.dtype) if array.dtype == OPAQUE else array.astype(described.dtype)
    return np.ascontiguousarray(array).view(described.word).reshape(array.shape)


def _slabs(dataset: Any, index: np.ndarray) -> Iterator[tuple[Block, np.ndarray, tuple[np.ndarray, ...]]]:
    """The parts of a dataset that are read together and have some of its elements: each chunk is read once.

    Args:
      index: int64 [n], row-major positions.

    Returns:
      Of each part: where it is, which of `index` lie in it, and their places in it.
    """
    shape = np.array(dataset.shape, np.int64)
    if not len(shape):
        if len(index):
            yield (), np.arange(len(index)), ()
        return
    if dataset.chunks is None:  # rows of what lies in a header, or nowhere yet
        rows = [1] * len(shape)
        rows[-1] = int(shape[-1])
    side = np.array(dataset.chunks or rows, np.int64)
    places = np.stack(np.unravel_index(index, dataset.shape), 1)
    number = np.ravel_multi_index(tuple((places // side).T), tuple(-(-shape // side)))
    order = np.argsort(number, kind="stable")
    for which in np.split(order, np.flatnonzero(np.diff(number[order])) + 1):
        if len(which):
            begin = places[which[0]] // side * side
            end = np.minimum(begin + side, shape)
            slab = tuple(slice(int(a), int(b)) for a, b in zip(begin, end, strict=True))
            yield slab, which, tuple((places[which] - begin).T)


def _h5py(path: pathlib.Path) -> types.ModuleType:
    return import_extra("h5py", "checkpoints", "files of HDF5", path)
