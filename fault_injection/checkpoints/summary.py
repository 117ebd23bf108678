"""What one reading of an array leaves in memory: counts, its largest and smallest elements, runs and repeats."""

import dataclasses

import ml_dtypes
import numpy as np

from .checkpoint import Checkpoint, Described, is_scale
from .difference import even_words

KEPT = 80  # largest, and smallest, elements that are kept
SHOWN = 8  # places that are kept of what is counted
BLOCK = 512  # bytes of a block that is compared with the others: a sector of a disk
HUGE = 2.0**64  # beyond it, the square is infinite in float32


@dataclasses.dataclass
class Places:
    """So many elements of a kind, and where the first of them are.

    Attributes:
      count: how many there are.
      first: int, row-major positions of at most `SHOWN` of them, in ascending order.
    """

    count: int = 0
    first: list[int] = dataclasses.field(default_factory=list)

    def add(self, chosen: np.ndarray, begin: int) -> None:
        """Count elements of a piece, bool [n], that begins at an element of the array."""
        found = int(np.count_nonzero(chosen))
        if found and len(self.first) < SHOWN:
            self.first += (np.flatnonzero(chosen)[: SHOWN - len(self.first)] + begin).tolist()
        self.count += found


@dataclasses.dataclass
class Extremes:
    """The largest of some magnitudes, or the smallest; at most `KEPT`, the outermost first.

    Attributes:
      largest: whether these are the largest.
      keys: uint64 [n], magnitudes as whole numbers, whose order is theirs.
      places: int64 [n], row-major positions.
    """

    largest: bool
    keys: np.ndarray = dataclasses.field(default_factory=lambda: np.empty(0, np.uint64))
    places: np.ndarray = dataclasses.field(default_factory=lambda: np.empty(0, np.int64))

    def add(self, keys: np.ndarray, places: np.ndarray) -> None:
        """Take in magnitudes at places, unsigned [n] and int64 [n]."""
        if len(self.keys) == KEPT:
            last = keys.dtype.type(self.keys[-1])
            nearer = keys > last if self.largest else keys < last
            keys, places = keys[nearer], places[nearer]
        if len(keys) > KEPT:  # most pieces end before this
            cut = len(keys) - KEPT if self.largest else KEPT - 1
            order = np.argpartition(keys, cut)
            order = order[cut:] if self.largest else order[: cut + 1]
            keys, places = keys[order], places[order]
        together = np.concatenate([self.keys, keys.astype(np.uint64)])
        where = np.concatenate([self.places, places])
        order = np.lexsort((where, ~together if self.largest else together))[:KEPT]
        self.keys, self.places = together[order], where[order]


@dataclasses.dataclass
class Summary:
    """What is kept of an array.

    Attributes:
      array: the array.
      nan, infinite, negative, huge: elements of these kinds; a negative zero is none, infinities are not huge.
      zeros: how many elements are zero.
      single: how many elements have one bit besides the sign: what one flip makes of a zero.
      largest, smallest: of the magnitudes that are finite and not zero.
      run: the longest run of zeros in row-major order: its first element and its length.
      runs: how many runs of at least `LEAST_RUN` zeros there are.
      repeated: blocks that have the bits of an earlier block: first elements of both, and how many elements.
      blocks: how many blocks were compared; those of one value throughout are not.
      odd: bytes of a truth value that are neither 0 nor 1.
    """

    array: Described
    nan: Places = dataclasses.field(default_factory=Places)
    infinite: Places = dataclasses.field(default_factory=Places)
    negative: Places = dataclasses.field(default_factory=Places)
    huge: Places = dataclasses.field(default_factory=Places)
    odd: Places = dataclasses.field(default_factory=Places)
    zeros: int = 0
    single: int = 0
    largest: Extremes = dataclasses.field(default_factory=lambda: Extremes(largest=True))
    smallest: Extremes = dataclasses.field(default_factory=lambda: Extremes(largest=False))
    run: tuple[int, int] = (0, 0)
    runs: int = 0
    repeated: list[tuple[int, int, int]] = dataclasses.field(default_factory=list)
    blocks: int = 0

    @property
    def judged(self) -> bool:
        """Whether its largest elements say anything: 8 bits are too few for tails."""
        return self.array.dtype.itemsize > 1

    def magnitudes(self, extremes: Extremes) -> np.ndarray:
        """float64 [n]: the magnitudes of its largest or smallest elements."""
        if not self.array.floating:
            return extremes.keys.astype(np.float64)
        return extremes.keys.astype(self.array.word).view(self.array.dtype).astype(np.float64)


LEAST_RUN = 32  # zeros one after the other, of which one speaks at all


def mantissa_bits(dtype: np.dtype) -> int:
    """Bits of the mantissa that are stored.

    >>> mantissa_bits(np.dtype(np.float32)), mantissa_bits(np.dtype(ml_dtypes.bfloat16))
    (23, 7)
    """
    return int(ml_dtypes.finfo(dtype).nmant)


def summarised(checkpoint: Checkpoint, name: str) -> Summary:
    """Read an array once, piece by piece.

    Memory does not grow with the array, but for 8 bytes of each block of `BLOCK` bytes.

    Raises:
      InputError: it cannot be read.
    """
    found = Summary(checkpoint.arrays[name])
    dtype = found.array.dtype
    begin, open_run, hashes = 0, 0, []
    for words in even_words(checkpoint, name):
        if dtype.kind == "b":
            found.odd.add(words > 1, begin)
        elif not found.array.floating and not is_scale(dtype):
            _whole_numbers(found, words, begin)
        elif dtype.itemsize == 1:
            values = words.view(dtype).astype(np.float32)
            found.nan.add(np.isnan(values), begin)
            found.infinite.add(np.isinf(values), begin)
            found.negative.add(values < 0, begin)
            found.zeros += int(np.count_nonzero(values == 0))
        else:
            zero = _numbers(found, words, begin)
            open_run = _runs(found, zero, begin, open_run)
            hashes.append(_hashes(words))
        begin += len(words)
    _close(found, begin, open_run)
    if hashes:
        _repeats(found, checkpoint, name, np.concatenate(hashes))
    return found


def _numbers(found: Summary, words: np.ndarray, begin: int) -> np.ndarray:
    """Take in floating-point numbers of at least 16 bits; bool [n]: which are zero."""
    word, dtype = found.array.word.type, found.array.dtype
    sign, fraction = 8 * dtype.itemsize - 1, mantissa_bits(dtype)
    infinity = word((1 << sign) - (1 << fraction))
    keys = words & word((1 << sign) - 1)
    zero, finite = keys == 0, keys < infinity
    if not finite.all():
        found.nan.add(keys > infinity, begin)
        found.infinite.add(keys == infinity, begin)
    found.negative.add((words >> word(sign) != 0) & ~zero & (keys <= infinity), begin)
    zeros = int(np.count_nonzero(zero))
    found.zeros += zeros
    usual = np.flatnonzero(finite & ~zero)
    kept = keys[usual]
    found.single += int(np.count_nonzero(kept & (kept - word(1)) == 0))
    if len(kept) and float(ml_dtypes.finfo(dtype).max) > HUGE:
        most = np.array(HUGE).astype(dtype).view(found.array.word)
        if kept.max() > most:
            found.huge.add(finite & (keys > most), begin)
    found.largest.add(kept, usual + begin)
    found.smallest.add(kept, usual + begin)
    return zero


def _whole_numbers(found: Summary, words: np.ndarray, begin: int) -> None:
    values = words.view(found.array.dtype)
    found.negative.add(values < 0, begin)
    found.zeros += int(np.count_nonzero(values == 0))
    keys = np.where(values < 0, -values.astype(np.int64), values.astype(np.int64)).astype(np.uint64)
    if found.array.dtype == np.uint64:
        keys = values
    usual = np.flatnonzero(keys)
    found.largest.add(keys[usual], usual + begin)


def _runs(found: Summary, zero: np.ndarray, begin: int, open_run: int) -> int:
    """Take in runs of zeros; returns how many zeros the piece ends with, those of pieces before it included."""
    others = np.flatnonzero(~zero)
    if not len(others):
        return open_run + len(zero)
    _close(found, begin + int(others[0]), open_run + int(others[0]))
    gaps = np.diff(others) - 1
    found.runs += int(np.count_nonzero(gaps >= LEAST_RUN))
    if len(gaps) and (longest := int(gaps.max())) > found.run[1]:
        found.run = begin + int(others[gaps.argmax()]) + 1, longest
    return len(zero) - 1 - int(others[-1])


def _close(found: Summary, end: int, length: int) -> None:
    """A run of zeros ends before an element."""
    found.runs += length >= LEAST_RUN
    if length > found.run[1]:
        found.run = end - length, length


FACTORS = np.random.default_rng(0).integers(1 << 62, size=BLOCK // 8, dtype=np.uint64) * np.uint64(2) + np.uint64(1)


def _hashes(words: np.ndarray) -> np.ndarray:
    """uint64 [n]: a number of each whole block, equal for equal ones; 0 where all its elements are equal."""
    size = BLOCK // words.itemsize
    whole = words[: len(words) // size * size].reshape(-1, size)
    if not len(whole):
        return np.empty(0, np.uint64)
    wide = np.ascontiguousarray(whole).view(np.uint64)
    mixed = (wide ^ (wide >> np.uint64(29))) * FACTORS
    sums = np.asarray(np.sum(mixed ^ (mixed >> np.uint64(32)), axis=1, dtype=np.uint64))
    sums[(whole == whole[:, :1]).all(axis=1)] = 0
    return sums


def _repeats(found: Summary, checkpoint: Checkpoint, name: str, hashes: np.ndarray) -> None:
    """Note the first blocks that have the bits of an earlier one; neighbours of neighbours are one."""
    size = BLOCK // found.array.dtype.itemsize
    (places,) = np.nonzero(hashes)
    found.blocks = len(places)
    order = np.argsort(hashes[places], kind="stable")
    same = np.flatnonzero(np.diff(hashes[places][order]) == 0)
    pairs = sorted((int(places[order[k + 1]]), int(places[order[k]])) for k in same)
    if len(pairs) > max(SHOWN, found.blocks // 100) or 2 * len(pairs) >= found.blocks:
        return  # an array that repeats itself is meant to
    for later, earlier in pairs:
        one, other = (checkpoint.words(name, np.arange(k * size, (k + 1) * size)) for k in (earlier, later))
        if not np.array_equal(one, other):
            continue
        last = found.repeated[-1] if found.repeated else (0, 0, 0)
        if last[2] and last[0] + last[2] == later * size and last[1] + last[2] == earlier * size:
            found.repeated[-1] = last[0], last[1], last[2] + size
        else:
            found.repeated.append((later * size, earlier * size, size))
