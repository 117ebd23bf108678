"""Whether a checkpoint is sound, judged by itself alone: what no training writes, and what lies far from its like.

There are two sorts of findings.  *Rules*: a NaN, an infinity, a second moment below zero; no chance is stated for them,
since a sound training writes none.  *Outliers*: elements so far beyond the others of their array, or arrays whose
largest element is so far beyond their siblings', that chance explains them in at most `budget` of clean checkpoints.
The budget is divided by the number of tests (Bonferroni); the model of a test is that of `tails`.
"""

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np

from .checkpoint import Checkpoint, of_optimizer
from .kinds import counter, never_negative, scale_of, siblings
from .summary import LEAST_RUN, Extremes, Summary, mantissa_bits, summarised
from .tails import outermost

BUDGET = 1e-3  # findings by chance that a clean checkpoint has on average, at most, if the model holds
LARGE, SMALL = 16, 2  # elements of one array that are asked for at either end
# The smallest mean excesses that are believed, in logarithms: outliers of sound arrays come in such steps.
FLOOR, FLOOR_OF_OPTIMIZER, FLOOR_OF_SIBLINGS = 0.25, 0.5, 1.0
# At the lower end: 1 for a density that is bounded at zero; more where a dead channel or a slow start leaves single
# elements that are small, as in arrays of one axis.
FLOOR_SMALL, FLOOR_SMALL_OF_FEW = 1.0, 4.0
MANY, MANY_OF_OPTIMIZER = 200, 1000  # elements, of at least two axes, that no single channel speaks for
FEW = 4  # excesses among siblings
RARE = 0.01  # a share of elements above which they are no exception


class Finding(NamedTuple):
    """What is not sound.

    Attributes:
      array: its name.
      kind: `nan`, `infinite`, `huge`, `large`, `small`, `siblings`, `negative`, `alone`, `zeros`, `repeated`, `scale`,
        `counter` or `boolean`.
      element: its coordinates; of several the first one's.
      bits: its word, in hexadecimal.
      value: the number.
      why: in words.
      chance: the expected number of clean checkpoints with such a finding, of one; None for rules.
      elements: how many it is about.
    """

    array: str
    kind: str
    element: tuple[int, ...]
    bits: str
    value: float
    why: str
    chance: float | None = None
    elements: int = 1


class Scan(NamedTuple):
    """What a checkpoint was found to have.

    Attributes:
      findings: of it, array by array in its own order.
      arrays, elements: how many were read.
      tests: how many the budget is divided by.
      unjudged: what was not looked at, or not for outliers, by name: why.
    """

    findings: tuple[Finding, ...]
    arrays: int
    elements: int
    tests: int
    unjudged: Mapping[str, str]


def scan(checkpoint: Checkpoint, budget: float = BUDGET) -> Scan:
    """Look for what is not sound; each array is read once, and one piece of it is in memory at a time.

    Args:
      budget: how many findings a clean checkpoint may have by chance, on average, if the model holds.

    Raises:
      InputError: an array cannot be read.
    """
    return judge(checkpoint, {name: summarised(checkpoint, name) for name in checkpoint.arrays}, budget)


def judge(checkpoint: Checkpoint, found: Mapping[str, Summary], budget: float = BUDGET) -> Scan:
    """As `scan`, of arrays that were read before: of all, by name."""
    judged = {name: one for name, one in found.items() if one.judged}
    groups = _groups(judged)
    tests = 2 * len(judged) + len(groups)
    limit = budget / max(tests, 1)
    findings: dict[str, list[Finding]] = {name: [] for name in found}
    say = _Teller(checkpoint, tests, findings)
    for name, one in found.items():
        _rules(say, name, one)
    _signs(say, found)
    _scales(say, found)
    _counters(say, found)
    inside: dict[str, int] = {}
    for name, one in judged.items():
        inside[name] = _large(say, name, one, limit)
        _small(say, name, one, limit)
    for pattern, names in groups.items():
        _beside(say, pattern, {name: judged[name] for name in names}, inside, limit)
    for name, one in judged.items():
        _huge(say, name, one)
        _blocks(say, name, one, limit)
    unjudged = {name: raw.text for name, raw in checkpoint.raw.items()}
    unjudged |= {name: f"{one.array.text}: not for outliers" for name, one in found.items() if not one.judged}
    told = tuple(one for name in found for one in findings[name])
    return Scan(told, len(found), sum(one.array.size for one in found.values()), tests, unjudged)


class _Teller:
    """Writes findings down: knows the checkpoint, and how many tests there are."""

    def __init__(self, checkpoint: Checkpoint, tests: int, findings: dict[str, list[Finding]]) -> None:
        self.checkpoint, self.tests, self.findings = checkpoint, tests, findings

    def __call__(self, name: str, kind: str, place: int, why: str, chance: float | None = None, count: int = 1) -> None:
        array = self.checkpoint.arrays[name]
        word = self.checkpoint.words(name, np.array([place], np.int64))
        value = float(word.view(array.dtype)[0]) if array.dtype.kind != "b" else float(word[0])
        element = tuple(map(int, np.unravel_index(place, array.shape))) if array.shape else ()
        bits = f"{int(word[0]):0{2 * array.dtype.itemsize}x}"
        whole = None if chance is None else min(1.0, chance * self.tests)
        self.findings[name].append(Finding(name, kind, element, bits, value, why, whole, count))

    def told(self, name: str) -> set[tuple[int, ...]]:
        """Elements of an array that were named."""
        return {one.element for one in self.findings[name]}


def _rules(say: _Teller, name: str, one: Summary) -> None:
    """NaN, infinities, truth values that are none; a mask of negative infinities among zeros is meant."""
    if one.nan.count:
        say(name, "nan", one.nan.first[0], _several("is no number", one.nan.count), count=one.nan.count)
    infinite = one.infinite.count
    mask = infinite > RARE * one.array.size and infinite + one.zeros == one.array.size
    mask = mask and infinite == one.negative.count and infinite < one.array.size
    if infinite and not mask:
        say(name, "infinite", one.infinite.first[0], _several("is infinite", infinite), count=infinite)
    if one.odd.count:
        why = _several("is a truth value that is neither 0 nor 1", one.odd.count)
        say(name, "boolean", one.odd.first[0], why, count=one.odd.count)


def _several(text: str, count: int) -> str:
    return text if count == 1 else f"{text}, as are {count - 1:,} more of its array"


def _signs(say: _Teller, found: Mapping[str, Summary]) -> None:
    """Negative elements of what has none by its name, where nearly all arrays of that kind bear the name out."""
    kinds: dict[str, list[str]] = defaultdict(list)
    for name, one in found.items():
        if one.array.floating and (kind := never_negative(name)):
            kinds[kind].append(name)
    for kind, names in kinds.items():
        negative, size = (
            sum(found[name].negative.count for name in names),
            sum(found[name].array.size for name in names),
        )
        if negative > max(1, RARE * size):
            continue  # the name means something else
        for name in names:
            if count := found[name].negative.count:
                why = _several(f"is below zero; {kind} are not", count)
                say(name, "negative", found[name].negative.first[0], why, count=count)


def _scales(say: _Teller, found: Mapping[str, Summary]) -> None:
    """Scales of quantised arrays that are not positive."""
    narrow = [name for name, one in found.items() if one.array.dtype.itemsize == 1 and one.array.dtype.kind != "b"]
    for name, one in found.items():
        weights = scale_of(name, narrow) if narrow and one.array.floating else None
        if weights and one.negative.count and one.negative.count <= max(1, RARE * one.array.size):
            why = _several(f"is below zero, and scales {weights}", one.negative.count)
            say(name, "scale", one.negative.first[0], why, count=one.negative.count)


def _counters(say: _Teller, found: Mapping[str, Summary]) -> None:
    """Counters below zero, and one that differs from all its siblings, which agree."""
    groups: dict[str, dict[str, float]] = defaultdict(dict)
    for name, one in found.items():
        if counter(name) and one.array.dtype.kind in "iuf" and one.array.size == 1:
            if one.negative.count:
                say(name, "counter", 0, "is a counter below zero")
            word = say.checkpoint.words(name, np.zeros(1, np.int64))
            groups[siblings(name)][name] = float(word.view(one.array.dtype)[0])
    for pattern, values in groups.items():
        for name, value in values.items():
            others = {other for one, other in values.items() if one != name}
            if len(values) >= FEW and len(others) == 1 and value not in others and not say.findings[name]:
                say(name, "counter", 0, f"is {value:g}; all {len(values) - 1} other {pattern} are {others.pop():g}")


def _floor(name: str) -> float:
    return FLOOR_OF_OPTIMIZER if of_optimizer(name) or never_negative(name) else FLOOR


def _logs(one: Summary, extremes: Extremes) -> np.ndarray:
    logs = np.log(one.magnitudes(extremes))
    return logs if extremes.largest else -logs


def _rarity(one: Summary, extremes: Extremes, asked: int) -> np.ndarray:
    """float64 [n]: the share of elements with one bit set, for those that have one; 1 for others.

    What one flip makes of a zero has one bit.  A number that training wrote hardly ever does.
    """
    keys = extremes.keys
    if not one.array.floating:
        return np.ones(len(keys))
    single = keys & (keys - np.uint64(1)) == 0
    others = max(0, one.single - int(np.count_nonzero(single[:asked])))
    usual = one.array.size - one.zeros
    share = max((others + 1) / (usual + 1), 2.0 ** -mantissa_bits(one.array.dtype))
    return np.where(single & (one.zeros > 0), min(share, 1.0), 1.0)


def _large(say: _Teller, name: str, one: Summary, limit: float) -> int:
    """Elements beyond all others of their array; returns how many there are."""
    usual, zeros = one.array.size - one.zeros, one.zeros
    if 1 <= usual <= 2 and zeros >= 32 * usual and len(one.largest.keys) == one.single == usual:
        for place in one.largest.places:
            say(name, "alone", int(place), f"has one bit, and {zeros:,} others of its array are zero")
        return usual
    asked = min(LARGE, max(1, usual // 10))
    logs, rarity = _logs(one, one.largest), _rarity(one, one.largest, asked)
    count, chances = outermost(logs, asked, _floor(name), limit / rarity)
    for k in range(count):
        times = math.exp(min(logs[k] - logs[count], 700.0))
        why = f"is {times:.3g} times the largest of the others of its array, {math.exp(logs[count]):.3g}"
        if rarity[k] < 1:
            why += "; it has one bit, as a flip makes of a zero"
        say(name, "large", int(one.largest.places[k]), why, float(chances[k] * rarity[k]))
    return count


def _small(say: _Teller, name: str, one: Summary, limit: float) -> None:
    """Elements far below all others, but zeros.

    Of what has no negative elements and of small arrays of the optimizer nothing is said: channels die.
    """
    if not one.array.floating:
        return
    optimizer = of_optimizer(name)
    large = one.array.size >= (MANY_OF_OPTIMIZER if optimizer else MANY) and len(one.array.shape) > 1
    if not large and (optimizer or never_negative(name)):
        return
    floor, asked = (FLOOR_SMALL, SMALL) if large else (FLOOR_SMALL_OF_FEW, 1)
    logs, rarity = _logs(one, one.smallest), _rarity(one, one.smallest, asked)
    count, chances = outermost(logs, asked, floor, limit / rarity)
    for k in range(count):
        others = math.exp(-logs[count])
        why = f"is {math.exp(logs[count] - logs[k]):.3g} times the smallest of the others of its array, {others:.3g}"
        say(name, "small", int(one.smallest.places[k]), why, float(chances[k] * rarity[k]))


def _groups(judged: Mapping[str, Summary]) -> dict[str, list[str]]:
    """Arrays that are compared: siblings, where they are enough; else all of the model, or of the optimizer."""
    found: dict[str, list[str]] = defaultdict(list)
    for name, one in judged.items():
        if one.array.floating and len(one.largest.keys):
            found[siblings(name)].append(name)
    enough: dict[str, list[str]] = defaultdict(list)
    for pattern, names in found.items():
        if len(names) >= FEW + 2:
            enough[pattern] = names
        else:
            for name in names:
                enough["of the optimizer" if of_optimizer(name) else "of the model"].append(name)
    return {pattern: names for pattern, names in enough.items() if len(names) >= FEW + 2}


def _beside(say: _Teller, pattern: str, group: Mapping[str, Summary], inside: Mapping[str, int], limit: float) -> None:
    """Arrays whose largest element, but for those that were found, is beyond those of all siblings."""
    # What is huge throughout is a mask.
    group = {name: one for name, one in group.items() if one.huge.count <= max(1, RARE * one.array.size)}
    tops = {name: _logs(one, one.largest)[inside[name] :] for name, one in group.items()}
    order = sorted((name for name in group if len(tops[name])), key=lambda name: -tops[name][0])
    logs = np.array([tops[name][0] for name in order])
    asked = max(1, len(order) // 10)
    count, chances = outermost(logs, asked, FLOOR_OF_SIBLINGS, np.full(len(logs), limit), FEW)
    for k, name in enumerate(order[:count]):
        times = math.exp(min(logs[k] - logs[count], 700.0))
        why = f"is {times:.3g} times the largest of {len(order) - count} other arrays ({pattern})"
        say(name, "siblings", int(group[name].largest.places[inside[name]]), why, float(chances[k]))


def _huge(say: _Teller, name: str, one: Summary) -> None:
    """Elements whose square is infinite in float32, where they are exceptions and no outliers of the array."""
    if not one.huge.count or one.huge.count > max(1, RARE * one.array.size):
        return
    known = say.told(name)
    shape = one.array.shape
    for place in one.huge.first:
        if (tuple(map(int, np.unravel_index(place, shape))) if shape else ()) not in known:
            why = _several("is so large that its square is infinite in float32", one.huge.count)
            say(name, "huge", place, why, count=one.huge.count)
            return


def _blocks(say: _Teller, name: str, one: Summary, limit: float) -> None:
    """A run of zeros, and repeated blocks, that are no whole rows: rows may be meant to be zero, or equal."""
    row = math.prod(one.array.shape[1:]) if len(one.array.shape) > 1 else one.array.size
    begin, length = one.run
    rest = one.array.size - length
    meant = _rows(begin, length, row) if row < one.array.size else _parts(begin, length, row)
    if length >= LEAST_RUN and one.runs == 1 and length < one.array.size and not meant:
        share = (one.zeros - length + 1) / (rest + 1)
        chance = one.array.size * share**length
        if chance <= limit:
            why = f"begins {length:,} zeros; of the other {rest:,} elements {one.zeros - length:,} are zero"
            say(name, "zeros", begin, why, chance, length)
    for later, earlier, size in _not_rows(one, row):
        why = f"begins {size:,} elements that are those from {earlier:,} on, bit by bit"
        say(name, "repeated", later, f"{why}; of {one.blocks:,} blocks no others are so", None, size)


def _rows(begin: int, length: int, row: int) -> bool:
    """Whether a run is whole rows along the first axis, or nearly: a run may go on into the next row by chance."""
    return row > 1 and begin % row == 0 and length >= row


def _parts(begin: int, length: int, size: int) -> bool:
    """Whether a run in an array of one axis is a part that may be meant to be zero: padding, or one of equal parts."""
    return begin == 0 or begin + length == size or (begin % length == 0 and size % length == 0)


def _not_rows(one: Summary, row: int) -> Iterator[tuple[int, int, int]]:
    for later, earlier, size in one.repeated:
        if row > 1 and (later - earlier) % row == 0 and size + 2 * 512 >= row:
            continue
        yield later, earlier, size
