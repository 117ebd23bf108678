"""Which part of a population the next experiments come from, and when every rate that was asked for is known.

A population is divided into strata of known weights W_h: by bit, layer, what reads an element.  For each block of
experiments a design chooses chances q_h, from the past alone; an experiment comes from stratum h with the chance q_h,
and gives the observation

.. math::
  X = Σ_g W_g \\bar f_g + \\frac{W_h}{q_h} (y - f)

whose mean is the rate whatever f and q are, and whose bounds are known before: so `ConfidenceSequence` gives an
interval that holds at each block's end, though allocation and stopping look at the outcomes.  f is a guess of the
outcome, made before: a proxy's value for the case, if there is one, and the mean by which earlier blocks of the
stratum differed from it.  A wrong proxy costs trials alone.  Where a stratum is finite and no case is drawn twice, W_h
is the weight of the cases that are left, those that were drawn are known, and a stratum that is exhausted is exact.

**What no allocation can do.**  Of strata with the weight W in which nothing was ever seen, an interval that reaches δ
above the rate needs about W·log(2/α)/δ trials: a part of them might be harmful, and not have been drawn.  Only what is
known beforehand makes that less: bounds of outcomes (`high`), or that they are harmless (`high` = 0, which costs no
trial).

Reference: Neyman, JRSS 97 (1934) 558; Särndal, Swensson, Wretman, Model Assisted Survey Sampling (1992), 6.3
(difference estimator); Spertus, Sridhar, Stark, arXiv 2409.06680 (sequential tests of means of strata).
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ..machine.errors import InputError
from .design import Design, design
from .sequences import TINY, ConfidenceSequence

FIRST, LEAST = 64, 16  # experiments of the first block, and of the last ones
GROWTH = 0.1  # later ones: this part of the trials so far
DRIFT = 0.7  # about what the logarithm of the capital loses by not knowing the best stake beforehand


class KnownStratum(NamedTuple):
    """A part of a population, whose size is known.

    Attributes:
      weight: its share of the population, above 0.
      cases: how many there are, where none is drawn twice and what is observed of each is exact, so that it is known
        when all were drawn; None where one can be drawn again, or what is observed is of audits (`audited`).
      low, high: bounds of what is observed of a case; 0 and 0 where it is proved harmless.
    """

    weight: float
    cases: int | None = None
    low: float = 0.0
    high: float = 1.0


class Proxy(NamedTuple):
    """What a cheap predictor says of the cases that can be drawn: of those that were not drawn yet, if none is twice.

    It may be a model that was fitted to earlier blocks; it must not know outcomes of the block that it is used for.

    Attributes:
      mean: float64 [strata], of its values over all these cases of a stratum.
      least, most: float64 [strata], bounds of its values.
    """

    mean: np.ndarray
    least: np.ndarray
    most: np.ndarray


class WantedRate(NamedTuple):
    """A rate that is asked for: the mean of an outcome in some strata.

    Attributes:
      name: by which it is told apart.
      width: that its interval shall have at most, both ends together; infinite if it is only to be reported.
      strata: their numbers; None for all.  Blocks that cannot draw from each of them say nothing of the rate: so one
        that is only reported is known if others ask for all its strata.
      outcome: the column of the outcome.
    """

    name: str
    width: float
    strata: tuple[int, ...] | None = None
    outcome: int = 0


class KnownRate(NamedTuple):
    """What is known of a rate that was asked for.

    Attributes:
      name: as of `WantedRate`.
      share: estimated by strata; strata without a trial count as their proxy says, or as 0.
      low, high: ends of the interval, which holds at all times together.
      trials: experiments from its strata.
      more: about how many more in all its strata it needs; 0 where it is as wide as asked.
    """

    name: str
    share: float
    low: float
    high: float
    trials: int
    more: int

    @property
    def answer(self) -> str:
        """`as wide as asked`, or what is missing."""
        return f"needs about {self.more:,} more" if self.more else "as wide as asked"


class Draws(NamedTuple):
    """A block of experiments, designed before any was made.

    Attributes:
      strata: int64 [n], the stratum of each.
      by_chance: how many of the first ones were drawn with `chances`; the others are all that was left of strata.
      chances: float64 [strata].
      proxy: that guesses the outcomes.
    """

    strata: np.ndarray
    by_chance: int
    chances: np.ndarray
    proxy: Proxy


class Allocation:
    """Allocates experiments to strata in blocks until every rate is as narrow as asked.

    >>> rng = np.random.default_rng(0)
    >>> harm = np.array([0.3, 0.0])  # all harm is in a tenth of the population
    >>> allocation = Allocation([KnownStratum(0.1), KnownStratum(0.9)], [WantedRate("all", 0.02)])
    >>> while draws := allocation.draw(rng):
    ...     allocation.observe(draws, rng.random(len(draws.strata)) < harm[draws.strata])
    >>> [found] = allocation.rates()
    >>> found.low <= 0.03 <= found.high, found.high - found.low <= 0.02, found.answer
    (True, True, 'as wide as asked')

    Args:
      strata: with weights that add up to 1.
      wanted: rates that are asked for.
      confidence: of each interval.

    Attributes:
      counts: int64 [strata], experiments so far.

    Raises:
      InputError: weights that do not add up, bounds that are crossed, rates of no stratum.
    """

    def __init__(self, strata: Sequence[KnownStratum], wanted: Sequence[WantedRate], confidence: float = 0.95):
        _check(strata, wanted)
        columns = zip(*((s.weight, s.cases or math.inf, s.low, s.high) for s in strata), strict=True)
        self._weights, self._cases, self._low, self._high = map(np.array, columns)
        self.wanted = tuple(wanted)
        self._of = np.zeros((len(wanted), len(strata)), bool)  # which strata a rate is of
        for row, rate in zip(self._of, wanted, strict=True):
            row[slice(None) if rate.strata is None else list(rate.strata)] = True
        outcomes = 1 + max(rate.outcome for rate in wanted)
        self.counts = np.zeros(len(strata), np.int64)
        # Of outcomes y; of y - f and the mean of f, which varies less where f is good; of the squares of these.
        self._sums, self._adjusted, self._squares = np.zeros((3, len(strata), outcomes))
        nothing = np.zeros(len(strata))
        self._proxy = Proxy(nothing, nothing, nothing)  # the last one
        self._sequences = [ConfidenceSequence(confidence, *self._limits(i)) for i in range(len(wanted))]

    # --- what is left, and what is known ---

    @property
    def _left(self) -> np.ndarray:
        """The share of each stratum that is open, [strata]; 0 where nothing is to be learnt."""
        return np.where(self._high > self._low, 1 - self.counts / self._cases, 0.0)

    def _part(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        """Of a rate: open weights [strata], and what of the mean is known of each stratum, both of the rate's whole."""
        weights = np.where(self._of[number], self._weights, 0) / self._weights[self._of[number]].sum()
        seen = self._sums[:, self.wanted[number].outcome] / self._cases
        nothing = np.where(self._high > self._low, 0, self._low)
        return weights * self._left, weights * (seen + nothing)

    def _limits(self, number: int) -> tuple[float, float]:
        """What a rate lies in for certain."""
        left, known = self._part(number)
        ends = known.sum() + left @ self._low, known.sum() + left @ self._high
        return float(max(0, ends[0])), float(min(1, ends[1]))

    def _shift(self, outcome: int) -> np.ndarray:
        """By how much outcomes exceed their proxy on the mean as far as that is known, drawn towards 0, [strata]."""
        n = self.counts
        return np.asarray((self._adjusted[:, outcome] - n * self._proxy.mean) / (n + 1))

    def _spread(self, outcome: int) -> np.ndarray:
        """Standard deviations of y - f in strata as far as they are known, [strata].

        To each is added an observation with the variance of all, and to all one at the end of the bounds: so a value
        is not 0 before harm was seen.  A wrong value makes no interval wrong.
        """
        n, width = self.counts, self._high - self._low
        means = self._adjusted[:, outcome] / np.maximum(n, 1)
        within = np.maximum(self._squares[:, outcome] - n * means**2, 0)
        relative = within / np.maximum(width**2, TINY)
        of_all = (float(relative.sum()) + 0.25) / (float(n.sum()) + 1)
        return np.asarray(width * np.sqrt((relative + of_all) / (n + 1)))

    # --- the design ---

    def draw(self, rng: np.random.Generator, most: int | None = None, proxy: Proxy | None = None) -> Draws | None:
        """The next block; None where every rate is as narrow as asked, or can not become narrower.

        The places of a block are drawn one in each of n equal parts of [0, 1), so numbers by stratum vary less than
        with independent draws.  A stratum that would be drawn nearly to its end is drawn to its end, and is exact.

        Args:
          rng: chance; seeded by the number of the block, it makes a campaign the same however often it stops.
          most: experiments that are drawn by chance, at most.
          proxy: guesses the outcomes of this block; 0 of every case where None.
        """
        nothing = np.zeros(len(self.counts))
        self._proxy = proxy or Proxy(nothing, nothing, nothing)
        needs = np.max([self._needs(number) for number in range(len(self.wanted))], axis=0)  # [strata]
        total = float(needs.sum())
        if not total:
            return None
        size = max(LEAST, min(max(FIRST, math.ceil(GROWTH * self.counts.sum())), math.ceil(total)))
        size = size if most is None else min(size, most)
        left = np.where(self._left > 0, self._cases - self.counts, 0)
        chances = needs / total
        # Of a place in each of n parts, a stratum gets less than n times its chance, and two.
        while (whole := (chances > 0) & (left <= size * chances + 2)).any() and chances.any():
            rest = np.where(whole, 0, chances)
            chances = rest / rest.sum() if rest.any() else rest
        whole = (needs > 0) & (chances == 0)
        size = size if chances.any() else 0
        places = (np.arange(size) + rng.random(size)) / max(size, 1)
        open_ = np.flatnonzero(chances)
        of = np.searchsorted(np.cumsum(chances[open_])[:-1], places, side="right")
        census = np.repeat(np.flatnonzero(whole), left[whole].astype(np.int64))
        return Draws(np.concatenate([open_[of] if size else of, census]), size, chances, self._proxy)

    def _design(self, number: int) -> Design:
        """How trials of a rate are best divided, as far as its strata are known."""
        rate = self.wanted[number]
        ranges = self._ranges(rate.outcome)
        width = min(rate.width, 1.0)  # a rate that is only reported
        threshold = self._sequences[number].threshold + DRIFT
        return design(self._part(number)[0], self._spread(rate.outcome), ranges, width, threshold)

    def _ranges(self, outcome: int) -> tuple[np.ndarray, np.ndarray]:
        """How far an outcome can lie below and above what is guessed of it, [strata] both."""
        shift = self._shift(outcome)
        return self._proxy.most + shift - self._low, self._high - self._proxy.least - shift

    def _needs(self, number: int) -> np.ndarray:
        """About how many more trials of each stratum a rate needs, [strata]; 0 where it is as narrow as asked."""
        rate, sequence = self.wanted[number], self._sequences[number]
        low, high = sequence.interval()
        if high - low <= rate.width or not self._part(number)[0].any():
            return np.zeros(len(self.counts))
        best = self._design(number)
        share = min(max(self._share(number), low), high)
        lower = max(low, share - best.below)
        upper = min(high, lower + rate.width)
        sides = [side for side, open_ in enumerate((lower > low, upper < high)) if open_]
        capital = min(sequence.log_capital((lower, upper)[side])[side] for side in sides)
        missing = 1 - max(0.0, capital) / sequence.threshold
        return best.chances * max(1.0, best.trials * missing)

    # --- what came of it ---

    def observe(self, draws: Draws, outcomes: np.ndarray, guesses: np.ndarray | None = None) -> None:
        """Takes the outcomes of a block, all of it, before the next one is drawn.

        Args:
          draws: as `draw` gave it.
          outcomes: [n] or [n, outcomes], within the bounds of their strata.
          guesses: float64 [n], the proxy's value of each case; 0 where None.

        Raises:
          InputError: outcomes are missing, or outside the bounds of their stratum; or guesses outside the proxy's.
        """
        y = np.asarray(outcomes, np.float64)
        y = y[:, None] if y.ndim == 1 else y
        expected = len(draws.strata), self._sums.shape[1]
        if y.shape != expected:
            raise InputError(f"outcomes of the shape {y.shape}: expected {expected}")
        low, high = self._low[draws.strata, None], self._high[draws.strata, None]
        outside = ~((y >= low) & (y <= high)).all(axis=1)  # a NaN too
        if outside.any():
            row = int(np.argmax(outside))
            raise InputError(
                f"an outcome of {y[row].tolist()} in stratum {draws.strata[row]}: "
                f"expected {low[row, 0]:g} to {high[row, 0]:g}"
            )
        f = np.zeros(len(y)) if guesses is None else np.asarray(guesses, np.float64)
        least, most = draws.proxy.least[draws.strata], draws.proxy.most[draws.strata]
        if f.shape != (len(y),) or not np.all((f >= least) & (f <= most)):
            raise InputError(
                f"guesses of {len(y)} outcomes: expected one of each, within the bounds of the block's proxy"
            )
        self._proxy = draws.proxy
        # What was drawn to its end is known before the others are bet on: no chance was in it.
        chance, census = slice(None, draws.by_chance), slice(draws.by_chance, None)
        self._count(draws.strata[census], y[census], f[census])
        for number in range(len(self.wanted)):
            self._bet(number, draws.strata[chance], draws.chances, y[chance], f[chance])
        self._count(draws.strata[chance], y[chance], f[chance])
        for number, sequence in enumerate(self._sequences):
            sequence.within(*self._limits(number))

    def _count(self, strata: np.ndarray, y: np.ndarray, f: np.ndarray) -> None:
        adjusted = y + (self._proxy.mean[strata] - f)[:, None]
        self.counts += np.bincount(strata, minlength=len(self.counts))
        for sums, values in ((self._sums, y), (self._adjusted, adjusted), (self._squares, adjusted**2)):
            np.add.at(sums, strata, values)

    def _bet(self, number: int, strata: np.ndarray, chances: np.ndarray, y: np.ndarray, f: np.ndarray) -> None:
        """Gives a rate's sequence the draws from its strata, if each of these that is open could be drawn."""
        left, known = self._part(number)
        open_ = left > 0
        if not open_.any() or (chances[open_] == 0).any():
            return
        outcome = self.wanted[number].outcome
        scale = np.zeros(len(left))
        scale[open_] = left[open_] / (chances[open_] / chances[open_].sum())
        shift, (below, above) = self._shift(outcome), self._ranges(outcome)
        base = float(known.sum() + left @ (self._proxy.mean + shift))
        here = open_[strata]
        strata = strata[here]
        x = base + scale[strata] * (y[here, outcome] - f[here] - shift[strata])
        low, high = base - float((scale * below)[open_].max()), base + float((scale * above)[open_].max())
        self._sequences[number].update(x, low, high, base, self._design(number).stakes)

    # --- what is known ---

    def rates(self) -> list[KnownRate]:
        """What is known of every rate that was asked for, in their order."""
        found = []
        for number, rate in enumerate(self.wanted):
            low, high = self._sequences[number].interval()
            more = math.ceil(np.minimum(self._needs(number), self._cases - self.counts).sum())
            trials = int(self.counts[self._of[number]].sum())
            share = min(max(self._share(number), low), high)
            found.append(KnownRate(rate.name, share, low, high, trials, more))
        return found

    def _share(self, number: int) -> float:
        left, known = self._part(number)
        outcome = self.wanted[number].outcome
        n = self.counts
        means = np.where(n > 0, self._adjusted[:, outcome] / np.maximum(n, 1), self._proxy.mean)
        return float(known.sum() + left @ np.clip(means, self._low, self._high))


def _check(strata: Sequence[KnownStratum], wanted: Sequence[WantedRate]) -> None:
    total = math.fsum(stratum.weight for stratum in strata)
    if abs(total - 1) > 1e-9:
        raise InputError(f"the weights of {len(strata)} strata add up to {total:g}: expected 1")
    for number, stratum in enumerate(strata):
        if not (stratum.weight > 0 and stratum.low <= stratum.high and (stratum.cases is None or stratum.cases > 0)):
            raise InputError(f"stratum {number}, {stratum}: expected a weight and cases above 0, and low <= high")
        if stratum.cases is not None and not 0 <= stratum.low <= stratum.high <= 1:
            raise InputError(
                f"stratum {number} of {stratum.cases} cases with outcomes from {stratum.low:g} to {stratum.high:g}: "
                "outcomes of audits are not exact, so expected no number of cases"
            )
    if not wanted:
        raise InputError("no rate is asked for: expected at least one")
    for rate in wanted:
        if not rate.width > 0:
            raise InputError(f"the rate {rate.name!r} with a width of {rate.width:g}: expected one above 0")
        if (rate.strata is not None and not set(rate.strata) <= set(range(len(strata)))) or rate.strata == ():
            raise InputError(
                f"the rate {rate.name!r} of the strata {rate.strata}: expected numbers below {len(strata)}"
            )
