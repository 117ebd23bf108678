"""A campaign's map: through which parts of a step harm passes, and where it dies, of a sample of its experiments.

Each experiment of the sample is mapped as an injection file is, for a few steps.  All of them share one compiled step.
"""

import pathlib
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from ...faults.injection import Injection
from ...machine.errors import InputError
from ...runs.fault_map import RESULTS, FaultMap, mapped, told_by
from ...runs.golden_run import Golden
from ...runs.replay_run import golden_for
from ...seam.program import Program
from ...seam.stages import BESIDE
from ..outcomes.answer import injections_of
from ..outcomes.store import Store
from .campaign_map import (
    AT_ONCE,
    BETWEEN,
    NOTHING,
    OPTIMIZER,
    PARAMETERS,
    STATE,
    CampaignMap,
    ExperimentFate,
    Spread,
    grouped,
)


class Drawn(NamedTuple):
    """One experiment of the sample.

    Attributes:
      number: in the campaign.
      outcome: that the campaign found.
      losses: float32 [k], that the campaign recorded from the step struck on.
    """

    number: int
    outcome: str
    losses: np.ndarray


class MappedExperiment(NamedTuple):
    """One experiment of the sample, with its map."""

    drawn: Drawn
    found: FaultMap

    @property
    def outcome(self) -> str:
        """That the campaign found."""
        return self.drawn.outcome

    @property
    def site(self) -> str:
        """What it strikes."""
        return next(iter(self.found.struck), self.found.injection.site.name)

    @property
    def reached(self) -> np.ndarray:
        """bool [n], tensors that differ in the step struck."""
        return np.asarray(self.found.differs[:, 0] > 0)

    @property
    def fate(self) -> str:
        """One of `FATES`."""
        found, reached = self.found, self.reached
        results = found.of_kind(*RESULTS)
        own = [place for place in results if found.rows[place].name == self.site]
        if reached[found.of_kind("parameter")].any():
            return PARAMETERS
        if reached[found.of_kind("statistic", "history", "other")].any():
            return STATE
        if reached[found.of_kind("gradient")].any():
            return OPTIMIZER
        if reached[[place for place in results if place not in own]].any():
            return BETWEEN
        return AT_ONCE if reached[own].any() else NOTHING

    @property
    def same(self) -> bool:
        """Whether the losses are those that the campaign recorded, bit for bit."""
        mine = self.found.loss[1].astype(np.float32)
        both = min(len(mine), len(self.drawn.losses))
        return np.array_equal(mine[:both], self.drawn.losses[:both], equal_nan=True)

    @property
    def last(self) -> str:
        """The last result of the step struck that differs; empty where none does."""
        results = [place for place in self.found.of_kind(*RESULTS) if self.reached[place]]
        return self.found.rows[results[-1]].name if results else ""


def sampled(folder: pathlib.Path, count: int, seed: int) -> tuple[list[Drawn], int]:
    """Experiments that are done, each as likely as any other; and how many are done.

    Raises:
      InputError: there is no campaign, none of its experiments is done, or its faults are not all injections, or not
        equally likely.
    """
    with Store(folder) as store:
        plan = store.plan()
        done = [
            Drawn(int(row["number"]), str(row["outcome"]), np.frombuffer(row["curve"], "<f4").reshape(-1, 2)[:, 0])
            for row in store.query("SELECT number, outcome, curve FROM experiments ORDER BY number")
        ]
    if plan is None or not done:
        raise InputError("no experiment of the campaign is done; run it first", folder)
    if plan.restarts:
        raise InputError("its runs restart from altered checkpoints; a map is of faults that strike a run", folder)
    if plan.wanted is not None:
        raise InputError("it draws by strata, so a plain sample would be of no fault that it asks for", folder)
    drawn = np.random.default_rng(seed).permutation(len(done))[:count]
    return [done[place] for place in sorted(drawn.tolist())], len(done)


def programs_of(injections: Sequence[Injection], cache: Any, data_dir: Any) -> tuple[Golden, Program]:
    """The golden run of a campaign's experiments, on one device as theirs, and the program that tells whole results."""
    w = injections[0].workload
    sites = frozenset(one.layer for each in injections for one in each.every if one.stage not in BESIDE)
    made = golden_for(injections[0], cache, data_dir, 1)
    golden = Golden(w, w.program(sites, 1, data_dir), made.cache, None)
    return golden, w.program(sites, 1, data_dir, told_by(golden.program)[0])


def maps_of(
    folder: pathlib.Path, sample: Sequence[Drawn], steps: int, cache: Any = None, data_dir: Any = None
) -> Iterator[MappedExperiment]:
    """The map of each experiment of a sample."""
    injections = injections_of(folder, [one.number for one in sample])
    golden, telling = programs_of(injections, cache, data_dir)
    for one, injection in zip(sample, injections, strict=True):
        yield MappedExperiment(one, mapped(injection, golden, telling, steps))


def campaign_map(sample: Sequence[MappedExperiment], of: int) -> CampaignMap:
    """What the maps of a sample say together.

    Args:
      sample: at least one experiment.
      of: experiments of the campaign that are done.
    """
    steps = max(len(one.found.steps) for one in sample)

    def shares(one: MappedExperiment) -> np.ndarray:
        """float64 [n,s]; of a run that ended before, its last step counts."""
        return one.found.share[:, np.minimum(np.arange(steps), len(one.found.steps) - 1)]

    by_outcome = {}
    for outcome, those in grouped(sample, "outcome").items():
        each = np.stack([shares(one) for one in those])
        by_outcome[outcome] = Spread((each > 0).sum(0), each.mean(0))
    by_site = {site: np.stack([one.reached for one in those]).sum(0) for site, those in grouped(sample, "site").items()}
    told = tuple(
        ExperimentFate(one.drawn.number, one.outcome, one.site, one.fate, one.last, one.same) for one in sample
    )
    return CampaignMap(sample[0].found.rows, told, of, by_outcome, by_site)
