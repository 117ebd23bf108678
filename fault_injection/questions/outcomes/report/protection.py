"""Which small part to protect: a few operations, bits or epochs that take most of the harm away.

A *check* protects all faults of one kind: of one operation or leaf, of one role of a bit, of both together, or of one
part of the training.  Which checks are worth most is learned from every other experiment, and what they gain is
measured on the others, so that the choice does not flatter itself.  Of an operation and a bit together the learned harm
is that of the operation times that of the bit, over that of all: there are too many pairs to learn each by itself.

What is removed is a share of the harm, r = h_i / (h_i + h_o), where h_i of the decided experiments were not masked and
are inside of what is protected, and h_o are outside of it.  Where early verdicts are guesses, each of the two has an
interval of two-phase sampling, each at half the error; else r has Wilson's, of the experiments that were not masked.
"""

import collections
import sqlite3
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from ....campaign.page import Cell, Section, Table
from ....campaign.rates import Rate, wilson
from ....faults.number_formats import format_of
from ....models.fault import Operand
from ....runs.outcome import MASKED, UNDECIDED
from ..tally import Tally, tally_of
from .facts import Facts, merged

MOST, WORTH = (0.01, 0.1), 0.9  # shares of the faults that may be protected; a share of the harm that shall be removed
PARTS = 10  # of the training
ENOUGH = 20  # experiments that were not masked, in each half
SEVERAL = "several bits"
NAMED = 4  # checks that a table names
Unit = tuple[str, ...]


class ProtectedPart(NamedTuple):
    """A set of checks, and what it gains on experiments that it was not chosen by.

    Attributes:
      by: what one check protects.
      asked: what the set was chosen for, in words.
      checks: the set, the most useful first.
      of_faults: the share of all faults that it protects; a set of this size that is drawn at random gains as much.
      removed: the share of the harm that it takes away.
      of_largest: the share that the checks of most faults take away, as many as protect as large a share of the
        faults; None where no check is larger than another by design.
    """

    by: str
    asked: str
    checks: Sequence[Unit]
    of_faults: Rate
    removed: Rate
    of_largest: float | None


class Half:
    """Every other experiment, by unit.

    Args:
      parts: what is known of the experiments of each cell: its operation, its bit's role, its part of the training.
    """

    def __init__(self, parts: Mapping[Unit, Tally]) -> None:
        self.parts = parts
        self.whole = sum(parts.values(), Tally())

    def share(self, tally: Tally) -> float:
        """The share of the decided experiments that these are."""
        return tally.decided / self.whole.decided

    def grouped(self, places: Sequence[int]) -> dict[Unit, Tally]:
        """The experiments by some of the names of their cells."""
        return merged((tuple(cell[place] for place in places), tally) for cell, tally in self.parts.items())

    def inside(self, places: Sequence[int], checks: Collection[Unit]) -> tuple[Tally, Tally]:
        """The experiments that a set of checks protects, and the others."""
        found = merged((unit in checks, tally) for unit, tally in self.grouped(places).items())
        return found.get(True, Tally()), found.get(False, Tally())


class Learned(NamedTuple):
    """What one half says of a check: the share of faults that it protects, and how many of these do harm."""

    share: float
    harm: float


def _learned(half: Half, places: Sequence[int]) -> dict[Unit, Learned]:
    """Of all checks of a kind; of several names together as if each mattered by itself."""
    overall = _bad(half.whole) / half.whole.decided
    known: dict[Unit, Learned] = {(): Learned(1.0, overall)}
    for place in places:
        # One experiment more, as bad as all are: a check that nothing has struck is as good as another.
        each = {
            unit: Learned(half.share(tally), (_bad(tally) + overall) / (tally.decided + 1))
            for unit, tally in half.grouped([place]).items()
        }
        known = {
            (*before, *unit): Learned(a.share * b.share, a.harm * b.harm / overall)
            for before, a in known.items()
            for unit, b in each.items()
        }
    return known


def _bad(tally: Tally) -> float:
    """How many experiments were not masked, as far as is known or estimated."""
    shares = tally.shares()
    return tally.total * sum(share for name, share in shares.items() if name not in (MASKED, UNDECIDED))


def protections(first: Half, second: Half, confidence: float, by_size: bool = False) -> list[ProtectedPart]:
    """What protecting small parts gains, chosen by one half of the experiments and measured on the other.

    None where too few experiments were not masked, or there is nothing to choose.

    Args:
      by_size: whether checks of operations are compared with those of the largest ones.
    """
    if any(min(_bad(half.whole), half.whole.decided - _bad(half.whole)) < ENOUGH for half in (first, second)):
        return []
    found = []
    for by, places in _kinds(first).items():
        known = _learned(first, places)
        ordered = sorted(known, key=lambda unit: (-known[unit].harm, unit))
        harm = {unit: one.share * one.harm for unit, one in known.items()}
        chosen = {f"{most:.0%} of the faults": _within(ordered, known, most) for most in MOST}
        chosen[f"{WORTH:.0%} of the harm"] = _worth(ordered, harm, WORTH * sum(harm.values()))
        for asked, checks in chosen.items():
            if 0 < len(checks) < len(known):
                inside, outside = second.inside(places, set(checks))
                share = wilson(inside.decided, second.whole.decided, confidence)
                gain = removed(inside, outside, confidence)
                largest = _of_largest(second, places, checks, known) if by_size and 0 in places else None
                found.append(ProtectedPart(by, asked, checks, share, gain, largest))
    return found


def _of_largest(half: Half, places: Sequence[int], checks: Sequence[Unit], known: Mapping[Unit, Learned]) -> float:
    """The share of harm that the checks of most faults take away, see `ProtectedPart.of_largest`."""
    largest = sorted(known, key=lambda unit: (-known[unit].share, unit))
    as_many = _within(largest, known, sum(known[unit].share for unit in checks))
    return _bad(half.inside(places, set(as_many))[0]) / _bad(half.whole)


def _halves(facts: Facts) -> tuple[Half, Half]:
    """The experiments whose number is even, and odd: each is drawn by itself."""
    cells: tuple[dict[Unit, list[sqlite3.Row]], ...] = ({}, {})
    for row in facts.rows("protection"):
        tensor = facts.plan.targets[row["site"]].operands[Operand[row["operand"].upper()]]
        role = SEVERAL if row["bit"] is None else format_of(tensor.dtype).role(row["bit"])
        part = f"tenth {row['epoch'] * PARTS // facts.epochs + 1}"
        cells[row["half"]].setdefault((row["site"], role, part), []).append(row)
    even, odd = (Half({cell: tally_of(rows, facts.plan) for cell, rows in half.items()}) for half in cells)
    return even, odd


def _kinds(half: Half) -> dict[str, tuple[int, ...]]:
    """The kinds of checks among which there is a choice, and which names of a cell each looks at."""
    operations, roles, parts = (len({cell[place] for cell in half.parts}) > 1 for place in range(3))
    roles = roles and not any(cell[1] == SEVERAL for cell in half.parts)
    kinds: dict[str, tuple[tuple[int, ...], bool]] = {
        "operation": ((0,), operations),
        "bit": ((1,), roles),
        "bit of an operation": ((0, 1), operations and roles),
        "tenth of the training": ((2,), parts),
    }
    return {name: places for name, (places, there) in kinds.items() if there}


def _within(ordered: Sequence[Unit], known: Mapping[Unit, Learned], most: float) -> list[Unit]:
    """The most harmful checks that together protect at most a share of the faults."""
    chosen, spent = [], 0.0
    for unit in ordered:
        if spent + known[unit].share <= most:
            chosen.append(unit)
            spent += known[unit].share
    return chosen


def _worth(ordered: Sequence[Unit], harm: Mapping[Unit, float], wanted: float) -> list[Unit]:
    """The most harmful checks, as many as take away what is wanted."""
    chosen, gained = [], 0.0
    for unit in ordered:
        if gained >= wanted:
            break
        chosen.append(unit)
        gained += harm[unit]
    return chosen


def removed(inside: Tally, outside: Tally, confidence: float) -> Rate:
    """The share of harm that is inside of what is protected, at an interval that allows for what nobody followed."""
    bad = [_known_bad(tally) for tally in (inside, outside)]
    if not (inside + outside).resolved().early:
        return wilson(bad[0], sum(bad), confidence)
    # Each as a share of all decided experiments: those of the other part do not count, whatever they come to.
    ours, theirs = (
        (part + Tally(collections.Counter({MASKED: other.decided}))).not_masked((1 + confidence) / 2)
        for part, other in ((inside, outside), (outside, inside))
    )
    share = ours.share / (ours.share + theirs.share)
    low = ours.low / (ours.low + theirs.high) if ours.low else 0.0
    high = ours.high / (ours.high + theirs.low) if ours.high else 0.0
    guesses = ours.guesses + theirs.guesses
    return Rate(bad[0], sum(bad), share, min(low, share), max(high, share), guesses)


def _known_bad(tally: Tally) -> int:
    return sum(n for name, n in tally.counts.items() if name not in (MASKED, UNDECIDED))


def protecting(facts: Facts) -> Section:
    """What to protect first, and what it gains."""
    title = "What protecting a small part gains"
    if facts.plan.restarts:
        return Section("protection", title, ["The plan lists its faults one by one, so there is no part to choose."])
    by_size = facts.plan.leaf is not None  # operations are as likely to be struck, whatever their size
    found = protections(*_halves(facts), facts.plan.confidence, by_size)
    if not found:
        why = (
            f"Nothing is said of it: that is learned from {ENOUGH} experiments that were not masked and {ENOUGH} that "
            "were, in each of two halves, and there has to be something to choose: several operations, or single bits."
        )
        return Section("protection", title, [why])
    text = [
        "Which faults would a check have to catch, in hardware or software, to take most of the harm away? What to "
        "protect was chosen by the even experiments, and what it gains was measured on the odd ones. A choice at "
        "random takes away as large a share of the harm as of the faults."
    ]
    if any(one.removed.guesses for one in found):
        text.append("Intervals allow for early verdicts that nobody followed, in either part, so they are wide.")
    rows: list[dict[str, Cell]] = []
    for one in found:
        rows.append(
            {
                "chosen by": one.by,
                "for": one.asked,
                "what is protected": _names(one.checks),
                "of the faults": one.of_faults,
                "harm taken away": one.removed,
            }
        )
        if by_size:
            rows[-1]["the largest ones instead"] = "" if one.of_largest is None else f"{one.of_largest:.0%}"
    caption = "Sets of checks, and the share of the harm that each takes away."
    return Section("protection", title, text, [Table("protection", caption, rows)])


def _names(checks: Sequence[Unit]) -> str:
    """
    >>> _names([("fc", "sign"), ("conv1", "sign")])
    'sign of fc, sign of conv1'
    """
    named = [" of ".join(reversed(unit)) for unit in checks[:NAMED]]
    return ", ".join(named) + (f" and {len(checks) - NAMED} more" if len(checks) > NAMED else "")
