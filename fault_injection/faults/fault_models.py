"""Software fault models by their published names: which operand a fault strikes, where in it, and with what bits.

They come from an analysis of what defects in an accelerator do to the tensors that software
sees (docs/science.md, Fault models; FIdelity: He, Balaprakash, Li, MICRO 2020).  In an
injection file positions and values are given, and the model only names the operand; in a
campaign the model draws both.
"""

import dataclasses
import pathlib
import re
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from ..machine.errors import InputError
from ..machine.files import read_text
from ..machine.reading import SHOWN
from ..models.bits import NewBits
from ..models.fault import Operand
from .number_formats import FLOAT32, Format

Indices = np.ndarray


# `(rng, index, size, format)`: a generator, the positions struck (int64 [K], row-major), the elements of the
# operand, and their format.
Values = Callable[[np.random.Generator, Indices, int, Format], NewBits]
# `(rng, size)`: distinct positions, int64 [K], in an operand of `size` elements.
Places = Callable[[np.random.Generator, int], Indices]


def bit_flip(bits: tuple[int, ...] = ()) -> Values:
    """One bit of each element is inverted, chosen uniformly from `bits`, or from all bits; bit 0 is the lowest.

    >>> bit_flip((31,))(np.random.default_rng(0), np.array([5]), 100).flip
    array([2147483648], dtype=uint32)
    """

    def values(rng: np.random.Generator, index: Indices, size: int, format: Format = FLOAT32) -> NewBits:
        bit = rng.choice(np.array(bits or range(format.width), format.mask), index.shape)
        return NewBits.inverted(index, format.mask(1) << bit)

    return values


def stuck(bits: tuple[int, ...] = ()) -> Values:
    """One bit, the same of all elements, is stuck at 0 or at 1; it is drawn as that of `bit_flip` is.

    >>> masks = stuck((30,))(np.random.default_rng(0), np.array([5, 6]), 100)
    >>> hex(masks.keep[0]), hex(masks.flip[0])
    ('0xbfffffff', '0x40000000')
    """

    def values(rng: np.random.Generator, index: Indices, size: int, format: Format = FLOAT32) -> NewBits:
        mask = format.mask(1) << rng.choice(np.array(bits or range(format.width), format.mask))
        flip = mask * format.mask(rng.integers(2))
        return NewBits(index, index, *(np.full(index.shape, each, format.mask) for each in (~mask, flip)))

    return values


def random_finite(rng: np.random.Generator, index: Indices, size: int, format: Format = FLOAT32) -> NewBits:
    """Bits uniform over all finite patterns of the format.

    >>> bits = random_finite(np.random.default_rng(0), np.arange(1000), 1000)
    >>> bool(np.isfinite(bits.flip.view(np.float32)).all())
    True
    """
    return NewBits.given(index, format.finite(rng, index.shape))


def same_tensor(rng: np.random.Generator, index: Indices, size: int, format: Format = FLOAT32) -> NewBits:
    """Values of other elements of the same tensor, each drawn uniformly from all but the element struck.

    >>> same_tensor(np.random.default_rng(0), np.array([0, 1]), 2).source
    array([1, 0])
    """
    source = (index + rng.integers(1, max(size, 2), size=index.shape)) % size
    return dataclasses.replace(NewBits.inverted(index, format.mask(0)), source=source)


def zero(rng: np.random.Generator, index: Indices, size: int, format: Format = FLOAT32) -> NewBits:
    """Zero."""
    return NewBits.given(index, format.mask(0))


def worst_case(rng: np.random.Generator, index: Indices, size: int, format: Format = FLOAT32) -> NewBits:
    """Uniform from 10¹⁶ to 10¹⁸: no other source can have given the published values of latent outcomes.

    In a format that does not reach as far, it is the largest finite number.
    """
    return NewBits.given(index, format.bits(np.minimum(rng.uniform(1e16, 1e18, index.shape), format.largest)))


def measured(rng: np.random.Generator, index: Indices, size: int, format: Format = FLOAT32) -> NewBits:
    """After a gate-level study of a GPU: half zeros, flips mostly of several bits, 1 % special values.

    All elements of a fault share one kind: zero with probability 0.5, NaN or an infinity (where the format
    has them) with 0.01, and inverted bits otherwise.  Then the same number of bits is inverted in each
    element, at places drawn anew for each: one bit with probability 0.38, and 2 to 8 bits
    (uniform) otherwise.  The shares are the study's, which says "fewer than 40 %" where we
    take 0.38; the range from 2 to 8 is ours.

    Reference: arXiv 2605.04213.
    """
    kind = rng.random()
    if kind < 0.5:
        return zero(rng, index, size, format)
    if kind < 0.51 and format.special:
        return NewBits.given(index, rng.choice(np.array(format.special, format.mask)))
    count = 1 if rng.random() < 0.38 else rng.integers(2, 9)
    places = rng.permuted(np.tile(np.arange(format.width, dtype=format.mask), (index.size, 1)), axis=1)[:, :count]
    return NewBits.inverted(index, np.bitwise_or.reduce(format.mask(1) << places, axis=1))


class Pattern(NamedTuple):
    """One row of a histogram of bit patterns.

    Attributes:
      flip: whether the bits are inverted; else the element gets them.
      bits: the pattern.
      weight: its share, in proportion to the sum of all weights.
    """

    flip: bool
    bits: int
    weight: float


def histogram(patterns: tuple[Pattern, ...]) -> Values:
    """One of the patterns for each element, drawn by their weights.

    >>> nan = Pattern(flip=False, bits=0x7FC00000, weight=1.0)
    >>> histogram((nan,))(np.random.default_rng(0), np.array([5]), 100).flip.view(np.float32)
    array([nan], dtype=float32)
    """
    weights = np.array([pattern.weight for pattern in patterns])
    kinds = np.array([pattern.flip for pattern in patterns])
    bits = np.array([pattern.bits for pattern in patterns], np.uint64)

    def values(rng: np.random.Generator, index: Indices, size: int, format: Format = FLOAT32) -> NewBits:
        row = rng.choice(len(weights), index.shape, p=weights / weights.sum())
        keep = np.where(kinds[row], ~format.mask(0), format.mask(0))
        return NewBits(index, index, keep, bits[row].astype(format.mask))

    return values


def read_histogram(path: pathlib.Path) -> tuple[Pattern, ...]:
    """Bit patterns from a file of rows `flip,MASK,WEIGHT` (these bits are inverted) or `set,BITS,WEIGHT`.

    Masks and bits are hexadecimal, of at most as many digits as an element of the operand has.
    Empty rows, and rows that begin with `#`, are passed over.

    Raises:
      InputError: the file cannot be read, has a row of another form, or has no pattern of positive weight.
    """
    patterns = []
    for line, row in enumerate(read_text(path).splitlines(), 1):
        if not row.strip() or row.lstrip().startswith("#"):
            continue
        found = re.fullmatch(r"\s*(flip|set)\s*,\s*([0-9a-fA-F]{1,16})\s*,\s*([0-9]{1,15}(?:\.[0-9]{1,15})?)\s*", row)
        if found is None:
            raise InputError(
                f"{row[:SHOWN]!r}; expected a row such as flip,00800000,12.5 or set,00000000,50", path, line
            )
        patterns.append(Pattern(found[1] == "flip", int(found[2], 16), float(found[3])))
    if not sum(pattern.weight for pattern in patterns):
        raise InputError("no pattern of positive weight", path)
    return tuple(patterns)


VALUES: dict[str, Callable[..., Values]] = {
    "bit_flip": bit_flip,
    "stuck": stuck,
    "random_finite": lambda: random_finite,
    "same_tensor": lambda: same_tensor,
    "zero": lambda: zero,
    "worst_case": lambda: worst_case,
    "histogram": histogram,
    "measured": lambda: measured,
}


def group_of(count: int) -> Places:
    """`count` consecutive elements, from a multiple of `count` on; all elements of an operand that has no more.

    >>> group_of(4)(np.random.default_rng(0), 4)
    array([0, 1, 2, 3])
    """

    def places(rng: np.random.Generator, size: int) -> Indices:
        first = int(rng.integers(max(1, size // count))) * count
        return np.arange(first, min(first + count, size))

    return places


def run_of_groups(count: int) -> Places:
    """Groups of `count` from start ~ U{0 … T−2} up to, but not including, end ~ U{start+1 … T−1}, T = size/count.

    As in the artifact: the last group is never struck, except in an operand of only one group.

    >>> run_of_groups(4)(np.random.default_rng(0), 8)
    array([0, 1, 2, 3])
    """

    def places(rng: np.random.Generator, size: int) -> Indices:
        groups = size // count
        if groups < 2:
            return np.arange(min(count, size))
        start = int(rng.integers(groups - 1))
        return np.arange(start * count, int(rng.integers(start + 1, groups)) * count)

    return places


def periodic(count: int) -> Places:
    """Every 2nd, 4th, 8th or 16th element (uniform), `count` of them from anywhere on; fewer in a small operand.

    >>> np.diff(periodic(3)(np.random.default_rng(0), 100))
    array([16, 16])
    """

    def places(rng: np.random.Generator, size: int) -> Indices:
        period = int(rng.choice([2, 4, 8, 16]))
        first = int(rng.integers(max(1, size - (count - 1) * period)))
        return np.arange(first, min(first + count * period, size), period)

    return places


def scattered(count: int) -> Places:
    """So many elements, uniformly among all; all of them in a smaller operand.

    >>> scattered(3)(np.random.default_rng(0), 100).shape
    (3,)
    """

    def places(rng: np.random.Generator, size: int) -> Indices:
        found: set[int] = set()  # no list of all positions: a table has millions
        while len(found) < min(count, size):
            found |= set(rng.integers(size, size=min(count, size) - len(found)).tolist())
        return np.array(sorted(found), np.int64)

    return places


def lane(lanes: int) -> Places:
    """Every element that one lane of an array of so many multipliers computes, the lane drawn uniformly.

    Element i is computed by lane i modulo `lanes`.  In an operand of fewer elements other lanes compute nothing.

    >>> lane(4)(np.random.default_rng(0), 10)
    array([3, 7])
    """

    def places(rng: np.random.Generator, size: int) -> Indices:
        return np.arange(int(rng.integers(min(lanes, size))), size, lanes)

    return places


@dataclasses.dataclass(frozen=True)
class FaultModel:
    """How positions and values of a fault are chosen.

    Attributes:
      operand: the operand struck.
      places: draws the positions.
      values: key of `VALUES`: what the elements become.
      group: elements in a row-major, aligned group; the model strikes whole groups.
    """

    operand: Operand
    places: Places
    values: str
    group: int = 1

    @property
    def one(self) -> bool:
        """Whether it strikes one element, however many an operand has.

        >>> FAULT_MODELS["RBFLIP"].one, FAULT_MODELS["FLIPS_2"].one
        (True, False)
        """
        return len(self.places(np.random.default_rng(0), 1 << 20)) == 1


LANES = (16, 64, 256)
FLIPS = (1, 2, 4, 8, 10, 16, 32, 64, 100, 128, 500, 1000)


def _model(operand: Operand, values: str, group: int = 1, run: bool = False) -> FaultModel:
    return FaultModel(operand, (run_of_groups if run else group_of)(group), values, group)


# The `_16` variants stand for a register of an operand that 16 outputs read.  In the artifact they are
# literally the plain models, and so they are here.
FAULT_MODELS = {
    "INPUT": _model(Operand.INPUT, "bit_flip"),
    "INPUT_16": _model(Operand.INPUT, "bit_flip"),
    "WT": _model(Operand.WEIGHT, "bit_flip"),
    "WT_16": _model(Operand.WEIGHT, "bit_flip"),
    "RBFLIP": _model(Operand.OUTPUT, "bit_flip"),
    "RD": _model(Operand.OUTPUT, "random_finite"),
    "RD_CORRECT": _model(Operand.OUTPUT, "same_tensor"),
    "ZERO": _model(Operand.OUTPUT, "zero"),
    "N16_RD": _model(Operand.OUTPUT, "random_finite", 16),
    "N16_RD_CORRECT": _model(Operand.OUTPUT, "same_tensor", 16),
    "RD_GLB": _model(Operand.OUTPUT, "random_finite", 16, run=True),
    "RD_CORRECT_GLB": _model(Operand.OUTPUT, "same_tensor", 16, run=True),
    "N64_INPUT": _model(Operand.INPUT, "same_tensor", 64),
    "N64_INPUT_16": _model(Operand.INPUT, "same_tensor", 64),
    "N64_INPUT_GLB": _model(Operand.INPUT, "same_tensor", 64, run=True),
    "N64_WT": _model(Operand.WEIGHT, "same_tensor", 64),
    "N64_WT_16": _model(Operand.WEIGHT, "same_tensor", 64),
    "N64_WT_GLB": _model(Operand.WEIGHT, "same_tensor", 64, run=True),
    "MEASURED": FaultModel(Operand.OUTPUT, periodic(16), "measured"),
    # What a lane of an array of multipliers computes, one of its bits stuck; meant for a permanent schedule.
    **{f"LANE_{count}": FaultModel(Operand.OUTPUT, lane(count), "stuck") for count in LANES},
    # One bit of each of so many elements of what a step or an operation reads; ours, for the state.
    **{f"FLIPS_{count}": FaultModel(Operand.INPUT, scattered(count), "bit_flip") for count in FLIPS},
}
# Of the published systems; a plan without a table of models has these.
OURS = ("MEASURED", *(f"LANE_{count}" for count in LANES), *(f"FLIPS_{count}" for count in FLIPS))
PUBLISHED_MODELS = tuple(name for name in FAULT_MODELS if name not in OURS)
