"""Outcomes that were guessed early, and of which some are audited: followed to the end with a known chance.

With the guess f, the outcome y at the end, and δ = 1 where the guess was audited, which has the chance π,

.. math::
  f + \\frac{δ}{π} (y - f)

has the mean of y whatever the guesses are, so it can be observed in place of y.  Its range is about 1/π times as wide,
and what audits have not seen is in the interval.

Reference: Robins, Rotnitzky, Zhao, JASA 89 (1994) 846; Angelopoulos et al., Science 382 (2023) 669.
"""

from collections.abc import Sequence

import numpy as np


def audited(early: np.ndarray, ends: np.ndarray, chances: np.ndarray) -> np.ndarray:
    """What is observed of outcomes that were guessed early: guesses, corrected where they were audited.

    A case that is drawn again is audited anew, so strata of such observations have no number of cases
    (`allocation.KnownStratum.cases` is None).

    >>> audited(np.array([0, 0, 1.0]), np.array([np.nan, 1, 1]), np.array([0.1, 0.1, 0.5]))
    array([ 0., 10.,  1.])

    Args:
      early: float64 [n], the guesses.
      ends: float64 [n], outcomes at the end; NaN where nobody followed.
      chances: float64 [n], with which each was chosen to be followed, above 0.
    """
    return np.where(np.isnan(ends), early, early + (np.nan_to_num(ends) - early) / chances)


def audited_bounds(kinds: Sequence[tuple[float, float]], low: float = 0.0, high: float = 1.0) -> tuple[float, float]:
    """Bounds of what `audited` gives, where the kinds of guesses are known beforehand.

    >>> audited_bounds([(0, 0.1), (1, 0.5)])  # verdicts of "masked" audited with 0.1, others with 0.5
    (-1.0, 10.0)

    Args:
      kinds: of each, the guess and the least chance with which it is audited.
      low, high: bounds of outcomes at the end.
    """
    found = [f + (y - f) / chance for f, chance in kinds for y in (low, high)] + [f for f, _ in kinds]
    return min(found), max(found)
