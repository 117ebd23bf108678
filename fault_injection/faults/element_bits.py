"""New bits of one element, as a row `inj_bits` of an injection file writes them.

Three forms express everything that the fault models do: the bits are given, some bits are
inverted, or another element of the same operand is copied.  A bit that is stuck is set or cleared.
So a fault can be written to a file before anything runs.
"""

import dataclasses
import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Self

import numpy as np

from ..machine.reading import Kind, counts
from ..models.bits import ALL_ONES, NewBits, width_of
from ..models.site import TensorSpec
from .fault_models import Indices

Position = tuple[int, ...]
POSITION: Kind[Position] = counts("/", 0, "coordinates such as 107/3/3/85, counted from 0")


@dataclasses.dataclass(frozen=True, slots=True)
class ElementBits:
    """What one element becomes, as a cell of a file says it: by coordinates, and by one of three forms.

    >>> inf, sign = ElementBits(0x7F800000), ElementBits.inverted(0x80000000)
    >>> copy = ElementBits(0, ALL_ONES, (107, 3, 3, 85))
    >>> stuck_at_1, stuck_at_0 = ElementBits.stuck(1, 4), ElementBits.stuck(0, 4)

    Attributes:
      flip: the bits that are inverted after those outside `keep` have become 0.
      keep: the bits that remain: none where the bits are given, all where some are inverted.
      source: coordinates of the element whose bits are taken; None for the element struck.

    Raises:
      ValueError: a combination that no form expresses.
    """

    flip: int
    keep: int = 0
    source: Position | None = None

    def __post_init__(self) -> None:
        if self.source is not None and (self.flip or self.keep != ALL_ONES):
            raise ValueError("an element is copied with all its bits as they are")
        if self.keep not in (0, ALL_ONES) and self.flip not in (0, ALL_ONES ^ self.keep):
            raise ValueError("bits of an element are given, inverted, set or cleared, and not several of these")

    @classmethod
    def inverted(cls, mask: int) -> Self:
        """Those bits are inverted."""
        return cls(mask, ALL_ONES)

    @classmethod
    def stuck(cls, at: int, mask: int) -> Self:
        """Those bits are stuck at 0 or 1."""
        return cls(mask if at else 0, ALL_ONES ^ mask)


def digits_of(dtype: np.dtype) -> int:
    """Hexadecimal digits of an element, at least two."""
    return max(2, -(-width_of(dtype) // 4))


def new_bits(dtype: np.dtype) -> Kind[ElementBits]:
    """How a cell of `inj_bits` is read, for an operand of this type.

    >>> kind = new_bits(np.dtype(np.float32))
    >>> kind.parse("7f800000")
    ElementBits(flip=2139095040, keep=0, source=None)
    >>> kind.parse("copy:107/3/3/85").source
    (107, 3, 3, 85)
    >>> print("inj_bits " + kind.wrong("7f80000000"))
    inj_bits '7f80000000'; expected at most 8 hexadecimal digits for float32, xor:, set: or clear: before them, or \
copy:107/3/3/85
    """
    digits = digits_of(dtype)
    pattern = re.compile(rf"(?:(xor|set|clear):)?(?:0x)?([0-9a-fA-F]{{1,{digits}}})")
    forms: dict[str | None, Callable[[int], ElementBits]] = {
        None: ElementBits,
        "xor": ElementBits.inverted,
        "set": partial(ElementBits.stuck, 1),
        "clear": partial(ElementBits.stuck, 0),
    }

    def parse(text: str) -> ElementBits:
        if text.startswith("copy:"):
            return ElementBits(0, ALL_ONES, POSITION.parse(text.removeprefix("copy:")))
        if (found := pattern.fullmatch(text)) is None:
            raise ValueError
        if (mask := int(found[2], 16)) >> width_of(dtype):
            raise ValueError
        return forms[found[1]](mask)

    few = f", below {1 << width:x}," if (width := width_of(dtype)) % 4 else ""
    expected = f"at most {digits} hexadecimal digits{few} for {dtype.name}"
    expected += ", xor:, set: or clear: before them, or copy:107/3/3/85"
    return Kind(parse, lambda text: expected)


def format_new_bits(new: ElementBits, dtype: np.dtype) -> str:
    """The cell that says so.

    >>> masks = ElementBits(1), ElementBits.inverted(1), ElementBits.stuck(1, 4), ElementBits.stuck(0, 4)
    >>> each = *masks, ElementBits(0, ALL_ONES, (1, 2))
    >>> [format_new_bits(new, np.dtype(np.float16)) for new in each]
    ['0001', 'xor:0001', 'set:0004', 'clear:0004', 'copy:1/2']
    """
    if new.source is not None:
        return f"copy:{format_position(new.source)}"
    if new.keep in (0, ALL_ONES):
        how, mask = "xor:" if new.keep else "", new.flip
    else:
        how, mask = "set:" if new.flip else "clear:", ALL_ONES ^ new.keep
    return f"{how}{mask:0{digits_of(dtype)}x}"


def format_position(position: Position) -> str:
    """Coordinates as files write them.

    >>> format_position((107, 3, 3, 85))
    '107/3/3/85'
    """
    return "/".join(map(str, position))


def from_masks(bits: NewBits, tensor: TensorSpec) -> tuple[ElementBits, ...]:
    """The form of each element's new bits, as a fault model drew them.

    Args:
      bits: what a fault model's values are.
      tensor: shape and type of the operand.

    Raises:
      ValueError: masks that no form expresses.
    """
    width = (1 << width_of(tensor.dtype)) - 1  # a narrower type takes the low bits
    keep, flip = (np.asarray(mask).astype(np.uint64) & np.uint64(width) for mask in (bits.keep, bits.flip))
    keep = np.where(keep == 0, 0, keep | np.uint64(ALL_ONES ^ width))
    other = (np.asarray(bits.source) != bits.index) & (keep != 0)
    sources = unravel(bits.source, tensor.shape)
    return tuple(
        ElementBits(mask, kept, source if elsewhere else None)
        for mask, kept, elsewhere, source in zip(flip.tolist(), keep.tolist(), other.tolist(), sources, strict=True)
    )


def to_masks(new: Sequence[ElementBits], index: Indices, shape: tuple[int, ...]) -> NewBits:
    """Sources and masks of elements' new bits; the inverse of `from_masks`.

    >>> copy = ElementBits(0, ALL_ONES, (1, 1))
    >>> to_masks([ElementBits(5), ElementBits.inverted(1), copy], np.arange(3), (2, 2)).source
    array([0, 1, 3])

    The masks are uint64: those of any width.
    """
    source = np.array(index)
    copied = [at for at, each in enumerate(new) if each.source is not None]
    if copied:
        source[copied] = ravel([each.source for each in new if each.source is not None], shape)
    keep, flip = (np.array([getattr(each, name) for each in new], np.uint64) for name in ("keep", "flip"))
    return NewBits(np.asarray(index), source, keep, flip)


def ravel(positions: Sequence[Position], shape: tuple[int, ...]) -> Indices:
    """Row-major indices, int64, of coordinates; raises ValueError where one lies outside `shape`."""
    return np.ravel_multi_index(tuple(np.array(positions, np.int64).T), shape)


def unravel(index: Indices, shape: tuple[int, ...]) -> list[Position]:
    """Coordinates of row-major indices; the inverse of `ravel`."""
    return list(zip(*(axis.tolist() for axis in np.unravel_index(index, shape)), strict=True))
