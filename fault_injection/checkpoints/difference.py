"""What differs between two checkpoints, array by array, and in which bits."""

import dataclasses
import math
from collections.abc import Iterator

import numpy as np

from ..machine.errors import InputError
from .checkpoint import Checkpoint


@dataclasses.dataclass(frozen=True)
class ArrayDifference:
    """What differs between two arrays of one name, shape and type.

    Attributes:
      name, dtype: of the array.
      elements: how many it has.
      changed: how many of them differ in any bit.
      bits: how often each bit differs, the least significant first.
      error: the relative error: the norm of the difference divided by that of the first's finite elements; None
        where the difference is not finite, or these are all zero.
      largest: the largest absolute difference of two elements; infinite or NaN where one is.
      nonfinite: elements of the second that are not finite while those of the first are.
    """

    name: str
    dtype: str
    elements: int
    changed: int
    bits: tuple[int, ...]
    error: float | None
    largest: float
    nonfinite: int


@dataclasses.dataclass(frozen=True)
class Difference:
    """What differs between two checkpoints.

    Attributes:
      arrays: of those that both have alike.
      unlike: what both have in another shape or type, in words.
      only_first, only_second: names of arrays that one has.
    """

    arrays: tuple[ArrayDifference, ...]
    unlike: tuple[str, ...]
    only_first: tuple[str, ...]
    only_second: tuple[str, ...]

    @property
    def changed(self) -> list[ArrayDifference]:
        """Those that differ."""
        return [one for one in self.arrays if one.changed]


def difference(first: Checkpoint, second: Checkpoint) -> Difference:
    """Compare two checkpoints, of whatever formats, piece by piece.

    Raises:
      InputError: they have no array in common.
    """
    common = [name for name in first.arrays if name in second.arrays]
    if not common:
        raise InputError(f"has no array in common with {first.path}", second.path)
    pairs = {name: (first.arrays[name], second.arrays[name]) for name in common}
    return Difference(
        tuple(_compared(first, second, name) for name, (one, other) in pairs.items() if one == other),
        tuple(f"{name}: {one.text} and {other.text}" for name, (one, other) in pairs.items() if one != other),
        tuple(name for name in first.arrays if name not in second.arrays),
        tuple(name for name in second.arrays if name not in first.arrays),
    )


def _compared(first: Checkpoint, second: Checkpoint, name: str) -> ArrayDifference:
    array = first.arrays[name]
    width = 8 * array.dtype.itemsize
    changed, nonfinite, bits = 0, 0, np.zeros(width, np.int64)
    squares, apart, largest = 0.0, 0.0, 0.0
    for one, other in zip(_words(first, name), _words(second, name), strict=True):
        differs = np.flatnonzero(one != other)
        changed += len(differs)
        flips = one[differs] ^ other[differs]
        for bit in range(width):
            bits[bit] += int(np.sum(flips >> array.word.type(bit) & array.word.type(1)))
        with np.errstate(all="ignore"):
            a = one.view(array.dtype).astype(np.float64)
            squares += float(np.sum(np.square(a[np.isfinite(a)])))
            a, b = a[differs], other[differs].view(array.dtype).astype(np.float64)
            apart += float(np.sum(np.square(b - a)))
            if len(differs):
                largest = float(np.maximum(largest, np.abs(b - a).max()))
            nonfinite += int(np.sum(np.isfinite(a) & ~np.isfinite(b)))
    error = math.sqrt(apart / squares) if squares and math.isfinite(apart / squares) else None
    return ArrayDifference(
        name,
        array.dtype.name,
        array.size,
        changed,
        tuple(bits.tolist()),
        0.0 if not changed else error,
        largest,
        nonfinite,
    )


def _words(checkpoint: Checkpoint, name: str) -> Iterator[np.ndarray]:
    """An array's words in pieces of equal lengths, whatever the format."""
    step, rest = 1 << 18, np.empty(0, checkpoint.arrays[name].word)
    for piece in checkpoint.pieces(name):
        rest = np.concatenate([rest, piece]) if len(rest) else piece
        while len(rest) >= step:
            yield rest[:step]
            rest = rest[step:]
    if len(rest):
        yield rest
