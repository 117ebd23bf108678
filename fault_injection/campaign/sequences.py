"""Intervals of a rate that hold at every time at which somebody looks, stops or goes on.

Observations X_1, X_2, … have the mean μ, each given all before it, and bounds a_t ≤ X_t ≤ b_t that are known before
X_t is.  Whoever holds μ ≤ m must accept fair bets against it.  With the stake κ ≥ 0 the capital of such bets is

.. math::
  K(m) = ∏_t \\frac{1 + κ_t (X_t - a_t)}{1 + κ_t (m - a_t)}

It starts at 1, and if μ ≤ m its expectation never exceeds 1.  So by Ville's inequality it ever reaches 2/α with
probability α/2 at most, and the lower end of the interval is the smallest m against which no capital has reached 2/α.
The upper end is the lower one of −X.  The capital is divided among stakes of all sizes at the start (`SIZES`), so
that no size has to be guessed.  Each factor falls where m grows, so an end is one root, and no grid of m is needed.
K needs Σ log(1 + κ(X − a)) of the observations, and of the bounds how many observations had which.

The observations of one block, whose bounds are the same, may also be

- draws without repetition from a finite part of a population: the mean of a product over such draws is at most the
  product of means (Maclaurin's inequality), so K is a test at the end of each block;
- draws whose chances differ by their place in the block, and have the mean that the design says (the means of
  geometric and arithmetic mean).

Reference: Ville, Étude critique de la notion de collectif (1939); Waudby-Smith and Ramdas, JRSS-B 86 (2024) 1, for
bets with λ = κ/(1 + κ(m − a)); Waudby-Smith, Wu, Ramdas, Karampatziakis, Mineiro, ACM/IMS J. Data Science (2024), for
predictable bounds.  Fixed portfolios of stakes are those of Cover, Mathematical Finance 1 (1991) 1.
"""

import math
from collections.abc import Callable

import numpy as np
from scipy.optimize import brentq

from ..machine.errors import InputError

# The sizes of λ at which half of the capital is staked, in units of one over the width of the first block's bounds: a
# lower end after a few rare observations asks for large ones, a narrow interval for small ones.  The other half bets
# with a size that whoever designs a block chooses for it.
SIZES = 2.0 ** np.arange(-14, 11)
PARTS = np.log([0.5, *[0.5 / len(SIZES)] * len(SIZES)])  # of the capital; the chosen size is the first
KEPT = 0.02  # of the capital, whatever one observation is, if the mean is the `center`
TINY = 1e-300  # in place of a 0 that divides
TOLERANCE = 1e-9  # of an end, relative to the interval: ends are moved outwards by it


class ConfidenceSequence:
    """An interval of a mean that contains it at all times together, with the probability `confidence`.

    >>> sequence = ConfidenceSequence(0.95)
    >>> for _ in range(10):
    ...     sequence.update(np.zeros(100), 0, 1)
    >>> low, high = sequence.interval()
    >>> low, 3 / 1000 < high < 6 / 1000
    (0.0, True)

    Args:
      confidence: in (0, 1).
      low, high: what the mean is known to lie in, inclusive.

    Attributes:
      observations: how many there were.
    """

    def __init__(self, confidence: float = 0.95, low: float = 0.0, high: float = 1.0):
        if not 0 < confidence < 1:
            raise InputError(f"confidence {confidence}: expected a number above 0 and below 1")
        self.threshold = math.log(2 / (1 - confidence))
        self.observations = 0
        self._ends = self._limits = (low, high)
        self._unit = math.nan  # of stakes: the width of the bounds of the first observations
        self._sums = np.zeros((2, len(PARTS)))
        self._blocks: dict[tuple[float, ...], int] = {}  # by bounds, center and stakes, how many observations
        self._looked = 0  # observations when the ends were last computed

    def update(
        self,
        x: np.ndarray,
        low: float,
        high: float,
        center: float | None = None,
        stakes: tuple[float, float] | None = None,
    ) -> None:
        """Takes a block of observations.

        Args:
          x: float64 [n], in any order.
          low, high: bounds of each, chosen before the block was drawn.
          center: a guess of the mean, made before the block was drawn; the middle of the interval where None.  It
            decides how much can be staked, and no wrong one makes the interval wrong.
          stakes: λ with which half of the capital bets for the lower and for the upper end, chosen before the block
            was drawn; one over the width of the bounds where None.

        Raises:
          InputError: an observation lies outside the bounds.
        """
        x = np.asarray(x, np.float64)
        slack = TOLERANCE * (high - low)
        if not np.all((x >= low - slack) & (x <= high + slack)):  # a NaN too
            outside = x[~((x >= low - slack) & (x <= high + slack))][0]
            raise InputError(f"an observation of {outside:g}: expected one from {low:g} to {high:g}")
        if not len(x) or high == low:  # nothing to bet on
            return
        if math.isnan(self._unit):
            self._unit = high - low
        middle = sum(self._ends) / 2 if center is None else center
        chosen = stakes or (1 / (high - low),) * 2
        key = (float(low), float(high), float(min(max(middle, low), high)), *map(float, chosen))
        values, counts = np.unique(x.clip(low, high), return_counts=True)
        for side, distance in enumerate((values - low, high - values)):
            self._sums[side] += counts @ np.log1p(distance[:, None] * self._stakes(np.array([key]), side))
        self._blocks[key] = self._blocks.get(key, 0) + len(x)
        self.observations += len(x)

    def within(self, low: float, high: float) -> None:
        """Takes what is known of the mean for certain, as where a part of the population was seen in full.

        It counts more than the bets: an interval that lies outside, as one in twenty may, becomes the nearest end.
        """
        self._limits = max(low, self._limits[0]), min(high, self._limits[1])

    def interval(self) -> tuple[float, float]:
        """Both ends; an end that was excluded once stays so."""
        low, high = self._ends
        if self.observations > self._looked:  # to look again changes nothing
            self._looked = self.observations
            low, high = self._end(0, low, high), self._end(1, low, high)
            # Ends that would cross, which is as rare as an error, meet.
            self._ends = (low, high) if low <= high else ((low + high) / 2,) * 2
        least, most = self._limits
        return min(max(self._ends[0], least), most), max(min(self._ends[1], most), least)

    def log_capital(self, m: float) -> tuple[float, float]:
        """The logarithms of the capital against means of at most m, and of at least m.

        The interval does not contain m once either exceeds `threshold`.
        """
        return self._against(0)(m), self._against(1)(m)

    def log_capitals(self, m: np.ndarray, side: int) -> tuple[np.ndarray, np.ndarray]:
        """The logarithm of the capital of one side and its slope, float64 [n] both; a convex function of m.

        Args:
          m: float64 [n], means.
          side: 0 for the capital against means of at most m, 1 for that against means of at least m.
        """
        if not self._blocks:
            return np.zeros(len(m)), np.zeros(len(m))
        blocks, counts = np.array(list(self._blocks)), np.array(list(self._blocks.values()))
        stakes = self._stakes(blocks, side)[:, :, None]  # [blocks, parts, 1]
        sign = 1 - 2 * side
        distance = (sign * (m - blocks[:, side, None])).clip(0)[:, None]  # [blocks, 1, n]
        spent = np.einsum("b,bpn->pn", counts, np.log1p(distance * stakes))
        capital = self._sums[side][:, None] - spent + PARTS[:, None]
        whole = np.logaddexp.reduce(capital)
        falls = np.einsum("b,bpn->pn", counts, stakes / (1 + distance * stakes))
        return whole, -sign * (np.exp(capital - whole) * falls).sum(axis=0)

    @property
    def limits(self) -> tuple[float, float]:
        """What is known for certain."""
        return self._limits

    def _stakes(self, blocks: np.ndarray, side: int) -> np.ndarray:
        """κ of blocks with these `(low, high, center, λ, λ)`, [blocks, parts]."""
        low, high, center, *chosen = blocks.T
        sizes = SIZES / self._unit
        size = np.column_stack([chosen[side].clip(sizes[0], sizes[-1]), np.tile(sizes, (len(low), 1))])
        distance = (center - low if side == 0 else high - center)[:, None]
        size = np.minimum(size, (1 - KEPT) / np.maximum(distance, TINY))
        return np.asarray(size / (1 - size * distance))

    def _against(self, side: int) -> Callable[[float], float]:
        """The logarithm of the capital of one side, as a function of m."""
        if not self._blocks:
            return lambda m: 0.0
        blocks, counts = np.array(list(self._blocks)), np.array(list(self._blocks.values()))
        stakes = self._stakes(blocks, side)

        def capital(m: float) -> float:
            distance = (m - blocks[:, 0] if side == 0 else blocks[:, 1] - m).clip(0)  # a mean is within all bounds
            spent = counts @ np.log1p(distance[:, None] * stakes)
            return float(np.logaddexp.reduce(self._sums[side] - spent + PARTS))

        return capital

    def _end(self, side: int, low: float, high: float) -> float:
        """The outermost mean that is not excluded on one side."""
        capital = self._against(side)
        outer, inner = (low, high) if side == 0 else (high, low)
        if capital(outer) < self.threshold:
            return outer
        if capital(inner) >= self.threshold:
            return inner
        slack = TOLERANCE * (high - low)
        root = float(brentq(lambda m: capital(m) - self.threshold, low, high, xtol=slack / 2, rtol=1e-12))
        return max(low, root - slack) if side == 0 else min(high, root + slack)
