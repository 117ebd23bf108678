"""A campaign's map: through which parts of a step harm passes, and where it dies, of a sample of its experiments.

Each experiment of the sample is mapped as an injection file is, for a few steps.  All of them share one compiled step.
"""

import collections
import pathlib
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from ...campaign.rates import Rate, wilson
from ...faults.injection import Injection
from ...machine.errors import InputError
from ...runs.fault_map import BACKWARD, FORWARD, FaultMap, mapped, told_by
from ...runs.golden_run import Golden
from ...runs.replay_run import golden_for
from ...seam.program import Program
from ...seam.stages import BESIDE
from ..outcomes.answer import injections_of
from ..outcomes.store import Store

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


class MappedExperiment(NamedTuple):
    """One experiment of the sample.

    Attributes:
      number: in the campaign.
      outcome: that the campaign found.
      found: its map.
    """

    number: int
    outcome: str
    found: FaultMap

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
        results = found.of_kind(FORWARD, BACKWARD)
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
    def last(self) -> str:
        """The last result of the step struck that differs; empty where none does."""
        results = [place for place in self.found.of_kind(FORWARD, BACKWARD) if self.reached[place]]
        return self.found.rows[results[-1]].name if results else ""


def sampled(folder: pathlib.Path, count: int, seed: int) -> tuple[list[tuple[int, str]], int]:
    """Numbers and outcomes of experiments that are done, each as likely as any other; and how many are done.

    Raises:
      InputError: there is no campaign, none of its experiments is done, or its faults are not all injections, or not
        equally likely.
    """
    with Store(folder) as store:
        plan = store.plan()
        done = [(int(row["number"]), str(row["outcome"])) for row in store.query("SELECT * FROM experiments")]
    if plan is None or not done:
        raise InputError("no experiment of the campaign is done; run it first", folder)
    if plan.restarts:
        raise InputError("its runs restart from altered checkpoints; a map is of faults that strike a run", folder)
    if plan.wanted is not None:
        raise InputError("it draws by strata, so a plain sample would be of no fault that it asks for", folder)
    done.sort()
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
    folder: pathlib.Path, sample: Sequence[tuple[int, str]], steps: int, cache: Any = None, data_dir: Any = None
) -> Iterator[MappedExperiment]:
    """The map of each experiment of a sample."""
    injections = injections_of(folder, [number for number, _ in sample])
    golden, telling = programs_of(injections, cache, data_dir)
    for (number, outcome), injection in zip(sample, injections, strict=True):
        yield MappedExperiment(number, outcome, mapped(injection, golden, telling, steps))


def fates(sample: Sequence[MappedExperiment]) -> dict[str, Rate]:
    """How many experiments came how far in the step struck, with 95 % intervals."""
    counts = collections.Counter(one.fate for one in sample)
    return {fate: wilson(counts[fate], len(sample)) for fate in FATES}


def groups(sample: Sequence[MappedExperiment], by: str) -> dict[str, list[MappedExperiment]]:
    """The experiments by their `outcome`, `site` or `fate`, the most frequent first."""
    found: dict[str, list[MappedExperiment]] = collections.defaultdict(list)
    for one in sample:
        found[getattr(one, by)].append(one)
    return dict(sorted(found.items(), key=lambda pair: (-len(pair[1]), pair[0])))


def passing(sample: Sequence[MappedExperiment], step: int) -> dict[str, list[tuple[int, float]]]:
    """Of each tensor, in each outcome's experiments: how many of them it differs in, and its mean share of elements.

    Args:
      step: after the one struck; of a run that ended before, its last step counts.
    """
    found: dict[str, list[tuple[int, float]]] = {}
    for place, row in enumerate(sample[0].found.rows):
        found[row.name] = []
        for each in groups(sample, "outcome").values():
            shares = [one.found.share[place, min(step, len(one.found.steps) - 1)] for one in each]
            found[row.name].append((sum(share > 0 for share in shares), float(np.mean(shares))))
    return found
