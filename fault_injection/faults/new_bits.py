"""New bits of one element, as a row `inj_bits` of an injection file writes them.

Three forms express everything that the fault models do: the bits are given, some bits are
inverted, or another element of the same operand is copied.  So a fault can be written to a
file before anything runs.
"""

import dataclasses
import re
from collections.abc import Sequence

import jax
import numpy as np

from models.fault import ALL_ONES

from ..machine.reading import Kind, counts
from .fault_models import Bits, Indices

Position = tuple[int, ...]
POSITION: Kind[Position] = counts("/", 0, "coordinates such as 107/3/3/85, counted from 0")


@dataclasses.dataclass(frozen=True, slots=True)
class NewBits:
    """What one element becomes.

    >>> inf, sign, copy = NewBits(0x7F800000), NewBits(0x80000000, keep=True), NewBits(0, True, (107, 3, 3, 85))

    Attributes:
      flip: the new bits themselves or, where `keep` is true, the bits that are inverted.
      keep: whether bits of an element remain.
      source: coordinates of the element whose bits are taken; None for the element struck.
    """

    flip: int
    keep: bool = False
    source: Position | None = None

    def __post_init__(self) -> None:
        if self.source is not None and (self.flip or not self.keep):
            raise ValueError("an element is copied with all its bits as they are")


def digits_of(dtype: np.dtype) -> int:
    """Hexadecimal digits of an element.

    >>> digits_of(np.dtype(np.float32))
    8
    """
    return dtype.itemsize * 2


def new_bits(dtype: np.dtype) -> Kind[NewBits]:
    """How a cell of `inj_bits` is read, for an operand of this type.

    >>> kind = new_bits(np.dtype(np.float32))
    >>> kind.parse("7f800000")
    NewBits(flip=2139095040, keep=False, source=None)
    >>> kind.parse("copy:107/3/3/85").source
    (107, 3, 3, 85)
    >>> print("inj_bits " + kind.wrong("7f80000000"))
    inj_bits '7f80000000'; expected at most 8 hexadecimal digits for float32, xor: before them, or copy:107/3/3/85
    """
    digits = digits_of(dtype)
    pattern = re.compile(rf"(xor:)?(?:0x)?([0-9a-fA-F]{{1,{digits}}})")

    def parse(text: str) -> NewBits:
        if text.startswith("copy:"):
            return NewBits(0, True, POSITION.parse(text.removeprefix("copy:")))
        if (found := pattern.fullmatch(text)) is None:
            raise ValueError
        return NewBits(int(found[2], 16), keep=found[1] is not None)

    expected = f"at most {digits} hexadecimal digits for {dtype.name}, xor: before them, or copy:107/3/3/85"
    return Kind(parse, lambda text: expected)


def format_new_bits(new: NewBits, dtype: np.dtype) -> str:
    """The cell that says so.

    >>> [format_new_bits(new, np.dtype(np.float32)) for new in (NewBits(1), NewBits(1, True), NewBits(0, True, (1, 2)))]
    ['00000001', 'xor:00000001', 'copy:1/2']
    """
    if new.source is not None:
        return f"copy:{format_position(new.source)}"
    return f"{'xor:' if new.keep else ''}{new.flip:0{digits_of(dtype)}x}"


def format_position(position: Position) -> str:
    """Coordinates as files write them.

    >>> format_position((107, 3, 3, 85))
    '107/3/3/85'
    """
    return "/".join(map(str, position))


def from_masks(index: Indices, bits: Bits, tensor: jax.ShapeDtypeStruct) -> tuple[NewBits, ...]:
    """The form of each element's new bits, as a fault model drew them.

    Args:
      index: [K] row-major positions struck.
      bits: what a fault model's values are for them.
      tensor: shape and type of the operand.

    Raises:
      ValueError: masks that no fault model draws: some bits kept, or a copy with inverted bits.
    """
    width = (1 << 4 * digits_of(tensor.dtype)) - 1  # a narrower type takes the low bits
    keep, flip = (np.asarray(mask).astype(np.uint64) & np.uint64(width) for mask in (bits.keep, bits.flip))
    kept, other = keep == width, np.asarray(bits.source) != index
    if (~kept & (keep != 0)).any() or (kept & other & (flip != 0)).any():
        raise ValueError("new bits of an element must be given, or inverted, or copied as they are")
    sources = unravel(bits.source, tensor.shape)
    return tuple(
        NewBits(mask, whole, source if whole and elsewhere else None)
        for mask, whole, elsewhere, source in zip(flip.tolist(), kept.tolist(), other.tolist(), sources, strict=True)
    )


def to_masks(new: Sequence[NewBits], index: Indices, shape: tuple[int, ...]) -> Bits:
    """Sources and masks of elements' new bits; the inverse of `from_masks`.

    >>> to_masks([NewBits(5), NewBits(1, True), NewBits(0, True, (1, 1))], np.arange(3), (2, 2)).source
    array([0, 1, 3])
    """
    source = np.array(index)
    copied = [at for at, each in enumerate(new) if each.source is not None]
    if copied:
        source[copied] = ravel([each.source for each in new if each.source is not None], shape)
    keep = np.where([each.keep for each in new], np.uint32(ALL_ONES), np.uint32(0))
    return Bits(source, keep, np.array([each.flip for each in new], np.uint32))


def ravel(positions: Sequence[Position], shape: tuple[int, ...]) -> Indices:
    """Row-major indices, int64, of coordinates; raises ValueError where one lies outside `shape`."""
    return np.ravel_multi_index(tuple(np.array(positions, np.int64).T), shape)


def unravel(index: Indices, shape: tuple[int, ...]) -> list[Position]:
    """Coordinates of row-major indices; the inverse of `ravel`."""
    return list(zip(*(axis.tolist() for axis in np.unravel_index(index, shape)), strict=True))
