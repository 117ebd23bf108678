"""Files as `torch.save` writes them, made without PyTorch: a pickle put together by hand, and stored members."""

import io
import pathlib
import struct
import zipfile
from collections.abc import Mapping
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

KINDS = {
    "f8": "Double", "f4": "Float", "f2": "Half", "i8": "Long", "i4": "Int", "i2": "Short", "i1": "Char",
    "u1": "Byte", "b1": "Bool", "c8": "ComplexFloat", "c16": "ComplexDouble",
}  # fmt: skip


class Global(NamedTuple):
    """A name in a pickle: module and name with a dot between."""

    name: str


class Call(NamedTuple):
    """A call of a name; `state` is given to what it returns, `items` are put into it."""

    function: Any
    arguments: tuple = ()
    state: Any = None
    items: Mapping = {}


class Persistent(NamedTuple):
    """What lies outside of the pickle."""

    value: Any


class View(NamedTuple):
    """A tensor in a storage: which one, the first element, shape and strides in elements."""

    storage: int
    begin: int
    shape: tuple
    strides: tuple


def pickled(value: Any) -> bytes:
    """A pickle of protocol 2, without anything being looked up."""
    return b"\x80\x02" + _code(value) + b"."


def _code(value: Any) -> bytes:
    match value:
        case Global(name):
            module, _, rest = name.rpartition(".")
            return f"c{module}\n{rest}\n".encode()
        case Call(function, arguments, state, items):
            code = _code(function) + _code(arguments) + b"R"
            code += b"(" + b"".join(_code(k) + _code(v) for k, v in items.items()) + b"u" if items else b""
            return code + (_code(state) + b"b" if state is not None else b"")
        case Persistent(inner):
            return _code(inner) + b"Q"
        case bool():
            return b"\x88" if value else b"\x89"
        case int():
            content = value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
            return b"\x8a" + bytes([len(content)]) + content
        case float():
            return b"G" + struct.pack(">d", value)
        case str():
            return b"X" + struct.pack("<I", len(value.encode())) + value.encode()
        case None:
            return b"N"
        case tuple():
            return b"(" + b"".join(map(_code, value)) + b"t"
        case list():
            return b"](" + b"".join(map(_code, value)) + b"e"
        case dict():
            return b"}(" + b"".join(_code(k) + _code(v) for k, v in value.items()) + b"u"
    raise TypeError(type(value))


def storage_class(dtype: np.dtype) -> str:
    return "BFloat16Storage" if dtype == ml_dtypes.bfloat16 else f"{KINDS[dtype.newbyteorder('=').str[1:]]}Storage"


def tensor(storages: list[np.ndarray], view: View) -> Call:
    """A tensor as PyTorch pickles one."""
    stored = storages[view.storage]
    where = ("storage", Global(f"torch.{storage_class(stored.dtype)}"), str(view.storage), "cpu", stored.size)
    hooks = Call(Global("collections.OrderedDict"))
    arguments = (Persistent(where), view.begin, view.shape, view.strides, False, hooks)
    return Call(Global("torch._utils._rebuild_tensor_v2"), arguments)


class _Stream(io.RawIOBase):
    """What cannot be sought in: so the archive gets its checksums behind its members, as PyTorch's does."""

    def __init__(self, file) -> None:
        self._file = file

    def writable(self) -> bool:
        return True

    def write(self, content) -> int:
        return self._file.write(content)


def archive_of(members: Mapping[str, bytes]) -> bytes:
    """An archive as PyTorch writes it: stored members that begin at multiples of 64 bytes, and checksums behind."""
    target = io.BytesIO()
    with zipfile.ZipFile(_Stream(target), "w") as archive:
        for name, content in members.items():
            info = zipfile.ZipInfo(f"archive/{name}")
            padding = -(target.tell() + 30 + len(info.filename) + 4) % 64
            info.extra = b"FB" + struct.pack("<H", padding) + b"Z" * padding
            with archive.open(info, "w") as member:
                member.write(content)
    return target.getvalue()


def torch_file(value: Any, storages: list[np.ndarray], order: str | None = "little", **more: bytes) -> bytes:
    """A file of `torch.save`: a tree with `View` for its tensors."""

    def with_tensors(node: Any) -> Any:
        if isinstance(node, View):
            return tensor(storages, node)
        if isinstance(node, dict):
            return {key: with_tensors(child) for key, child in node.items()}
        return [with_tensors(child) for child in node] if isinstance(node, list) else node

    way = ">" if order == "big" else "<"
    members = {"data.pkl": pickled(with_tensors(value))}
    members |= {} if order is None else {"byteorder": order.encode()}
    members |= {f"data/{k}": one.astype(one.dtype.newbyteorder(way)).tobytes() for k, one in enumerate(storages)}
    return archive_of({**members, "version": b"3\n", **more})


def contiguous(shape: tuple) -> tuple:
    return tuple(int(np.prod(shape[k + 1 :], dtype=np.int64)) for k in range(len(shape)))


def write_torch(path: pathlib.Path, arrays: Mapping[str, np.ndarray], order: str = "little") -> None:
    """Some arrays, each in a storage of its own, in a tree by their names."""
    tree: dict = {}
    for number, (name, array) in enumerate(arrays.items()):
        *above, last = name.split("/")
        node = tree
        for part in above:
            node = node.setdefault(part, {})
        node[last] = View(number, 0, array.shape, contiguous(array.shape))
    path.write_bytes(torch_file(tree, [np.asarray(array).reshape(-1) for array in arrays.values()], order))
