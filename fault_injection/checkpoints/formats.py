"""Which format a checkpoint has: said by how it begins, not by its name."""

import pathlib

from ..machine.errors import InputError
from .checkpoint import Checkpoint
from .hdf5 import open_hdf5
from .msgpack import open_msgpack
from .npz import open_npz
from .orbax import is_orbax, open_orbax
from .safetensors import open_safetensors

ZIP, HDF5, PICKLE = b"PK\x03\x04", b"\x89HDF\r\n\x1a\n", b"\x80"
FORMATS = "npz, safetensors, HDF5, Orbax, Flax msgpack"


def open_checkpoint(path: pathlib.Path) -> Checkpoint:
    """Open a checkpoint of any known format.

    Of most formats no array is read.  Msgpack is read whole, and of our own files the checksum is compared.

    Raises:
      InputError: there is none, it is damaged or of no known format, or what reads it is not installed.
    """
    if not path.exists():
        raise InputError("no such file or folder", path)
    if path.is_dir():
        if is_orbax(path):
            return open_orbax(path)
        steps = sorted(child.name for child in path.iterdir() if child.is_dir() and is_orbax(child))
        hint = f"; did you mean the step {path / steps[-1]}?" if steps else ""
        raise InputError(f"is a folder, and no checkpoint of Orbax{hint}", path)
    if not path.is_file():
        raise InputError("is no regular file", path)
    with path.open("rb") as file:
        begin = file.read(9)
    if begin.startswith(ZIP):
        return open_npz(path)
    if begin.startswith(HDF5):
        return open_hdf5(path)
    if begin[8:9] == b"{":  # behind the length of the header
        return open_safetensors(path)
    if begin[:1] and (0x80 <= begin[0] <= 0x8F or begin[0] in (0xDE, 0xDF)) and not _pickled(begin):
        return open_msgpack(path)
    what = (
        "a pickle, and nothing is ever unpickled; save it as safetensors" if _pickled(begin) else "of no known format"
    )
    raise InputError(f"{what}; expected one of {FORMATS}", path)


def _pickled(begin: bytes) -> bool:
    """Whether a file begins as a pickle of protocol 2 to 5 does."""
    return begin[:1] == PICKLE and begin[1:2] in (b"\x02", b"\x03", b"\x04", b"\x05")
