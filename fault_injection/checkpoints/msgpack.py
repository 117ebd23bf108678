"""Flax's msgpack: one tree in one file.  It is read and written as a whole, by Flax."""

import pathlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from ..machine.files import write_atomically
from .checkpoint import PIECE, Changes, Checkpoint, Described, is_number, reading

DEEPEST = 100  # dictionaries in each other


class Msgpack(Checkpoint):
    """A file of Flax's msgpack."""

    format = "msgpack"

    def __init__(self, path: pathlib.Path, tree: Any) -> None:
        self.path, self._tree = path, tree
        self._leaves: dict[str, np.ndarray] = {}
        others = []
        for name, leaf in _named(tree):
            array = leaf if isinstance(leaf, np.ndarray | np.generic) else None
            if array is None or not is_number(array.dtype):
                others.append(name)
            elif name in self._leaves:
                raise ValueError(f"{name} stands in it twice")
            else:
                self._leaves[name] = np.asarray(array)
        self.arrays = {name: Described(leaf.shape, leaf.dtype) for name, leaf in self._leaves.items()}
        self.others = tuple(others)

    def words(self, name: str, index: np.ndarray) -> np.ndarray:
        return self._flat(name)[index]

    def pieces(self, name: str) -> Iterator[np.ndarray]:
        flat = self._flat(name)
        step = PIECE // flat.itemsize
        yield from np.split(flat, range(step, flat.size, step))

    def write(self, out: pathlib.Path, changes: Changes) -> None:
        def altered(prefix: str, node: Any) -> Any:
            if isinstance(node, dict):
                return {key: altered(f"{prefix}{key}/", child) for key, child in node.items()}
            if isinstance(node, list):
                return [altered(f"{prefix}{key}/", child) for key, child in enumerate(node)]
            change = changes.get(prefix[:-1])
            if change is None:
                return node
            flat = self._flat(prefix[:-1]).copy()
            flat[change.places] = change.after
            array = flat.view(node.dtype).reshape(node.shape)
            return array if isinstance(node, np.ndarray) else array[()]

        from flax import serialization

        write_atomically(out, lambda file: file.write(serialization.msgpack_serialize(altered("", self._tree))))

    def _flat(self, name: str) -> np.ndarray:
        """Words of an array; a view where it is contiguous."""
        return np.ascontiguousarray(self._leaves[name]).view(self.arrays[name].word).reshape(-1)


def open_msgpack(path: pathlib.Path) -> Msgpack:
    """Read a file of Flax's msgpack.

    Raises:
      InputError: it is damaged, or no tree of dictionaries.
    """
    from flax import serialization  # which imports JAX

    with reading(path, Msgpack.format):
        tree = serialization.msgpack_restore(path.read_bytes())
        if not isinstance(tree, dict):
            raise ValueError(f"it holds a {type(tree).__name__}, expected a dictionary")
        return Msgpack(path, tree)


def _named(node: Any, prefix: str = "", depth: int = 0) -> Iterator[tuple[str, Any]]:
    """The leaves of a tree of dictionaries and lists, with their paths."""
    if depth > DEEPEST:
        raise ValueError(f"dictionaries are nested more than {DEEPEST} deep")
    for key, child in node.items() if isinstance(node, dict) else enumerate(node):
        if isinstance(child, dict | list):
            yield from _named(child, f"{prefix}{key}/", depth + 1)
        else:
            yield f"{prefix}{key}", child
