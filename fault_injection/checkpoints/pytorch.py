"""PyTorch's own files, `.pt`, `.pth`, `.bin`: an archive with a pickle, and a stored member for each storage.

The pickle is read as data and never executed.  Elements are replaced where they lie, and the CRC-32 of the member
follows; every other byte of the file stays.
"""

import pathlib
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from typing import BinaryIO

import numpy as np

from ..data.plain_pickle import read_as_data
from ..machine.errors import InputError
from .checkpoint import PIECE, Changes, Raw, is_number, reading, unique_name
from .in_place import BYTES, InPlace, Region
from .overlaps import repeated, sharing, struck_twice
from .stored_zip import Archive, Flips, flips_of
from .torch_pickle import KNOWN, Plain, Storage, Tensor, as_text, leaves

FORMAT = "PyTorch"
PICKLE = "data.pkl"
LARGEST_PICKLE = 1 << 28  # bytes
FEWEST_LEAVES = 1000  # that any pickle may have; a larger one may have as many as it has bytes
# `torch.save` before 1.6, or with `_use_new_zipfile_serialization=False`: a pickled number, with which it begins.
LEGACY = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."
ORDERS = {b"little": "little", b"big": "big"}


class PyTorch(InPlace):
    """A file of `torch.save`.

    Attributes:
      archive: the members.
      storage_of: the member in which each array lies, by the array's name.
      checksums: whether the archive has the CRC-32 of its members, which PyTorch leaves out on request.
      texts: what is no tensor, as text, by name.
    """

    def __init__(
        self,
        archive: Archive,
        order: str,
        regions: Mapping[str, Region],
        raw: Mapping[str, Raw],
        storage_of: Mapping[str, zipfile.ZipInfo],
        texts: Mapping[str, bytes],
        checksums: bool,
    ) -> None:
        super().__init__(archive.path, regions, raw)
        self.format = f"{FORMAT}, {order}-endian"
        self.archive, self.storage_of, self.texts, self.checksums = archive, storage_of, texts, checksums

    def content(self, name: str) -> Iterator[bytes]:
        if name in self.texts:
            yield self.texts[name]
            return
        region = self.regions[name]
        step, size = PIECE // 8, region.described.size
        for start in range(0, size, step):
            mapped = np.memmap(self.path, f"V{region.dtype.itemsize}", "r", region.offset, (region.span,))
            yield mapped[region.places(np.arange(start, min(start + step, size)))].tobytes()

    def repeated(self, names: Mapping[str, object]) -> dict[str, np.ndarray | None]:
        return repeated({name: self.regions[name] for name in names})

    def sharing(self, changes: Changes) -> dict[str, tuple[str, ...]]:
        return sharing({name: self.regions[name] for name in self.arrays}, changes)

    def struck_twice(self, changes: Changes) -> str | None:
        return struck_twice(self.regions, changes)

    def fill(self, file: BinaryIO, changes: Changes) -> None:
        super().fill(file, changes)
        if not self.checksums:
            return
        flips: dict[str, list[Flips]] = {}
        for name, change in changes.items():
            region, info = self.regions[name], self.storage_of[name]
            places = region.offset - self.archive.begin(info) + region.places(change.places) * region.dtype.itemsize
            of_member = flips.setdefault(info.filename, [])
            of_member.append(flips_of(places, change.before, change.after, region.word))
        members = {info.filename: info for info in self.storage_of.values()}
        with reading(self.path, self.format):
            for filename, of_member in flips.items():
                self.archive.renew(file, members[filename], of_member)


def is_pytorch(path: pathlib.Path) -> bool:
    """Whether an archive is one of PyTorch."""
    with reading(path, FORMAT), zipfile.ZipFile(path) as archive:
        return any(_of_pytorch(name) for name in archive.namelist())


def _of_pytorch(name: str) -> bool:
    root, _, rest = name.partition("/")
    return bool(root) and rest in (PICKLE, "constants.pkl", "archive_format", ".data/extern_modules")


def open_pytorch(path: pathlib.Path) -> PyTorch:
    """Open a file of PyTorch; its pickle is read as data, and no storage is.

    Raises:
      InputError: it is damaged, or holds code, or its pickle names what no tensor needs.
    """
    with reading(path, FORMAT), zipfile.ZipFile(path) as opened:
        archive = Archive(path, opened)
        members = {info.filename: info for info in archive.members}
        if len(members) < len(archive.members):
            raise ValueError("a name stands in it twice")
        _refuse_programs(path, members)
        roots = [name.partition("/")[0] for name in members if name.partition("/")[2] == PICKLE]
        if len(roots) != 1:
            raise ValueError(f"it has {len(roots)} files {PICKLE}, expected one")
        return _Opening(path, archive, roots[0]).opened()


def _refuse_programs(path: pathlib.Path, members: Mapping[str, zipfile.ZipInfo]) -> None:
    """Raise InputError where an archive of PyTorch holds a program beside its tensors."""
    kinds = {
        "constants.pkl": ("TorchScript", "save `module.state_dict()` with torch.save"),
        "archive_format": ("torch.export", "save `program.state_dict` with torch.save"),
        ".data/extern_modules": ("torch.package", "save the state_dict of its model with torch.save"),
    }
    for name in members:
        rest = name.partition("/")[2]
        if rest in kinds or rest.startswith("code/"):
            kind, remedy = kinds.get(rest, kinds["constants.pkl"])
            raise InputError(f"is an archive of {kind}, which holds a program, and none is read here; {remedy}", path)


class _Opening:
    """A file of PyTorch while it is opened."""

    def __init__(self, path: pathlib.Path, archive: Archive, root: str) -> None:
        self.path, self.archive, self.root = path, archive, root
        self.members = {info.filename: info for info in archive.members}
        self.begins: dict[str, int] = {}
        pickled = self.members[f"{root}/{PICKLE}"]
        if pickled.file_size > LARGEST_PICKLE:
            raise ValueError(f"its pickle has {pickled.file_size:,} bytes, at most {LARGEST_PICKLE:,} are read")
        self.pickle = self._bytes(pickled)
        # PyTorch writes zeros on request (`set_crc32_options(False)`), and never compares.
        self.checksums = pickled.CRC != 0
        if self.checksums and zlib.crc32(self.pickle) != pickled.CRC:
            raise ValueError(f"the CRC-32 of {pickled.filename} does not match")

    def _bytes(self, info: zipfile.ZipInfo) -> bytes:
        with self.path.open("rb") as file:
            file.seek(self.archive.begin(info))
            return file.read(info.file_size)

    def opened(self) -> PyTorch:
        written = self.members.get(f"{self.root}/byteorder")  # files before 2.1 have none, and are of such machines
        said = b"little" if written is None else self._bytes(written) if written.file_size < 9 else b"?"
        if said not in ORDERS:
            raise ValueError(f"its byte order is {said!r}, expected little or big")
        value = read_as_data(self.pickle, KNOWN, "a checkpoint of tensors (save a state_dict)")
        regions: dict[str, Region] = {}
        raw: dict[str, Raw] = {}
        storage_of: dict[str, zipfile.ZipInfo] = {}
        texts: dict[str, bytes] = {}
        taken: set[str] = set()
        for keys, leaf in leaves(value, FEWEST_LEAVES + len(self.pickle)):
            name = unique_name(keys, taken)
            if name in taken:
                raise ValueError(f"{name} stands in it twice")
            taken.add(name)
            if isinstance(leaf, Plain):
                text = as_text(leaf.value)
                texts[name], raw[name] = text or b"", Raw(leaf.kind, compared=text is not None)
                regions[name] = Region(0, (0,), BYTES)
                continue
            storage_of[name] = info = self._member(leaf.storage)
            regions[name] = self._region(leaf, said == b"big", info)
            if not is_number(leaf.dtype):
                raw[name] = Raw.of(leaf.shape, regions[name].dtype)
        return PyTorch(self.archive, ORDERS[said], regions, raw, storage_of, texts, self.checksums)

    def _member(self, storage: Storage) -> zipfile.ZipInfo:
        info = self.members.get(f"{self.root}/data/{storage.key}")
        if info is None:
            if storage.size:
                raise ValueError(f"it has no storage {storage.key}, which a tensor lies in")
            return self.members[f"{self.root}/{PICKLE}"]
        if info.file_size != storage.size:
            raise ValueError(f"storage {storage.key} has {info.file_size:,} bytes, expected {storage.size:,}")
        return info

    def _region(self, tensor: Tensor, big: bool, info: zipfile.ZipInfo) -> Region:
        if info.filename not in self.begins:
            self.begins[info.filename] = self.archive.begin(info)
        dtype = tensor.dtype.newbyteorder(">") if big and tensor.dtype.itemsize > 1 else tensor.dtype
        offset = self.begins[info.filename] + tensor.begin * dtype.itemsize
        rows = 1
        usual: list[int] = []
        for n in reversed(tensor.shape):
            usual.insert(0, rows)
            rows *= n
        plain = all(n <= 1 or s == u for n, s, u in zip(tensor.shape, tensor.strides, usual, strict=True))
        return Region(offset, tensor.shape, dtype, None if plain or not rows else tensor.strides)
