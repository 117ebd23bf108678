"""An interval of a weighted sum of means, each of which has a confidence sequence of its own.

Where sequences are independent of one another, the product of capitals against their means m_l is a capital against all
of these together.  So the vectors m that no product of them has excluded are

.. math::
  Σ_l \\log K_l(m_l) ≤ \\log(2/α),

and the lower end is the least Σ w_l m_l over these, for K_l the capitals against means of at most m_l; the upper end is
the largest, for the others.  It costs no level for each mean, and does not add their gaps: where nothing was seen in
any of n trials each, it ends at about log(2/α)/n times the *largest* weight.

Since log K_l is convex, the least sum is found from its dual, max over t ≥ 0 of
Σ_l min_m [w_l m + t log K_l(m)] − t log(2/α).  Any t gives a valid end, though perhaps one too far outside; and so do
tangents of K_l at the points of a grid, below which it never is.

Reference: Spertus, Sridhar, Stark, arXiv 2409.06680 (products over strata); Boyd, Vandenberghe, Convex Optimization
(2004), 5.1 (the dual).
"""

import math
from collections.abc import Sequence

import numpy as np
from scipy.optimize import minimize_scalar

from .sequences import ConfidenceSequence

NEAR = np.geomspace(1e-3, 1e6, 120)  # distances of a grid's points from the middle of an interval, in its half width
LEAST, MOST = -35.0, 10.0  # log t


def combined(
    sequences: Sequence[ConfidenceSequence], weights: Sequence[float], confidence: float = 0.95
) -> tuple[float, float]:
    """The interval of a weighted sum of means, at all times together.

    >>> parts = [ConfidenceSequence() for _ in range(10)]
    >>> for part in parts:
    ...     part.update(np.zeros(100), 0, 1)
    >>> low, high = combined(parts, [0.1] * 10)
    >>> alone = parts[0].interval()[1]
    >>> low, high < alone / 5
    (0.0, True)

    Args:
      sequences: independent ones.
      weights: of each mean, from 0.
      confidence: of the interval, in (0, 1).
    """
    low, high = (_end(sequences, np.array(weights, float), math.log(2 / (1 - confidence)), side) for side in (0, 1))
    return (low, high) if low <= high else ((low + high) / 2,) * 2


def _end(sequences: Sequence[ConfidenceSequence], weights: np.ndarray, threshold: float, side: int) -> float:
    sign = 1 - 2 * side  # the upper end is the lower one of the negative means
    outermost = sum(sign * w * one.limits[side] for w, one in zip(weights, sequences, strict=True))
    curves = [(w, *_curve(one, side)) for w, one in zip(weights, sequences, strict=True) if w > 0]

    def bound(log_t: float) -> float:
        t = math.exp(log_t)
        return float(sum(_least(x, w * x + t * k, w + t * slope) for w, x, k, slope in curves)) - t * threshold

    best = minimize_scalar(lambda log_t: -bound(log_t), bounds=(LEAST, MOST), method="bounded", options={"xatol": 1e-3})
    return float(sign * max(outermost, bound(best.x)))


def _curve(sequence: ConfidenceSequence, side: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Points of a mean, negative for the upper end; the logarithm of the capital and its slope; float64 [n] each."""
    low, high = sequence.limits
    ends, sign = sequence.interval(), 1 - 2 * side
    middle, half = sum(ends) / 2, max(ends[1] - ends[0], 1e-12) / 2
    m = np.concatenate([middle - half * NEAR, middle + half * NEAR, [low, middle, high]])
    x = np.unique(sign * m.clip(low, high))
    capital, slope = sequence.log_capitals(sign * x, side)
    return x, capital, sign * slope


def _least(x: np.ndarray, values: np.ndarray, slopes: np.ndarray) -> float:
    """What a convex function is at least, by its values and slopes at rising points.

    >>> x = np.array([-1.0, 2.0])
    >>> _least(x, x**2, 2 * x)
    -2.0
    """
    after = int(np.searchsorted(slopes >= 0, True))  # the first point that it rises at
    if after == 0 or after == len(x):
        return float(values[min(after, len(x) - 1)])
    before = after - 1
    # Where the tangents meet.
    run = values[before] - values[after] + slopes[after] * (x[after] - x[before])
    return float(values[before] + slopes[before] * run / (slopes[after] - slopes[before]))
