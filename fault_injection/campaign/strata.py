"""What `allocation` is given and gives: strata, proxies, rates that are asked for, blocks of draws."""

from typing import NamedTuple

import numpy as np


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


def answer(more: int) -> str:
    """What is said of a rate that needs about so many more experiments.

    >>> answer(0), answer(1200)
    ('as wide as asked', 'needs about 1,200 more')
    """
    return f"needs about {more:,} more" if more else "as wide as asked"


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
        return answer(self.more)


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
