"""What differs between two checkpoints, array by array, and in which bits."""

import dataclasses
import math
from collections.abc import Iterator
from itertools import zip_longest

import numpy as np

from ..machine.errors import InputError
from .checkpoint import Checkpoint, Described, Raw

WIDEST = 128  # bits of an element that are counted one by one


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
      numbers: whether they were read as numbers; otherwise their bits alone were compared.
    """

    name: str
    dtype: str
    elements: int
    changed: int
    bits: tuple[int, ...]
    error: float | None
    largest: float
    nonfinite: int
    numbers: bool = True


@dataclasses.dataclass(frozen=True)
class Difference:
    """What differs between two checkpoints.

    Attributes:
      arrays: of those that both have alike.
      unlike: what both have in another shape or type, in words.
      only_first, only_second: names of arrays that one has.
      left_out: what both have and whose bits do not say whether it is alike, such as Python objects, in words.
    """

    arrays: tuple[ArrayDifference, ...]
    unlike: tuple[str, ...]
    only_first: tuple[str, ...]
    only_second: tuple[str, ...]
    left_out: tuple[str, ...] = ()

    @property
    def complete(self) -> bool:
        """Whether everything that both have was compared."""
        return not self.unlike and not self.left_out

    @property
    def changed(self) -> list[ArrayDifference]:
        """Those that differ."""
        return [one for one in self.arrays if one.changed]


def difference(first: Checkpoint, second: Checkpoint) -> Difference:
    """Compare two checkpoints, of whatever formats, piece by piece.

    Raises:
      InputError: they have no array in common.
    """
    ours: dict[str, Described | Raw] = {**first.arrays, **first.raw}
    theirs: dict[str, Described | Raw] = {**second.arrays, **second.raw}
    common = [name for name in ours if name in theirs]
    if not common:
        raise InputError(f"has no array in common with {first.path}", second.path)
    arrays, unlike, left_out = [], [], []
    for name in common:
        one, other = ours[name], theirs[name]
        if isinstance(one, Raw) and isinstance(other, Raw) and not (one.compared and other.compared):
            left_out.append(f"{name} ({one.text})")
        elif one != other:
            unlike.append(f"{name}: {one.text} and {other.text}")
        else:
            arrays.append((_raw_compared if isinstance(one, Raw) else _compared)(first, second, name))
    return Difference(
        tuple(arrays),
        tuple(unlike),
        tuple(name for name in ours if name not in theirs),
        tuple(name for name in theirs if name not in ours),
        tuple(left_out),
    )


def _compared(first: Checkpoint, second: Checkpoint, name: str) -> ArrayDifference:
    array = first.arrays[name]
    width = array.width
    changed, nonfinite, bits = 0, 0, np.zeros(width, np.int64)
    norm, apart, largest = 0.0, 0.0, 0.0
    for one, other in zip(even_words(first, name), even_words(second, name), strict=True):
        differs = np.flatnonzero(one != other)
        changed += len(differs)
        flips = one[differs] ^ other[differs]
        for bit in range(width):
            bits[bit] += int(np.sum(flips >> array.word.type(bit) & array.word.type(1)))
        with np.errstate(all="ignore"):
            a = one.view(array.dtype).astype(np.float64)
            norm = math.hypot(norm, _norm(a[np.isfinite(a)]))
            a, b = a[differs], other[differs].view(array.dtype).astype(np.float64)
            apart = math.hypot(apart, _norm(b - a))
            if len(differs):
                largest = float(np.maximum(largest, np.abs(b - a).max()))
            nonfinite += int(np.sum(np.isfinite(a) & ~np.isfinite(b)))
    error = apart / norm if norm and math.isfinite(apart / norm) else None
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


def _norm(values: np.ndarray) -> float:
    """The root of the sum of squares, of which none overflows.

    >>> f"{_norm(np.array([3e200, 4e200])):g}"
    '5e+200'
    """
    largest = float(np.abs(values).max(initial=0.0))
    if not largest or not math.isfinite(largest):
        return largest
    return largest * math.sqrt(float(np.sum(np.square(values / largest))))


def _raw_compared(first: Checkpoint, second: Checkpoint, name: str) -> ArrayDifference:
    """What differs in the bits of what is no array of numbers."""
    raw = first.raw[name]
    if not raw.width:
        pieces = (_bytes(each, name, 1 << 20) for each in (first, second))
        differ = any(one != other for one, other in zip_longest(*pieces))
        return ArrayDifference(name, raw.text, 1, int(differ), (), None if differ else 0.0, 0.0, 0, numbers=False)
    together = 8 * max(1, (1 << 20) // (8 * raw.width)) * raw.width // 8
    changed, bits = 0, np.zeros(raw.width, np.int64)
    for one, other in zip_longest(_bytes(first, name, together), _bytes(second, name, together), fillvalue=b""):
        if one != other:
            if len(one) != len(other):
                raise InputError(f"{name} has {raw.text} of other lengths in {first.path}", second.path)
            flips = np.frombuffer(one, np.uint8) ^ np.frombuffer(other, np.uint8)
            each = np.unpackbits(flips, bitorder="little").reshape(-1, raw.width)
            each[:, raw.width - raw.padding :] = 0
            changed, bits = changed + int(each.any(1).sum()), bits + each.sum(0, dtype=np.int64)
    told = tuple(bits.tolist()) if raw.width <= WIDEST else ()
    return ArrayDifference(name, raw.text, raw.elements, changed, told, None if changed else 0.0, 0.0, 0, numbers=False)


def _bytes(checkpoint: Checkpoint, name: str, step: int) -> Iterator[bytes]:
    """The content of a leaf in pieces of equal lengths, whatever the format."""
    rest = b""
    for piece in checkpoint.content(name):
        rest += piece
        while len(rest) >= step:
            yield rest[:step]
            rest = rest[step:]
    if rest:
        yield rest


def even_words(checkpoint: Checkpoint, name: str) -> Iterator[np.ndarray]:
    """An array's words in pieces of equal lengths, whatever the format."""
    step, rest = 1 << 18, np.empty(0, checkpoint.arrays[name].word)
    for piece in checkpoint.pieces(name):
        rest = np.concatenate([rest, piece]) if len(rest) else piece
        while len(rest) >= step:
            yield rest[:step]
            rest = rest[step:]
    if len(rest):
        yield rest
