"""Shares of experiments, with their confidence intervals."""

import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

from scipy.special import betaincinv


class Rate(NamedTuple):
    """A share with its confidence interval.

    Attributes:
      found, total: `found` of `total` experiments, as their verdicts are known: early ones are believed here.
      share: a fraction in [0, 1]; NaN where there is no experiment.  Where verdicts are early it is estimated
        by their audits (`two_phase`), and is not found / total.
      low, high: ends of the interval, fractions in [0, 1].
      guesses: how many of the experiments have an early verdict that nobody followed to the end.
      audits: how many early verdicts were followed to the end.
      unaudited: how many of the guesses are of a kind of which no one was followed.
    """

    found: int
    total: int
    share: float
    low: float
    high: float
    guesses: int = 0
    audits: int = 0
    unaudited: int = 0


def wilson(count: int, total: int, confidence: float = 0.95) -> Rate:
    """Wilson's score interval of a binomial proportion.  Without experiments it is [0, 1].

    >>> rate = wilson(3, 10)
    >>> f"{rate.share:.3f} [{rate.low:.3f}, {rate.high:.3f}]"
    '0.300 [0.108, 0.603]'

    .. math::
      \\frac{\\hat p + z²/2n ± z\\sqrt{\\hat p(1-\\hat p)/n + z²/4n²}}{1 + z²/n}

    Reference: Wilson, JASA 22 (1927) 209; Brown, Cai, DasGupta, Statistical Science 16 (2001) 101.
    """
    if not total:
        return Rate(0, 0, math.nan, 0.0, 1.0)
    return _interval(count, total, count / total, total, confidence)


def at_most(count: int, total: int, confidence: float = 0.95) -> float:
    """The one-sided upper bound of a share, exact for any size of sample; 1 without experiments.

    >>> round(at_most(0, 50), 4), round(1 - 0.05 ** (1 / 50), 4)
    (0.0582, 0.0582)

    Reference: Clopper, Pearson, Biometrika 26 (1934) 404.
    """
    return 1.0 if count == total else float(betaincinv(count + 1, total - count, confidence))


def _interval(count: int, total: int, share: float, equivalent: float, confidence: float) -> Rate:
    return Rate(count, total, share, *score_interval(share, equivalent, confidence))


def score_interval(share: float, size: float, confidence: float) -> tuple[float, float]:
    """Both ends of Wilson's interval of a share in so many experiments, not necessarily a whole number.

    >>> [round(end, 3) for end in score_interval(0.3, 10, 0.95)]
    [0.108, 0.603]
    """
    z = statistics.NormalDist().inv_cdf((1 + confidence) / 2)
    square = z * z / size
    middle = (share + square / 2) / (1 + square)
    half = z * math.sqrt(share * (1 - share) / size + square / (4 * size)) / (1 + square)
    # A share of 0 or 1 is an exact end of its interval, which rounding would miss.
    return (middle - half if share > 0 else 0.0), (middle + half if share < 1 else 1.0)


def stratified(strata: list[tuple[int, int, float]], confidence: float = 0.95) -> Rate:
    """The share in a population whose strata have known weights, however the sample is divided among them.

    >>> stratified([(1000, 1000, 1.0), (0, 100, 1.0)]).share
    0.5

    .. math::
      \\hat p = Σ w_h \\hat p_h, \\qquad \\hat σ² = Σ w_h² \\tilde p_h(1-\\tilde p_h)/n_h,
      \\qquad \\tilde p_h = (x_h + 1)/(n_h + 2)

    The interval is Wilson's, for the number of experiments that would give this variance in a
    plain sample.  The variance uses p̃ where Cochran has p̂, so that a stratum whose few
    experiments all agree is not taken as certain; this choice is ours.

    Args:
      strata: `(count, total, weight)` of each.  Strata without experiments are left out, and the
        other weights are scaled to a sum of 1.

    Reference: Cochran, Sampling Techniques, 3rd ed., section 5.10; Leveugle et al., DATE 2009.
    """
    count, size = sum(s[0] for s in strata), sum(s[1] for s in strata)
    return _interval(count, size, *equivalent_sample(strata), confidence) if size else wilson(0, 0, confidence)


def equivalent_sample(strata: Sequence[tuple[float, int, float]]) -> tuple[float, float]:
    """The share of `stratified`, and the size of a plain sample in which it would have that variance.

    Args:
      strata: as of `stratified`, not all without experiments; a count need not be a whole number.
    """
    known = [(count, total, weight) for count, total, weight in strata if total]
    whole = sum(weight for _, _, weight in known)
    share = sum(x / n * weight / whole for x, n, weight in known)
    variance = sum((weight / whole) ** 2 * (p := (x + 1) / (n + 2)) * (1 - p) / n for x, n, weight in known)
    return share, share * (1 - share) / variance if 0 < share < 1 else sum(n for _, n, _ in known)
