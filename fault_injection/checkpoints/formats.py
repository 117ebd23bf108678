"""Which format a checkpoint has: said by how it begins, not by its name."""

import os
import pathlib

from ..machine.errors import InputError
from .checkpoint import Checkpoint
from .gguf import MAGIC as GGUF
from .gguf import open_gguf
from .hdf5 import open_hdf5
from .keras import is_keras, open_keras
from .msgpack import open_msgpack
from .npz import open_npy, open_npz
from .orbax import is_orbax, open_orbax
from .pytorch import LEGACY, is_pytorch, open_pytorch
from .safetensors import open_safetensors
from .sharded import index_of, is_index, open_sharded
from .tensor_table import MAGIC
from .tensorflow import DATA, open_tensorflow

ZIP, HDF5, PICKLE = b"PK\x03\x04", b"\x89HDF\r\n\x1a\n", b"\x80"
NPY = b"\x93NUMPY"
FORMATS = (
    "npz, npy, safetensors, HDF5, Keras, PyTorch, Orbax, Flax msgpack, TensorFlow, GGUF; safetensors, PyTorch and "
    "TensorFlow in several files are named by their index, or its folder"
)
NOT_READ = {
    "PyTorch's distributed form": "python -m torch.distributed.checkpoint.format_utils dcp_to_torch FOLDER NEW.pt",
}


def open_checkpoint(path: pathlib.Path) -> Checkpoint:
    """Open a checkpoint of any known format.

    Of most formats no array is read.  Msgpack is read whole, and of our own files the checksum is compared.

    Raises:
      InputError: there is none, it is damaged or of no known format, or what reads it is not installed.
    """
    if not path.exists():
        named = path.with_name(f"{path.name}.index") if path.name else path
        hint = f"; did you mean {named}?" if named.is_file() else ""
        raise InputError(f"no such file or folder{hint}", path)
    if path.is_dir():
        if is_orbax(path):
            return open_orbax(path)
        if (index := index_of(path)) is not None:
            return open_sharded(path, index)
        if (path / ".metadata").is_file() and any(path.glob("*.distcp")):
            raise _not_read("PyTorch's distributed form", path)
        if tables := [one for one in sorted(path.glob("*.index")) if _of_tensorflow(one)]:
            if len(tables) > 1:
                several = ", ".join(one.name for one in tables[-5:])
                raise InputError(f"has several indexes ({several}); expected one: name the one that you mean", path)
            return open_tensorflow(tables[0])
        raise InputError(
            f"is a folder, and no checkpoint of Orbax, or of safetensors or PyTorch with an index{_hint(path)}", path
        )
    if not path.is_file():
        raise InputError("is no regular file", path)
    if is_index(path):
        return open_sharded(path.parent, path)
    if path.suffix == ".distcp":
        raise _not_read("PyTorch's distributed form", path)
    with path.open("rb") as file:
        begin = file.read(len(LEGACY))
    if begin.startswith(ZIP):
        return open_pytorch(path) if is_pytorch(path) else open_keras(path) if is_keras(path) else open_npz(path)
    if begin.startswith(NPY):
        return open_npy(path)
    if begin.startswith(GGUF):
        return open_gguf(path)
    if begin.startswith(HDF5):
        return open_hdf5(path)
    if begin[8:9] == b"{":  # behind the length of the header
        return open_safetensors(path)
    if begin[:1] and (0x80 <= begin[0] <= 0x8F or begin[0] in (0xDE, 0xDF)) and not _pickled(begin):
        return open_msgpack(path)
    if _of_tensorflow(path):
        return open_tensorflow(path)
    if (data := DATA.fullmatch(path.name)) is not None:
        raise InputError(f"is data of TensorFlow's; name its index, {data['prefix']}.index", path)
    if begin == LEGACY:
        how = "torch.save(torch.load(FILE), NEW) with PyTorch 1.6 or later"
        raise InputError(f"is in PyTorch's legacy form, which is one pickle; write it anew: {how}", path)
    what = (
        "a pickle, and nothing is ever unpickled; save it as safetensors" if _pickled(begin) else "of no known format"
    )
    raise InputError(f"{what}; expected one of {FORMATS}", path)


def _not_read(form: str, path: pathlib.Path) -> InputError:
    return InputError(f"is a checkpoint in {form}, which is not read here; what to do: {NOT_READ[form]}", path)


def _of_tensorflow(path: pathlib.Path) -> bool:
    """Whether a file ends as the index of a checkpoint of TensorFlow does."""
    if not path.is_file() or path.stat().st_size < len(MAGIC):
        return False
    with path.open("rb") as file:
        file.seek(-len(MAGIC), os.SEEK_END)
        return file.read() == MAGIC


def _hint(path: pathlib.Path) -> str:
    """Where in a folder a checkpoint of Orbax is: the last step of a manager, or one of the items of a step."""
    inside = [child for child in sorted(path.iterdir()) if child.is_dir()]
    deeper = [item for child in inside for item in sorted(child.iterdir()) if item.is_dir()]
    found = [child for child in inside if is_orbax(child)] or [item for item in deeper if is_orbax(item)]
    if not found:
        return ""
    return f"; did you mean {found[-1]}?" if len(found) == 1 else f"; it has {', '.join(map(str, found[-5:]))}"


def _pickled(begin: bytes) -> bool:
    """Whether a file begins as a pickle of protocol 2 to 5 does."""
    return begin[:1] == PICKLE and begin[1:2] in (b"\x02", b"\x03", b"\x04", b"\x05")
