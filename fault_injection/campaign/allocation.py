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

import numpy as np

from ..machine.errors import InputError
from .design import Design, design
from .sequences import TINY, ConfidenceSequence
from .strata import Draws, KnownRate, KnownStratum, Proxy, WantedRate

__all__ = ["Allocation", "Draws", "KnownRate", "KnownStratum", "Proxy", "WantedRate"]

FIRST = 64  # experiments of a block
PART = 8  # later ones have twice as many, and so on, as long as that is at most one in `PART` of those so far
AHEAD = 4  # a block is designed for so many times the trials so far; a design for one width takes 0.8 of the trials
DRIFT = 0.7  # about what the logarithm of the capital loses by not knowing the best stake beforehand


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
      wanted: the rates; between two blocks the same ones with other widths can be put in their place.

    Raises:
      InputError: weights that do not add up, bounds that are crossed, rates of no stratum.
    """

    def __init__(self, strata: Sequence[KnownStratum], wanted: Sequence[WantedRate], confidence: float = 0.95):
        _check(strata)
        if not wanted:
            raise InputError("no rate is asked for: expected at least one")
        columns = zip(*((s.weight, s.cases or math.inf, s.low, s.high) for s in strata), strict=True)
        self._weights, self._cases, self._low, self._high = map(np.array, columns)
        self.wanted: tuple[WantedRate, ...] = ()
        self._of = np.zeros((0, len(strata)), bool)  # which strata a rate is of
        self._sequences: list[ConfidenceSequence] = []
        self._confidence, outcomes = confidence, 1 + max(rate.outcome for rate in wanted)
        self.counts = np.zeros(len(strata), np.int64)
        # Of outcomes y; of y - f and the mean of f, which varies less where f is good; of the squares of these.
        self._sums, self._adjusted, self._squares = np.zeros((3, len(strata), outcomes))
        nothing = np.zeros(len(strata))
        self._proxy = Proxy(nothing, nothing, nothing)  # the last one
        for rate in wanted:
            self.ask(rate)

    def ask(self, rate: WantedRate) -> None:
        """Asks for one more rate; it may have been chosen by what was seen, and its interval rests on later draws.

        What is known of a stratum for certain counts as well.

        Raises:
          InputError: a width that is not above 0, or a rate of no stratum, or of an outcome that nobody observes.
        """
        strata, outcomes = self._sums.shape
        if not rate.width > 0:
            raise InputError(f"the rate {rate.name!r} with a width of {rate.width:g}: expected one above 0")
        numbers = range(strata) if rate.strata is None else rate.strata
        if not set(numbers) <= set(range(strata)) or not numbers:
            raise InputError(f"the rate {rate.name!r} of the strata {rate.strata}: expected numbers below {strata}")
        if not 0 <= rate.outcome < outcomes:
            raise InputError(f"the rate {rate.name!r} of outcome {rate.outcome}: expected a number below {outcomes}")
        of = np.zeros((1, strata), bool)
        of[0, list(numbers)] = True
        self.wanted, self._of = (*self.wanted, rate), np.concatenate([self._of, of])
        self._sequences.append(ConfidenceSequence(self._confidence, *self._limits(len(self.wanted) - 1)))

    def sequence(self, name: str) -> ConfidenceSequence:
        """The sequence of a rate by its name, as `combined` takes it."""
        return next(one for one, rate in zip(self._sequences, self.wanted, strict=True) if rate.name == name)

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

        How many experiments a block has, and how they are divided among the strata of a rate, follows from the past
        alone, and not from the width that is asked for: so a campaign of one rate that is asked for less, and then for
        more, draws what it would have drawn at once.  Of several rates, those that are as narrow as asked draw nothing.

        The places of a block are drawn one in each of n equal parts of [0, 1), so numbers by stratum vary less than
        with independent draws.  A stratum that would be drawn nearly to its end is drawn to its end, and is exact.

        Args:
          rng: chance; seeded by the number of the block, it makes a campaign the same however often it stops.
          most: experiments that are drawn by chance, at most.
          proxy: guesses the outcomes of this block; 0 of every case where None.
        """
        nothing = np.zeros(len(self.counts))
        self._proxy = proxy or Proxy(nothing, nothing, nothing)
        needs = [self._need(number) for number in range(len(self.wanted))]
        if not any(needs):
            return None
        # What one rate alone needs does not matter, to the last bit.
        shares = [self._design(i).chances * (need / max(needs)) for i, need in enumerate(needs) if need]
        wanted = np.max(shares, axis=0)  # [strata]
        size = 1 << max(FIRST, int(self.counts.sum()) // PART).bit_length() - 1
        size = size if most is None else min(size, most)
        left = np.where(self._left > 0, self._cases - self.counts, 0)
        chances = wanted / wanted.sum()
        # Of a place in each of n parts, a stratum gets less than n times its chance, and two.
        while (whole := (chances > 0) & (left <= size * chances + 2)).any() and chances.any():
            rest = np.where(whole, 0, chances)
            chances = rest / rest.sum() if rest.any() else rest
        whole = (wanted > 0) & (chances == 0)
        size = max(0, size - int(left[whole].sum())) if chances.any() else 0
        places = (np.arange(size) + rng.random(size)) / max(size, 1)
        open_ = np.flatnonzero(chances)
        of = np.searchsorted(np.cumsum(chances[open_])[:-1], places, side="right")
        census = np.repeat(np.flatnonzero(whole), left[whole].astype(np.int64))
        return Draws(np.concatenate([open_[of] if size else of, census]), size, chances, self._proxy)

    def _design(self, number: int) -> Design:
        """How trials of a rate are best divided, as far as its strata are known."""
        rate, threshold = self.wanted[number], self._sequences[number].threshold + DRIFT
        spread, ranges = self._spread(rate.outcome), self._ranges(rate.outcome)
        return design(self._part(number)[0], spread, ranges, self._ahead(number), threshold)

    def _ahead(self, number: int) -> int:
        """How many trials of a rate a block is designed for, whatever width is asked for."""
        return AHEAD * max(FIRST, int(self.counts[self._of[number]].sum()))

    def _ranges(self, outcome: int) -> tuple[np.ndarray, np.ndarray]:
        """How far an outcome can lie below and above what is guessed of it, [strata] both."""
        shift = self._shift(outcome)
        return self._proxy.most + shift - self._low, self._high - self._proxy.least - shift

    def _need(self, number: int) -> float:
        """About how many more trials a rate needs; 0 where it is as narrow as asked."""
        rate, sequence = self.wanted[number], self._sequences[number]
        if math.isinf(rate.width) or not self._part(number)[0].any():
            return 0.0
        low, high = sequence.interval()
        if high - low <= rate.width:
            return 0.0
        best = self._design(number)
        trials = best.trials(rate.width)
        share = min(max(self._share(number), low), high)
        lower = max(low, share - best.gaps(trials)[0])
        upper = min(high, lower + rate.width)
        sides = [side for side, open_ in enumerate((lower > low, upper < high)) if open_]
        capital = min(sequence.log_capital((lower, upper)[side])[side] for side in sides)
        missing = 1 - max(0.0, capital) / sequence.threshold
        return max(1.0, trials * missing)

    def _needs(self, number: int) -> np.ndarray:
        """About how many more trials of each stratum a rate needs, float64 [strata]."""
        need = self._need(number)
        chances = self._design(number).chances if need else np.zeros(len(self.counts))
        return np.minimum(chances * need, self._cases - self.counts)

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
        chance, census = slice(None, draws.by_chance), slice(draws.by_chance, None)  # which was no chance: known first
        self._count(draws.strata[census], y[census], f[census])
        for number in range(len(self.wanted)):
            self._bet(number, draws.strata[chance], draws.chances, y[chance], f[chance])
        self._count(draws.strata[chance], y[chance], f[chance])
        for number, sequence in enumerate(self._sequences):
            sequence.within(*self._limits(number))
            sequence.interval()  # at each block's end, so that it does not matter when somebody looks

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
        self._sequences[number].update(x, low, high, base, self._design(number).stakes(self._ahead(number)))

    # --- what is known ---

    @property
    def more(self) -> int:
        """About how many more trials all rates together need; 0 where each is as narrow as asked."""
        return math.ceil(np.max([self._needs(number) for number in range(len(self.wanted))], axis=0).sum())

    def rates(self) -> list[KnownRate]:
        """What is known of every rate that was asked for, in their order."""
        found = []
        for number, rate in enumerate(self.wanted):
            low, high = self._sequences[number].interval()
            more = math.ceil(self._needs(number).sum())
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


def _check(strata: Sequence[KnownStratum]) -> None:
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
