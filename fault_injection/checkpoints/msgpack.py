"""Flax's msgpack: one tree in one file, read and written as a whole; what is not altered is written as it was."""

import math
import pathlib
from collections.abc import Iterator, Sequence
from typing import Any

import ml_dtypes
import msgpack
import numpy as np

from ..machine.files import write_atomically
from .checkpoint import PIECE, Changes, Checkpoint, Described, Raw, is_number, reading, unique_name

DEEPEST = 100  # dictionaries in each other
ARRAY, NUMBER = 1, 3  # kinds of extension by which Flax writes an array, and a number of NumPy's
CHUNKED = "__msgpack_chunked_array__"  # marks a dictionary that stands for an array of more than 1 GiB


class Msgpack(Checkpoint):
    """A file of Flax's msgpack."""

    format = "msgpack"

    def __init__(self, path: pathlib.Path, tree: Any) -> None:
        self.path, self._tree = path, tree
        self._leaves: dict[str, np.ndarray] = {}
        self._keys: dict[tuple[object, ...], str] = {}
        self._others: dict[str, bytes] = {}
        raw = {}
        for keys, leaf in _named(tree):
            name = unique_name(keys, {*self._leaves, *self._others})
            if name in self._leaves or name in self._others:
                raise ValueError(f"{name} stands in it twice")
            array = _array(leaf)
            if array is not None and is_number(array.dtype):
                self._leaves[name], self._keys[keys] = array, name
            elif array is not None:
                self._others[name], raw[name] = array.tobytes(), Raw.of(array.shape, array.dtype)
            else:
                kind = "an extension" if isinstance(leaf, msgpack.ExtType) else f"a Python {type(leaf).__name__}"
                self._others[name], raw[name] = msgpack.packb(leaf), Raw(kind)
        self.arrays = {name: Described(leaf.shape, leaf.dtype) for name, leaf in self._leaves.items()}
        self.raw = raw

    def words(self, name: str, index: np.ndarray) -> np.ndarray:
        return self._flat(name)[index]

    def pieces(self, name: str) -> Iterator[np.ndarray]:
        flat = self._flat(name)
        step = PIECE // flat.itemsize
        yield from np.split(flat, range(step, flat.size, step))

    def content(self, name: str) -> Iterator[bytes]:
        yield self._others[name]

    def write(self, out: pathlib.Path, changes: Changes) -> None:
        def altered(keys: tuple[object, ...], node: Any) -> Any:
            name = self._keys.get(keys)
            change = None if name is None else changes.get(name)
            if name is not None and change is not None:
                flat = self._flat(name).copy()
                flat[change.places] = change.after
                return _packed(node, flat.tobytes())
            if isinstance(node, dict):
                return {key: altered((*keys, key), child) for key, child in node.items()}
            if isinstance(node, list):
                return [altered((*keys, key), child) for key, child in enumerate(node)]
            return node

        content = msgpack.packb(altered((), self._tree), strict_types=True)
        write_atomically(out, lambda file: file.write(content))

    def _flat(self, name: str) -> np.ndarray:
        """Words of an array; a view where it is contiguous."""
        return np.ascontiguousarray(self._leaves[name]).view(self.arrays[name].word).reshape(-1)


def open_msgpack(path: pathlib.Path) -> Msgpack:
    """Read a file of Flax's msgpack.

    Raises:
      InputError: it is damaged, or no tree of dictionaries.
    """
    with reading(path, Msgpack.format):
        tree = msgpack.unpackb(path.read_bytes(), ext_hook=msgpack.ExtType, raw=False, strict_map_key=False)
        if not isinstance(tree, dict):
            raise ValueError(f"it holds a {type(tree).__name__}, expected a dictionary")
        return Msgpack(path, tree)


def _named(node: Any, keys: tuple[object, ...] = ()) -> Iterator[tuple[tuple[object, ...], Any]]:
    """The leaves of a tree of dictionaries and lists, with their paths."""
    if len(keys) > DEEPEST:
        raise ValueError(f"dictionaries are nested more than {DEEPEST} deep")
    for key, child in node.items() if isinstance(node, dict) else enumerate(node):
        if isinstance(child, dict | list) and not (isinstance(child, dict) and CHUNKED in child):
            yield from _named(child, (*keys, key))
        else:
            yield (*keys, key), child


def _array(leaf: Any) -> np.ndarray | None:
    """The array that a leaf stands for; None where it stands for something else."""
    if isinstance(leaf, dict):  # with `CHUNKED`; each key of what Flax makes of a tuple is a number as text
        whole = [leaf["shape"][str(k)] for k in range(len(leaf["shape"]))]
        chunks = [_array(leaf["chunks"][str(k)]) for k in range(len(leaf["chunks"]))]
        return np.concatenate([chunk for chunk in chunks if chunk is not None]).reshape(whole)
    if not isinstance(leaf, msgpack.ExtType) or leaf.code not in (ARRAY, NUMBER):
        return None
    shape, dtype, content = _parts(leaf)
    if not dtype.itemsize or dtype.hasobject or math.prod(shape) * dtype.itemsize != len(content):
        raise ValueError(f"{len(content)} bytes for {dtype.name} of shape {list(shape)}")
    return np.frombuffer(content, dtype).reshape(shape)


def _parts(leaf: msgpack.ExtType) -> tuple[Sequence[int], np.dtype, bytes]:
    """Shape, type and bytes of an array, as Flax packs them."""
    shape, name, content = msgpack.unpackb(leaf.data, raw=False, strict_map_key=False)
    if not isinstance(name, str) or not isinstance(content, bytes) or not all(type(n) is int and n >= 0 for n in shape):
        raise ValueError(f"an array of type {str(name)[:60]!r} and shape {str(shape)[:60]}")
    return tuple(shape), np.dtype(getattr(ml_dtypes, name, name)), content


def _packed(leaf: Any, content: bytes) -> Any:
    """A leaf with other bytes in the place of its array's."""
    if isinstance(leaf, dict):
        chunks, begin = {}, 0
        for key in map(str, range(len(leaf["chunks"]))):
            size = len(_parts(leaf["chunks"][key])[2])
            chunks[key] = _packed(leaf["chunks"][key], content[begin : begin + size])
            begin += size
        return {**leaf, "chunks": chunks}
    shape, kind, _ = msgpack.unpackb(leaf.data, raw=False, strict_map_key=False)
    return msgpack.ExtType(leaf.code, msgpack.packb((shape, kind, content), use_bin_type=True))
