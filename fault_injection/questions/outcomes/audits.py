"""How many early verdicts a campaign audits where its plan leaves that open.

With a fixed number of experiments: enough for the interval of the rate of what was not masked to be at most 1.5 times
as wide as if every run were followed to its end, in a campaign such as this file assumes, where no audit finds another
outcome.
The number of audits grows as the square root of the number of experiments.

With a wanted width: a tenth.  In a campaign such as the reference that is about the cheapest for widths from 0.02 to
0.08: half as many take about as many steps in all, twice as many a third more (`benchmarks/wanted_widths.py`).
"""

import functools
import math
from typing import NamedTuple

from ...campaign.rates import score_interval
from ...campaign.two_phase import Guesses, two_phase

# What is assumed of a campaign, as the reference campaign has it (results/README.md).
EARLY = 0.75  # share of experiments with an early verdict, which says Masked
BAD = 0.5  # share of the others that are not masked
WIDER = 1.5  # how many times as wide the interval may be
SURE = (
    1.645  # standard deviations by which the number of audits may fall short by chance: 95 of 100 campaigns have enough
)
DIGITS = 1000  # a share is a whole number of thousandths
WANTED_SHARE = 0.1  # of early verdicts, where a width is wanted


class Widths(NamedTuple):
    """What is expected of the interval of the rate of what was not masked.

    Attributes:
      audits: how many early verdicts are followed to the end.
      width, full: width of the interval, and what it is if every run is followed; fractions.
    """

    audits: float
    width: float
    full: float


def expected(experiments: int, audits: float, confidence: float, alone: float | None = None) -> Widths:
    """The widths in a campaign of so many experiments with so many audits, none of which differs.

    Args:
      alone: share of the audits that are followed by themselves, where others are in groups (`together`); None where
        all are.
    """
    early = EARLY * experiments
    bad = BAD * (experiments - early)
    low, high = score_interval(bad / experiments, experiments, confidence)
    seen = Guesses(early, 0, round(audits), 0)
    if alone is not None:
        seen = Guesses(early, 0, 0, 0, nested=Guesses(round(audits), 0, round(alone * audits), 0))
    found = two_phase(bad, experiments - early - bad, [seen], confidence)
    return Widths(audits, found.high - found.low, high - low)


@functools.lru_cache
def share_to_audit(experiments: int, confidence: float) -> float:
    """The share of early verdicts that is audited by default.

    >>> share_to_audit(2400, 0.95), share_to_audit(9604, 0.95)
    (0.081, 0.038)
    """
    early = EARLY * experiments
    few, enough = 0, math.ceil(early)
    while enough - few > 1:
        middle = (few + enough) // 2
        widths = expected(experiments, middle, confidence)
        few, enough = (few, middle) if widths.width <= WIDER * widths.full else (middle, enough)
    # The number drawn varies as a binomial: m - SURE √(m (1 - m / early)) is to be enough.
    square = SURE * SURE
    most = (
        enough + square / 2 + SURE * math.sqrt(enough * (1 - enough / early) + square / 4) if enough < early else early
    )
    return min(1.0, math.ceil(DIGITS * most / early) / DIGITS)
