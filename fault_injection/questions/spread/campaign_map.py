"""What the maps of a campaign's sample say together: how far its faults came, and which tensors they reached."""

import collections
import dataclasses
import pathlib
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np

from ...campaign.rates import Rate, wilson
from ...machine.errors import InputError
from ...machine.files import read_sealed
from ...runs.fault_map import MapRow

# How far a fault came in the step struck, and what that says; the first that holds.
NOTHING, AT_ONCE, BETWEEN, OPTIMIZER, STATE, PARAMETERS = FATES = (
    "its operation's result is the golden one: the element met a zero or was rounded away",
    "no result but the struck one differs, and nothing of the state: it died right behind, as in a closed ReLU, or in "
    "the optimizer where that result is a gradient",
    "further results differ, and neither gradients nor state: it died within the passes",
    "gradients differ, and nothing of the state: it died in the sum of workers, in clipping or in the optimizer",
    "the state differs, and no parameter: moments or statistics keep it",
    "parameters differ",
)
One = TypeVar("One")


class ExperimentFate(NamedTuple):
    """What became of the fault of one experiment.

    Attributes:
      number: in the campaign.
      outcome: that the campaign found.
      site: what it strikes.
      fate: one of `FATES`.
      last: the last result of the step struck that differs; empty where none does.
      same: whether the losses from the fault on are those that the campaign recorded, bit for bit.
    """

    number: int
    outcome: str
    site: str
    fate: str
    last: str
    same: bool


class Spread(NamedTuple):
    """Which tensors differ, of some experiments.

    Attributes:
      experiments: int64 [n,s], in how many of them each tensor differs after each step.
      share: float64 [n,s], the mean share of its elements that do.
    """

    experiments: np.ndarray
    share: np.ndarray


@dataclasses.dataclass(frozen=True)
class CampaignMap:
    """Of n tensors, over s steps.

    Attributes:
      rows: the tensors, in the order of the computation.
      experiments: the sample.
      of: experiments of the campaign that are done, from which it was drawn.
      by_outcome: the most frequent outcome first.
      by_site: int64 [n] by what is struck: in how many of those experiments each tensor differs in the step struck.
    """

    rows: tuple[MapRow, ...]
    experiments: tuple[ExperimentFate, ...]
    of: int
    by_outcome: dict[str, Spread]
    by_site: dict[str, np.ndarray]

    @property
    def steps(self) -> int:
        """That were followed after the one struck."""
        return next(iter(self.by_outcome.values())).share.shape[1] - 1


def grouped(sample: Sequence[One], by: str) -> dict[str, list[One]]:
    """The experiments by an attribute such as `outcome`, `site` or `fate`, the most frequent first."""
    found: dict[str, list[One]] = collections.defaultdict(list)
    for one in sample:
        found[getattr(one, by)].append(one)
    return dict(sorted(found.items(), key=lambda pair: (-len(pair[1]), pair[0])))


def fates(sample: Sequence[ExperimentFate]) -> dict[str, Rate]:
    """How many experiments came how far in the step struck, with 95 % intervals."""
    counts = collections.Counter(one.fate for one in sample)
    return {fate: wilson(counts[fate], len(sample)) for fate in FATES}


def campaign_map_values(found: CampaignMap) -> dict[str, Any]:
    """A campaign's map as JSON values, which `read_campaign_map` reads."""
    return {
        "done": found.of,
        "experiments": [one._asdict() for one in found.experiments],
        "fates": {
            fate: {"found": rate.found, "of": rate.total, "low": rate.low, "high": rate.high}
            for fate, rate in fates(found.experiments).items()
        },
        "rows": [row._asdict() for row in found.rows],
        "by_outcome": {
            outcome: {"experiments": each.experiments.tolist(), "share": each.share.tolist()}
            for outcome, each in found.by_outcome.items()
        },
        "by_site": {site: each.tolist() for site, each in found.by_site.items()},
    }


def read_campaign_map(path: pathlib.Path) -> tuple[CampaignMap, str, list[str]]:
    """What `map --campaign` wrote as `map.json`: the map, the title of its page, and the commands that made it.

    Raises:
      OSError: it cannot be read.
      DamagedFile: it is damaged.
      InputError: it is no such file.
    """
    values = read_sealed(path)
    try:
        found = CampaignMap(
            tuple(MapRow(**row) for row in values["rows"]),
            tuple(ExperimentFate(**one) for one in values["experiments"]),
            values["done"],
            {
                outcome: Spread(np.array(each["experiments"]), np.array(each["share"]))
                for outcome, each in values["by_outcome"].items()
            },
            {site: np.array(each) for site, each in values["by_site"].items()},
        )
        return found, values["title"], values["commands"]
    except (KeyError, TypeError, AttributeError) as error:
        raise InputError("expected the map.json of map --campaign", path) from error
