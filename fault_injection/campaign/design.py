"""How trials are divided among strata, so that a number of them gives the narrowest interval.

With the observations X of `allocation`, V = Σ W_h²s_h²/q_h is the variance of X and D = max W_h r_h/q_h its range, with
s_h the standard deviation in a stratum and r_h how far an outcome can lie from f_h.  Against a rate that is δ away the
logarithm of the capital grows by max λδ − λ²V/2 over λ ≤ 1/D a trial, so n trials leave a gap of about
log(2/α)/nλ + λV/2 at each end.  V alone is least for Neyman's q_h ∝ W_h s_h, which forgets strata in which nothing was
seen yet; D alone for q_h ∝ W_h r_h.  The design is the q_h ∝ max(W_h s_h, τ W_h r_h) whose τ leaves the least gap:
Neyman's allocation with a floor, which is the lower the more trials there are.

Reference: Neyman, JRSS 97 (1934) 558; the gap is Bernstein's, as in Waudby-Smith and Ramdas, JRSS-B 86 (2024) 1.
"""

import math
from typing import NamedTuple

import numpy as np

from .sequences import TINY

FLOORS = 2.0 ** np.arange(-16, 1)  # τ that are tried


class Design(NamedTuple):
    """How trials are divided among strata.

    Attributes:
      chances: float64 [strata], of the next trial.
      variance: of an observation.
      most: λ at most, of the lower and of the upper end.
      threshold: the logarithm of the capital that excludes a mean.
    """

    chances: np.ndarray
    variance: float
    most: tuple[float, float]
    threshold: float

    def stakes(self, trials: float) -> tuple[float, float]:
        """λ of the bets that are best for an interval after so many trials, of the lower and the upper end."""
        best = math.sqrt(2 * self.threshold / (trials * self.variance))
        return min(best, self.most[0]), min(best, self.most[1])

    def gaps(self, trials: float) -> tuple[float, float]:
        """By how much the interval then lies below and above the rate."""
        below, above = (self.threshold / (trials * s) + s * self.variance / 2 for s in self.stakes(trials))
        return below, above

    def trials(self, width: float) -> float:
        """About how many trials an interval of that width needs."""
        low, high = 0.0, 60.0  # log2 of trials
        for _ in range(40):
            middle = (low + high) / 2
            low, high = (low, middle) if sum(self.gaps(2**middle)) <= width else (middle, high)
        return float(2**high)


def design(
    weights: np.ndarray, spread: np.ndarray, ranges: tuple[np.ndarray, np.ndarray], trials: float, threshold: float
) -> Design:
    """The chances with which so many trials give the narrowest interval.

    >>> found = design(np.array([0.1, 0.9]), np.array([0.5, 0.0]), (np.zeros(2), np.ones(2)), 600, 3.7)
    >>> found.chances.round(2), round(sum(found.gaps(600)), 3), round(found.trials(0.02))
    (array([0.47, 0.53]), 0.02, 606)

    Args:
      weights: float64 [strata], of what is open; strata with 0 get the chance 0.
      spread: float64 [strata], standard deviations.
      ranges: float64 [strata] both, how far observations can lie below and above what was guessed.
      trials: how many, above 0.
      threshold: the logarithm of the capital that excludes a mean.
    """
    deviation = weights * spread
    wide = weights * np.maximum(*ranges)
    candidates = np.maximum(deviation, FLOORS[:, None] * wide)  # [floors, strata]
    candidates /= candidates.sum(axis=1, keepdims=True)
    inverse = np.divide(1, candidates, out=np.zeros_like(candidates), where=candidates > 0)
    variance = np.maximum(inverse @ deviation**2, TINY)
    most = np.array([1 / np.maximum((inverse * weights * far).max(axis=1), TINY) for far in ranges])  # [2, floors]
    stakes = np.minimum(np.sqrt(2 * threshold / (trials * variance)), most)
    best = int(np.argmin((threshold / (trials * stakes) + stakes * variance / 2).sum(axis=0)))
    return Design(candidates[best], float(variance[best]), (float(most[0, best]), float(most[1, best])), threshold)
