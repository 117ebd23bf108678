"""Experiments counted by what is known of them, and the rates that follow.

An experiment that a proof ended, or that was followed to its end, is known.  One that ended with an early
verdict, or settled, is a guess, unless it was followed all the same.  Of guesses `campaign.two_phase` gives honest
intervals.
"""

import collections
import dataclasses
import functools
import operator
import sqlite3
from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from ...campaign.rates import Rate, equivalent_sample, stratified, wilson
from ...campaign.two_phase import Estimate, Guesses, two_phase
from ...runs.outcome import MASKED, OUTCOMES, UNDECIDED
from .conditions import CONDITIONS
from .plan import Plan
from .result import SETTLED

Counts = collections.Counter[str]  # experiments by outcome


GUESSES = (CONDITIONS, SETTLED)  # what ends an experiment with a guess


class GuessKind(NamedTuple):
    """A kind of early verdicts, all audited with one probability.

    Attributes:
      near: whether they are near a threshold; False where audits do not tell these apart.
      masked: whether they say *Masked*.
      rule: by which, where each rule answers for itself (`Plan.beyond_premises`); `SETTLED` of runs that settled
        without an early verdict; else empty.
    """

    near: bool
    masked: bool
    rule: str = ""

    def __str__(self) -> str:
        where = (", near a threshold" if self.near else "") + (f" ({self.rule})" if self.rule else "")
        return f"{MASKED}{where}" if self.masked else f"not {MASKED}{where}"


@dataclasses.dataclass(frozen=True)
class Verdicts:
    """Early verdicts of one kind.

    Attributes:
      guessed: by outcome, those that nobody followed to the end.
      open: by outcome, those whose audit has no end that is known.
      ends: the others, by what they came to at the end.
      changed: how many of these came to another outcome than the early verdict's.
      nested: audits that ended with a guess: whose run settled (`settled.Settled`), or that struck with others in a run
        that ended *Masked* (`together`); apart from all others; None where there are none.
    """

    guessed: Counts = dataclasses.field(default_factory=collections.Counter)
    open: Counts = dataclasses.field(default_factory=collections.Counter)
    ends: Counts = dataclasses.field(default_factory=collections.Counter)
    changed: int = 0
    nested: "Verdicts | None" = None

    def __add__(self, other: "Verdicts") -> "Verdicts":
        inner = [one.nested for one in (self, other) if one.nested is not None]
        return Verdicts(
            self.guessed + other.guessed,
            self.open + other.open,
            self.ends + other.ends,
            self.changed + other.changed,
            functools.reduce(operator.add, inner) if inner else None,
        )

    @property
    def counts(self) -> Counts:
        """All of them by the outcome that is best known."""
        own = self.guessed + self.open + self.ends
        return own if self.nested is None else own + self.nested.counts

    @property
    def unfollowed(self) -> int:
        """How many have no end that is known."""
        own = self.guessed.total() + self.open.total()
        return own if self.nested is None else own + self.nested.unfollowed

    @property
    def followed(self) -> int:
        """How many were followed to an end that is known."""
        return self.counts.total() - self.unfollowed

    @property
    def changes(self) -> int:
        """How many of these came to another outcome than the early verdict's."""
        return self.changed if self.nested is None else self.changed + self.nested.changed

    @property
    def believed(self) -> "Verdicts":
        """The same, where the guesses with which audits ended are taken for their ends."""
        if (inner := self.nested) is None:
            return self
        changed = self.changed + inner.changed
        return Verdicts(self.guessed, self.open + inner.open, self.ends + inner.ends + inner.guessed, changed)

    def early(self, wanted: Collection[str], scale: float | None = None) -> Guesses:
        """What they say of some outcomes; `scale` is how many they count as."""
        counts = self.counts
        total = counts.total()
        times = 1.0 if scale is None else scale / total
        nested = None if self.nested is None else self.nested.early(wanted)
        ends, found = self.ends.total(), _of(self.ends, wanted)
        return Guesses(times * total, times * _of(counts, wanted), ends, found, self.open.total(), nested)


@dataclasses.dataclass(frozen=True)
class Tally:
    """Experiments by what is known of them.

    Attributes:
      known: by outcome, those whose end is known or that were cut at the horizon.
      early: early verdicts by their kind.
    """

    known: Counts = dataclasses.field(default_factory=collections.Counter)
    early: dict[GuessKind, Verdicts] = dataclasses.field(default_factory=dict)

    def __add__(self, other: "Tally") -> "Tally":
        kinds = {**self.early, **other.early}
        none = Verdicts()
        early = {kind: self.early.get(kind, none) + other.early.get(kind, none) for kind in kinds}
        return Tally(self.known + other.known, early)

    @property
    def counts(self) -> Counts:
        """All experiments by the outcome that is best known: the end, or else the early verdict."""
        return sum((verdicts.counts for verdicts in self.early.values()), self.known)

    @property
    def total(self) -> int:
        """How many experiments there are."""
        return self.counts.total()

    @property
    def decided(self) -> int:
        """How many have a verdict other than undecided."""
        return self.total - self.counts[UNDECIDED]

    @property
    def believed(self) -> "Tally":
        """The same, where the guesses with which audits ended are taken for their ends: a premise, and no proof."""
        return Tally(self.known, {kind: verdicts.believed for kind, verdicts in self.early.items()})

    def resolved(self, leave: Collection[GuessKind] = ()) -> "Tally":
        """The same, where kinds whose experiments were all followed to a known end are no guesses any more.

        Args:
          leave: kinds that are left as they are; by default none.
        """
        left = {k: v for k, v in self.early.items() if k in leave or v.unfollowed}
        known = sum((v.counts for k, v in self.early.items() if k not in left), self.known)
        return Tally(known, left)

    def rate(self, wanted: Collection[str], confidence: float, decided: bool = False) -> Rate:
        """The share of experiments with one of these outcomes.

        Args:
          decided: whether it is the share of the decided experiments, and not of all.
        """
        resolved = self.resolved()
        known = resolved.known.copy()
        if decided:
            del known[UNDECIDED]
        found, total = _of(self.counts, wanted), self.decided if decided else self.total
        if not resolved.early:
            return wilson(found, total, confidence)._replace(audits=self._audits)
        ours = _of(known, wanted)
        early = [verdicts.early(wanted) for verdicts in resolved.early.values()]
        return self._rated(found, total, two_phase(ours, known.total() - ours, early, confidence))

    def shares(self) -> dict[str, float]:
        """The estimated share of every outcome, without an interval."""
        total = max(1, self.total)
        return {
            name: (self.known[name] + sum((early := v.early([name])).total * early.share for v in self.early.values()))
            / total
            for name in OUTCOMES
        }

    def not_masked(self, confidence: float) -> Rate:
        """The share of the decided experiments that was not masked."""
        return self.rate([name for name in self.counts if name not in (MASKED, UNDECIDED)], confidence, decided=True)

    @property
    def _audits(self) -> int:
        return sum(verdicts.followed for verdicts in self.early.values())

    def _rated(self, found: int, total: int, estimate: Estimate) -> Rate:
        """A rate that says what it rests on."""
        early = self.early.values()
        without_end = [verdicts.unfollowed for verdicts in early]
        return Rate(
            found,
            total,
            estimate.share,
            estimate.low,
            estimate.high,
            guesses=sum(without_end),
            audits=self._audits,
            unaudited=sum(n for n, verdicts in zip(without_end, early, strict=True) if not verdicts.followed),
        )


def tally_of(rows: Iterable[sqlite3.Row], plan: Plan) -> Tally:
    """What rows say that count experiments by `queries.KNOWN`: exit, outcome, near, early_rule, ended, nested, n."""
    known: Counts = collections.Counter()
    early: dict[GuessKind, Verdicts] = {}
    for row in rows:
        outcome, ended, n = row["outcome"], row["ended"], row["n"]
        if row["exit"] not in GUESSES or outcome == UNDECIDED:
            known[outcome] += n
            continue
        if row["exit"] == SETTLED:
            kind = GuessKind(False, outcome == MASKED, SETTLED)
        else:
            rule = row["early_rule"] if plan.beyond_premises else ""
            kind = GuessKind(bool(row["near"]) and plan.audit_near is not None, outcome == MASKED, rule)
        if row["exit"] == CONDITIONS and row["nested"] is not None:  # an audit that ended with a guess
            one = Verdicts(nested=_counted(MASKED, None if row["nested"] else ended, n, outcome))
        else:
            one = _counted(outcome, ended, n, outcome)
        early[kind] = early.get(kind, Verdicts()) + one
    return Tally(known, dict(sorted(early.items())))


def _counted(guess: str, ended: str | None, n: int, said: str) -> Verdicts:
    """Experiments with a guess, by what they came to at the end, which is compared with what was `said`."""
    if ended is None:
        return Verdicts(guessed=collections.Counter({guess: n}))
    if ended == UNDECIDED:
        return Verdicts(open=collections.Counter({guess: n}))
    return Verdicts(ends=collections.Counter({ended: n}), changed=n if ended != said else 0)


def weighted_not_masked(parts: Sequence[tuple[Tally, float]], confidence: float) -> Rate:
    """The share not masked of the decided, where parts of the population have weights that the sample need not have.

    Of experiments whose ends are known it is `rates.stratified`.  Audits are few, so those of one kind count for
    all parts together; the number of experiments is the one that would give the variance of `stratified` in a plain
    sample.

    Args:
      parts: with their weights; parts without decided experiments are left out.
    """
    parts = [(tally, weight) for tally, weight in parts if tally.decided]
    whole = functools.reduce(operator.add, (tally for tally, _ in parts), Tally())
    pooled = whole.resolved()
    wanted = [name for name in whole.counts if name not in (MASKED, UNDECIDED)]
    if not pooled.early:
        known_ends = [(_of(tally.counts, wanted), tally.decided, weight) for tally, weight in parts]
        return stratified(known_ends, confidence)._replace(audits=whole._audits)
    scale = sum(weight for _, weight in parts)
    shares = {kind: verdicts.early(wanted).share for kind, verdicts in pooled.early.items()}
    known, early, cells = 0.0, dict.fromkeys(pooled.early, 0.0), []
    for tally, weight in parts:
        part = tally.resolved(leave=pooled.early)
        numbers = {kind: verdicts.counts.total() for kind, verdicts in part.early.items()}
        ours = _of(part.known, wanted)
        known += weight / scale * ours / tally.decided
        for kind, n in numbers.items():
            early[kind] += weight / scale * n / tally.decided
        cells.append((ours + sum(n * shares[kind] for kind, n in numbers.items()), tally.decided, weight))
    _, size = equivalent_sample(cells)
    found = [verdicts.early(wanted, size * early[kind]) for kind, verdicts in pooled.early.items()]
    others = max(0.0, 1 - known - sum(early.values()))  # which rounding might make negative
    estimate = two_phase(size * known, size * others, found, confidence)
    return whole._rated(_of(whole.counts, wanted), whole.decided, estimate)


def plan_not_masked(rows: Iterable[sqlite3.Row], plan: Plan, believing: bool = False) -> Rate:
    """The share not masked of a whole campaign, its fault models weighted as in the plan.

    Args:
      rows: of the query `models`.
      believing: the same if every audit that ended with a guess ends so: `Tally.believed`.
    """
    by_model: dict[str, list[sqlite3.Row]] = {}
    for row in rows:
        by_model.setdefault(row["model"], []).append(row)
    parts = [(tally_of(by_model[one.name], plan), one.weight) for one in plan.models if one.name in by_model]
    parts = [(tally.believed, weight) for tally, weight in parts] if believing else parts
    return weighted_not_masked(parts, plan.confidence)


def _of(counts: Counts, wanted: Collection[str]) -> int:
    return sum(counts[name] for name in set(wanted))
