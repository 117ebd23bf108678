"""Differences between the rates of campaigns, with intervals; how large one can be where none is shown."""

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from ....campaign.rates import Rate
from ....campaign.wording import MINUS, percent
from ..tally import Tally


class RateDifference(NamedTuple):
    """A difference between the rates of two campaigns, the second less the first.

    Attributes:
      of: the group of experiments whose rates they are; empty for all.
      first, second: the campaigns.
      share, low, high: in fractions, with the ends of the interval.
    """

    of: str
    first: str
    second: str
    share: float
    low: float
    high: float

    @property
    def certain(self) -> bool:
        """Whether the interval is without 0."""
        return self.low > 0 or self.high < 0

    @property
    def largest(self) -> float:
        """How large the difference can be, a fraction."""
        return max(abs(self.low), abs(self.high))

    def sentence(self) -> str:
        """In words: how much more the one has, in points of percent."""
        more, less, sign = (self.second, self.first, 1) if self.share >= 0 else (self.first, self.second, -1)
        low, high = sorted((sign * self.low, sign * self.high))
        of = f"{self.of}: " if self.of else ""
        return f"{of}{more} {points(sign * self.share)} points [{points(low)}, {points(high)}] above {less}"

    def as_dict(self) -> dict[str, Any]:
        """For machines to read."""
        return {**self._asdict(), "certain": self.certain}


def points(share: float) -> str:
    """A difference of shares in points of percent.

    >>> points(0.125), points(-0.125)
    ('12.5', '−12.5')
    """
    return MINUS + percent(-share) if share < 0 else percent(share)


def difference(of: str, names: tuple[str, str], rates: tuple[Rate, Rate]) -> RateDifference:
    """The difference of two rates of independent samples, with an interval from the ends of theirs.

    .. math::
      d - \\sqrt{(\\hat p_2 - l_2)² + (u_1 - \\hat p_1)²}, \\qquad d + \\sqrt{(u_2 - \\hat p_2)² + (\\hat p_1 - l_1)²}

    Reference: Newcombe, Statistics in Medicine 17 (1998) 873, method 10; Zou, Donner, ibid. 27 (2008) 1693.
    """
    one, two = rates
    share = two.share - one.share
    low = share - math.hypot(two.share - two.low, one.high - one.share)
    high = share + math.hypot(two.high - two.share, one.share - one.low)
    return RateDifference(of, *names, share, low, high)


def differences(
    groups: Iterable[tuple[str, Mapping[str, Tally]]], confidences: Mapping[str, float]
) -> Sequence[RateDifference]:
    """All differences between two campaigns, in every group; their intervals hold together (Bonferroni).

    Args:
      groups: by name, what is known of it in each campaign.
      confidences: of the campaigns, by name; the lowest is that of all intervals together.
    """
    pairs = [
        (of, one, two, found)
        for of, found in groups
        for one, two in itertools.combinations([name for name, tally in found.items() if tally.decided], 2)
    ]
    if not pairs:
        return []
    level = 1 - (1 - min(confidences.values())) / len(pairs)
    known: dict[tuple[str, str], Rate] = {}
    for of, one, two, found in pairs:
        for name in (one, two):
            if (of, name) not in known:
                known[of, name] = found[name].not_masked(level)
    return [difference(of, (one, two), (known[of, one], known[of, two])) for of, one, two, _ in pairs]


def told(found: Sequence[RateDifference], most: int = 3) -> str:
    """Differences in a sentence: those that are certain, the largest first; how large the others can be."""
    if not found:
        return "Nothing is decided in two of them, so there is nothing to compare."
    certain = sorted((one for one in found if one.certain), key=lambda one: -abs(one.share))
    rest = [one for one in found if not one.certain]
    said = [one.sentence() for one in certain[:most]]
    if len(certain) > most:
        said.append(f"and {len(certain) - most} more that are certain")
    if rest:
        largest = f"no difference larger than {percent(max(one.largest for one in rest))} points"
        others = "1 other" if len(rest) == 1 else f"{len(rest)} others"
        said.append(f"{others}: {largest}" if certain else largest)
    sentence = f"{'; '.join(said)}."
    return sentence if certain else sentence[0].upper() + sentence[1:]  # the name of a campaign is as it is
