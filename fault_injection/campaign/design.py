"""How trials are divided among strata, so that an interval of a wanted width needs the fewest.

With the observations X of `allocation`, V = Σ W_h²s_h²/q_h is the variance of X and D = max W_h r_h/q_h its range, with
s_h the standard deviation in a stratum and r_h how far an outcome can lie from f_h.  Against a rate that is δ away the
logarithm of the capital grows by max λδ − λ²V/2 over λ ≤ 1/D a trial, so n trials leave a gap of about
log(2/α)/nλ + λV/2 at each end.  V alone is least for Neyman's q_h ∝ W_h s_h, which forgets strata in which nothing was
seen yet; D alone for q_h ∝ W_h r_h.  The design is the q_h ∝ max(W_h s_h, τ W_h r_h) whose τ needs the fewest trials:
Neyman's allocation with a floor, which is the lower the narrower the wanted interval is.

Reference: Neyman, JRSS 97 (1934) 558; the gap is Bernstein's, as in Waudby-Smith and Ramdas, JRSS-B 86 (2024) 1.
"""

from typing import NamedTuple

import numpy as np

from .sequences import TINY

FLOORS = 2.0 ** np.arange(-16, 1)  # τ that are tried


class Design(NamedTuple):
    """How trials are best divided.

    Attributes:
      chances: float64 [strata], of the next trial.
      trials: about how many the wanted width needs in all.
      below, above: by how much the interval will then lie below and above the rate.
      stakes: λ of the bets that are best for that, of the lower and the upper end.
    """

    chances: np.ndarray
    trials: float
    below: float
    above: float
    stakes: tuple[float, float]


def design(
    weights: np.ndarray, spread: np.ndarray, ranges: tuple[np.ndarray, np.ndarray], width: float, threshold: float
) -> Design:
    """The chances with which an interval needs the fewest trials for a width.

    >>> found = design(np.array([0.1, 0.9]), np.array([0.5, 0.0]), (np.zeros(2), np.ones(2)), 0.02, 3.7)
    >>> found.chances.round(2), round(found.trials)
    (array([0.47, 0.53]), 606)

    Args:
      weights: float64 [strata], of what is open; strata with 0 get the chance 0.
      spread: float64 [strata], standard deviations.
      ranges: float64 [strata] both, how far observations can lie below and above what was guessed.
      width: of the interval, above 0.
      threshold: the logarithm of the capital that excludes a mean.
    """
    deviation = weights * spread
    wide = weights * np.maximum(*ranges)
    candidates = np.maximum(deviation, FLOORS[:, None] * wide)  # [floors, strata]
    candidates /= candidates.sum(axis=1, keepdims=True)
    inverse = np.divide(1, candidates, out=np.zeros_like(candidates), where=candidates > 0)
    variance = np.maximum(inverse @ deviation**2, TINY)
    most = [1 / np.maximum((inverse * weights * far).max(axis=1), TINY) for far in ranges]  # λ at most, [floors]

    def gaps(trials: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        best = np.sqrt(2 * threshold / (trials * variance))
        stakes = np.minimum(best, most)  # [2, floors]
        return stakes, threshold / (trials * stakes) + stakes * variance / 2

    low, high = np.full(len(FLOORS), 0.0), np.full(len(FLOORS), 60.0)  # log2 of trials
    for _ in range(24):
        middle = (low + high) / 2
        enough = gaps(2**middle)[1].sum(axis=0) <= width
        low, high = np.where(enough, low, middle), np.where(enough, middle, high)
    best = int(np.argmin(high))
    trials = 2**high
    stakes, (below, above) = gaps(trials)
    lower, upper = stakes[:, best].tolist()
    return Design(candidates[best], float(trials[best]), float(below[best]), float(above[best]), (lower, upper))
