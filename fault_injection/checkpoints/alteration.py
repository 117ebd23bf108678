"""Which elements of a checkpoint are altered, and what they become."""

import dataclasses
import fractions
import math
import pathlib
import sys
from collections.abc import Sequence

import ml_dtypes
import numpy as np

from ..machine.errors import InputError, did_you_mean
from ..machine.reading import matches
from .checkpoint import Altered, Checkpoint, Described, is_scale, of_optimizer

PARTS = ("model", "optimizer")
# Kinds of numbers: those with a sign, an exponent and a mantissa in whole bytes; whole numbers; those that are narrower
# than a byte; and powers of two without a sign, which are scales of blocks.
KINDS = ("float", "int", "narrow", "scale")
FRUITLESS = 200  # rounds of draws without one that is allowed, until we give up
LARGEST = 50_000_000  # alterations of one checkpoint
BLOCK = 1 << 16  # elements whose bits are drawn together


@dataclasses.dataclass(frozen=True)
class Selection:
    """What is asked for: how many elements, which, and what becomes of them.

    Exactly one of `count`, `share` and `probability` is given, and at most one of `mask`, `critical`,
    `value` and `factor`; without one of them, bits are drawn.

    Attributes:
      count: elements altered.
      share: of all elements, from 0 to 1.
      probability: of each element.
      bits: the lowest and the highest bit that may be inverted; bit 0 is the least significant.  None for all.
      burst: how many distinct bits of one element are inverted.
      mask: bits that are inverted, in every element.
      critical: the highest bit of the exponent is inverted.
      value: what elements are set to.
      factor: what elements are multiplied by.
      keep_sign: no alteration changes the sign.
      finite: no alteration makes an element infinite or NaN.
      kinds: which numbers are altered; of `KINDS`.
      names: patterns of arrays; any of them.
      part: `model` or `optimizer`; None for both.
      by_tensor: an array is drawn first, each as likely as any other; else each element is.
      most_significant_first: bits are counted from the sign, as the published tool does.
      seed: of everything drawn.
    """

    count: int | None = None
    share: float | None = None
    probability: float | None = None
    bits: tuple[int, int] | None = None
    burst: int = 1
    mask: int | None = None
    critical: bool = False
    value: float | None = None
    factor: float | None = None
    keep_sign: bool = False
    finite: bool = False
    kinds: tuple[str, ...] = KINDS[:1]
    names: tuple[str, ...] = ()
    part: str | None = None
    by_tensor: bool = False
    most_significant_first: bool = False
    seed: int = 0

    @property
    def drawn(self) -> bool:
        """Whether bits are drawn."""
        return self.mask is None and not self.critical and self.value is None and self.factor is None


def chosen(arrays: dict[str, Described], wanted: Selection, path: pathlib.Path | None = None) -> dict[str, Described]:
    """The arrays of the wanted kinds of numbers, with elements, that the patterns and the part name.

    Args:
      path: of the checkpoint, for messages.

    Raises:
      InputError: a pattern matches none, or none is left.
    """
    floating = {name: array for name, array in arrays.items() if kind_of(array) in wanted.kinds and array.size}
    what = numbers(wanted.kinds)
    for pattern in wanted.names:
        if not any(matches(name, [pattern]) for name in floating):
            only = f" of {what}" if any(matches(name, [pattern]) for name in arrays) else ""
            raise InputError(f"--names {pattern!r} matches no array{only}{did_you_mean(pattern, floating)}")
    found = {
        name: array
        for name, array in floating.items()
        if (not wanted.names or matches(name, wanted.names))
        and (wanted.part is None or of_optimizer(name) == (wanted.part == "optimizer"))
    }
    if not found:
        part = f" of the {wanted.part}" if wanted.part else ""
        raise InputError(f"has no array of {what}{part} to alter", path)
    for name, array in found.items():
        _check_bits(name, array, wanted)
    return found


def kind_of(array: Described) -> str:
    """Which of `KINDS` an array's numbers are; `bool` for truth values, which are never altered.

    >>> kind_of(Described((3,), np.dtype(np.int8))), kind_of(Described((), np.dtype(np.float16)))
    ('int', 'float')
    """
    if array.floating:
        return "float"
    if array.width < 8:
        return "narrow"
    return "scale" if is_scale(array.dtype) else "int" if array.dtype.kind in "iu" else "bool"


def numbers(kinds: Sequence[str]) -> str:
    """What numbers of some kinds are called.

    >>> numbers(["float"]), numbers(["int", "narrow"])
    ('floating-point numbers', 'numbers of the kinds int, narrow')
    """
    if tuple(kinds) == KINDS[:1]:
        return "floating-point numbers"
    return f"numbers of the kind{'s' if len(kinds) > 1 else ''} {', '.join(kinds)}"


def left_out(checkpoint: Checkpoint, kinds: Sequence[str] = KINDS[:1]) -> dict[str, str]:
    """What is not altered: by name, of what type and shape it is."""
    others = {name: array.text for name, array in checkpoint.arrays.items() if kind_of(array) not in kinds}
    return {**others, **{name: raw.text for name, raw in checkpoint.raw.items()}}


def _check_bits(name: str, array: Described, wanted: Selection) -> None:
    width = array.width
    low, high = wanted.bits or (0, width - 1)
    if wanted.critical and not has_exponent(array):
        raise InputError(f"--critical: {name} is {array.dtype.name}, which has no exponent; choose with --kinds")
    if high >= width:
        raise InputError(f"--bits {low}-{high}: {name} has {width} bits; choose arrays of one width with --names")
    if wanted.drawn and wanted.burst > high - low + 1:
        raise InputError(f"--burst {wanted.burst}: only {high - low + 1} bits of {name} may be inverted")
    if wanted.mask is not None and wanted.mask >> width:
        raise InputError(f"--mask {wanted.mask:x}: {name} has {width} bits; choose arrays of one width with --names")


def population(checkpoint: Checkpoint, wanted: Selection) -> tuple[dict[str, Described], np.ndarray]:
    """What is drawn from: arrays, and which of all their elements, one array after the other, count already.

    An element that several arrays share counts once.  Arrays are in the order of their names, whatever that of the
    file: so equal seeds draw equal elements in every format.

    Returns:
      The arrays, without those that are all of others' elements; and int64 [n] in ascending order.

    Raises:
      InputError: see `chosen`.
    """
    arrays = chosen(dict(sorted(checkpoint.arrays.items())), wanted, checkpoint.path)
    again = checkpoint.repeated(arrays)
    arrays = {name: array for name, array in arrays.items() if again.get(name, ()) is not None}
    begin, places = 0, [np.empty(0, np.int64)]
    for name, array in arrays.items():
        if (repeated := again.get(name)) is not None:
            places.append(begin + repeated)
        begin += array.size
    return arrays, np.concatenate(places)


def number_of(total: int, wanted: Selection, rng: np.random.Generator) -> int:
    """How many of so many elements are altered.

    Raises:
      InputError: more than there are.
    """
    if wanted.probability is not None:
        count = int(rng.binomial(total, wanted.probability))
    else:
        count = wanted.count if wanted.count is not None else round(total * (wanted.share or 0.0))
    if count > total:
        raise InputError(f"--count {count}: the arrays have {total} elements")
    if count > LARGEST:
        raise InputError(f"{count} elements would be altered, at most {LARGEST} can be")
    return count


def draw_alteration(checkpoint: Checkpoint, wanted: Selection) -> dict[str, Altered]:
    """Draw alterations: elements without repetition, and bits; the same for equal seeds and arrays.

    Every set of elements is as likely as any other, unless tensors are drawn.  Where an alteration is not allowed,
    element and bits are drawn anew: among arrays of one width, each allowed pair of them is as likely as any other.

    Raises:
      InputError: see `chosen` and `number_of`; or hardly any alteration is allowed.
    """
    rng = np.random.default_rng([wanted.seed, 0])
    left = left_out(checkpoint, wanted.kinds)
    if left and not any(kind_of(array) in wanted.kinds for array in checkpoint.arrays.values()):
        has = "; ".join(f"{name} is {text}" for name, text in [*left.items()][:5])
        has += f"; and {len(left) - 5} more" if len(left) > 5 else ""
        other = [kind for kind in KINDS if any(kind_of(array) == kind for array in checkpoint.arrays.values())]
        has += f"; give --kinds {','.join(other)}" if other else ""
        raise InputError(f"has no array of {numbers(wanted.kinds)} that can be altered: {has}", checkpoint.path)
    arrays, taken = population(checkpoint, wanted)
    shared = len(taken)
    count = number_of(sum(array.size for array in arrays.values()) - shared, wanted, rng)
    names, sizes = list(arrays), np.array([array.size for array in arrays.values()])
    ends = np.cumsum(sizes)
    begins = ends - sizes
    fruitless = 0
    found: dict[str, list[Altered]] = {}
    while len(taken) - shared < count:
        need = count - (len(taken) - shared)
        if wanted.by_tensor:
            places = _of_tensors(rng, begins, ends, taken, need)
        else:
            places = _free(rng, int(ends[-1]), taken, need)
        accepted = []
        for a, (low, high) in enumerate(zip(*np.searchsorted(places, (begins, ends)), strict=True)):
            if low == high:
                continue
            index = places[low:high] - begins[a]
            before = checkpoint.words(names[a], index)
            after = _altered(before, arrays[names[a]], wanted, rng)
            fine = _allowed(before, after, arrays[names[a]], wanted)
            found.setdefault(names[a], []).append(Altered(index[fine], before[fine], after[fine]))
            accepted.append(places[low:high][fine])
        new = np.concatenate([np.empty(0, np.int64), *accepted])
        fruitless = 0 if len(new) else fruitless + 1
        if fruitless == FRUITLESS:
            raise InputError(
                f"{len(taken) - shared} of {count} alterations found, and then none of {FRUITLESS} draws is allowed",
                checkpoint.path,
            )
        taken = np.sort(np.concatenate([taken, new]))
    return {name: _together(parts) for name, parts in found.items() if any(len(part.places) for part in parts)}


def _free(rng: np.random.Generator, size: int, taken: np.ndarray, need: int) -> np.ndarray:
    """Places from 0 to `size` that are not taken, distinct and in ascending order, at most `need`."""
    if 2 * (len(taken) + need) > size:
        return np.sort(rng.permutation(np.delete(np.arange(size), taken))[:need])
    places = np.unique(rng.integers(size, size=need))  # a place drawn twice counts once
    return places[~np.isin(places, taken, assume_unique=True)]


def _of_tensors(
    rng: np.random.Generator, begins: np.ndarray, ends: np.ndarray, taken: np.ndarray, need: int
) -> np.ndarray:
    """As `_free`, of arrays from `begins` to `ends`: each that has free places is as likely as any other."""
    first, last = np.searchsorted(taken, (begins, ends))
    free = ends - begins - (last - first)
    (open_,) = np.nonzero(free)
    wanted = np.minimum(np.bincount(rng.choice(open_, size=need), minlength=len(free)), free)
    parts: list[np.ndarray] = []
    for a in np.flatnonzero(wanted):
        found, size = taken[first[a] : last[a]] - begins[a], int(ends[a] - begins[a])
        full = len(found) + int(wanted[a])
        while len(found) < full:  # a place that is drawn twice is drawn anew in its array
            new = _free(rng, size, found, full - len(found))
            found, parts = np.sort(np.concatenate([found, new])), [*parts, begins[a] + new]
    return np.sort(np.concatenate(parts))


def _together(parts: Sequence[Altered]) -> Altered:
    """One array's alterations, from several rounds."""
    index, before, after = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    order = np.argsort(index)
    return Altered(index[order], before[order], after[order])


def has_exponent(array: Described) -> bool:
    """Whether an array's numbers have an exponent."""
    return "float" in array.dtype.name


def signed(array: Described) -> bool:
    """Whether the highest bit of an array's numbers is their sign."""
    return array.dtype.kind != "u" and "uint" not in array.dtype.name and not is_scale(array.dtype)


def _altered(before: np.ndarray, array: Described, wanted: Selection, rng: np.random.Generator) -> np.ndarray:
    """What words become, unsigned [n]."""
    width = array.width
    if (wanted.value is not None or wanted.factor is not None) and width == 64 and not has_exponent(array):
        return _exactly(before.view(array.dtype), wanted).view(array.word)
    if wanted.value is not None or wanted.factor is not None:
        with np.errstate(all="ignore"):
            values = before.view(array.dtype).astype(np.float64)
            values = np.full_like(values, wanted.value) if wanted.factor is None else values * wanted.factor
            new = (values if has_exponent(array) else _whole(values, array)).astype(array.dtype)
        return new.view(array.word) & array.word.type((1 << width) - 1)
    if wanted.mask is not None:
        mask = wanted.mask if not wanted.most_significant_first else int(f"{wanted.mask:0{width}b}"[::-1], 2)
        return before ^ array.word.type(mask)
    if wanted.critical:
        return before ^ array.word.type(1 << (width - 1 - signed(array)))
    masks = np.zeros(len(before), array.word)
    for start in range(0, len(before), BLOCK):
        bits = _bits(rng, len(before[start : start + BLOCK]), wanted.bits or (0, width - 1), wanted.burst)
        bits = width - 1 - bits if wanted.most_significant_first else bits
        masks[start : start + BLOCK] = np.bitwise_or.reduce(array.word.type(1) << bits.astype(array.word), axis=1)
    return before ^ masks


def _whole(values: np.ndarray, array: Described) -> np.ndarray:
    """Values rounded to whole numbers, the nearest that the array's type has, of less than 64 bits."""
    info = ml_dtypes.iinfo(array.dtype)
    return np.clip(np.rint(np.nan_to_num(values)), float(info.min), float(info.max))


def _exactly(values: np.ndarray, wanted: Selection) -> np.ndarray:
    """Whole numbers of 64 bits, set or multiplied as `_whole` has it; a float64 does not hold them all.

    >>> _exactly(np.array([2**53 + 1]), Selection(factor=1.0)).tolist(), _exactly(np.array([1]), Selection(value=1e300))
    ([9007199254740993], array([9223372036854775807]))
    """
    info = np.iinfo(values.dtype)
    by = wanted.value if wanted.factor is None else wanted.factor
    assert by is not None
    if not math.isfinite(by):  # as `nan_to_num` has it: NaN is zero, and zero times infinity NaN
        by = 0.0 if math.isnan(by) else math.copysign(sys.float_info.max, by)
    exact = fractions.Fraction(by)
    new = (round(exact if wanted.factor is None else int(one) * exact) for one in values)
    return np.array([min(max(one, int(info.min)), int(info.max)) for one in new], values.dtype)


def _bits(rng: np.random.Generator, count: int, between: tuple[int, int], burst: int) -> np.ndarray:
    """int64 [count, burst]: distinct bits of each element."""
    low, high = between
    if burst == 1:
        return rng.integers(low, high + 1, size=(count, 1))
    # The places of the smallest of so many random numbers are distinct, and every set of them is equally likely.
    return np.argsort(rng.random((count, high - low + 1)), axis=1)[:, :burst] + low


def _allowed(before: np.ndarray, after: np.ndarray, array: Described, wanted: Selection) -> np.ndarray:
    """bool [n]: which alterations are allowed."""
    fine = np.ones(len(before), bool)
    if wanted.keep_sign and signed(array):
        fine &= (before ^ after) >> array.word.type(array.width - 1) == 0
    if wanted.finite:
        with np.errstate(invalid="ignore"):  # of NaNs that signal
            fine &= np.isfinite(after.view(array.dtype).astype(np.float64))
    return fine
