"""The numbers of a scoreboard: what was seen, beside what came of it."""

import dataclasses
import functools
import pathlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from ...campaign.rates import Rate, wilson
from ...detection.localization import NOTHING, Target
from ...machine.errors import InputError, Untrustworthy
from ...runs.outcome import DIVERGED, LATENT, MASKED, UNDECIDED
from ...runs.steps import Address
from ..outcomes.report.facts import decode
from ..outcomes.report.queries import GUESSED, VERDICT
from ..outcomes.store import Store
from .store import ALARMS, EXPERIMENT, ScoreStore
from .tasks import SWEPT, watched_steps

MILLION = 1_000_000
VERDICTS = (
    f"SELECT number, epoch, step, worker, site, {VERDICT} AS outcome, model, old_bits, new_bits, history_excess, "
    "variance_excess, exit, audit_outcome, first_nonfinite, exactly_masked_after, steps + audit_steps AS recorded, "
    f"curve, {GUESSED} AS guessed FROM experiments"
)


@dataclasses.dataclass(frozen=True)
class ScoredExperiment:
    """One experiment: its outcome, and what detectors saw.

    Attributes:
      number, model, outcome: of the experiment.
      large: whether it met the necessary condition of a latent outcome: history or running variance
        beyond twice the golden run's largest.
      found: see `tasks.watched`.
      target: what was struck.
    """

    number: int
    model: str
    outcome: str
    large: bool
    found: Mapping[str, Any]
    target: Target = NOTHING

    def tensor(self, detector: str) -> str | None:
        """The tensor that its first alarm names; None without one."""
        name: str | None = self.found["seen"][detector]["tensor"]
        return name

    def stop(self, detector: str) -> int | None:
        """Steps from the fault to the first alarm that stops; None without one."""
        after: int | None = self.found["seen"][detector]["stop"]
        return after


@dataclasses.dataclass(frozen=True)
class Board:
    """A scoreboard.

    Attributes:
      title: of the workload.
      details: how large it is.
      detectors: their names.
      seen: experiments that are not undecided.
      undecided: how many of the campaign's are, which nobody watches.
      fault_free: what detectors said of fault-free runs, by run.
      cost: what they cost, see `tasks.detector_costs`; empty where that was not measured.
      window: steps that were watched after the fault, at most.
      confidence: of intervals.
      guesses: how many of the experiments seen have an early verdict that nobody followed to the end.
      cannot_watch: which detectors are left out, and why.
    """

    title: str
    details: str
    detectors: tuple[str, ...]
    seen: Sequence[ScoredExperiment]
    undecided: int
    fault_free: Mapping[str, Mapping[str, Any]]
    cost: Mapping[str, Any]
    window: int
    confidence: float
    guesses: int = 0
    cannot_watch: Sequence[tuple[str, str]] = ()

    def of(self, outcomes: Iterable[str]) -> list[ScoredExperiment]:
        """The experiments with one of these outcomes."""
        wanted = set(outcomes)
        return [one for one in self.seen if one.outcome in wanted]

    def detected(self, detector: str, experiments: Sequence[ScoredExperiment]) -> Rate:
        """The share of experiments in which it raised an alarm that stops."""
        return wilson(sum(one.stop(detector) is not None for one in experiments), len(experiments), self.confidence)

    def latencies(self, detector: str, experiments: Sequence[ScoredExperiment]) -> list[int]:
        """Steps from the fault to the alarm, sorted, of those detected."""
        return sorted(after for one in experiments if (after := one.stop(detector)) is not None)

    @functools.cached_property
    def fault_free_steps(self) -> int:
        """Steps of all fault-free runs."""
        return max((sum(run[d]["steps"] for run in self.fault_free.values()) for d in self.detectors), default=0)

    def false_alarms(self, detector: str) -> Rate:
        """The share of fault-free steps with an alarm that stops."""
        runs = self.fault_free.values()
        return wilson(sum(run[detector]["stop"] for run in runs), sum(run[detector]["steps"] for run in runs), 0.95)

    def swept(self, detector: str, experiments: Sequence[ScoredExperiment]) -> tuple[np.ndarray, np.ndarray]:
        """Share of fault-free steps with an alarm, and share of experiments detected, by threshold.

        Both in the order of `SWEPT`, numbers by which the detector's own threshold is multiplied.
        """
        runs = self.fault_free.values()
        steps = max(1, sum(run[detector]["steps"] for run in runs))
        false = np.sum([run[detector]["beyond"] for run in runs], axis=0) / steps
        peaks = [max(map(float, one.found["seen"][detector]["peaks"]), default=0.0) for one in experiments]
        caught = np.array([np.mean([peak > x for peak in peaks]) if peaks else 0.0 for x in SWEPT])
        return false, caught

    def slower(self, detector: str) -> tuple[float, float, float] | None:
        """By how much a watched step is slower, a fraction: median and 95 % interval of its rounds."""
        if detector not in self.cost:
            return None
        ratios = np.sort(self.cost[detector]["ratios"]) - 1
        n = len(ratios)
        low = max(0, int(np.floor(n / 2 - 0.98 * np.sqrt(n))) - 1)  # order statistics
        return float(np.median(ratios)), float(ratios[low]), float(ratios[n - 1 - low])

    def larger(self, detector: str) -> float | None:
        """By how much a watched step needs more memory, a fraction."""
        known = self.cost.get(detector)
        if known is None or known["bytes"] is None or known["plain_bytes"] is None:
            return None
        return float((known["bytes"] + known["memory"] - known["plain_bytes"]) / known["plain_bytes"])

    def recovered(self, recovery: str, detector: str) -> list[tuple[ScoredExperiment, Mapping[str, Any]]]:
        """The runs with a known end in which the recovery acted on the detector's alarms."""
        each = [(one, one.found["recovered"].get(recovery, {}).get(detector)) for one in self.seen]
        return [(one, run) for one, run in each if run and run["actions"] and run["outcome"] != UNDECIDED]

    def not_recovered(self, recovery: str, detector: str) -> int:
        """How many runs with a recovery say nothing of it: it did not act before they ended, or their end is open."""
        runs = [one.found["recovered"].get(recovery, {}).get(detector) for one in self.seen]
        return sum(run is not None for run in runs) - len(self.recovered(recovery, detector))

    @property
    def recoveries(self) -> list[str]:
        """Names of the recoveries that have run."""
        return list(dict.fromkeys(name for one in self.seen for name, runs in one.found["recovered"].items() if runs))

    def as_dict(self) -> dict[str, Any]:
        """For machines to read."""
        rows = {}
        for detector in self.detectors:
            false = self.false_alarms(detector)
            rows[detector] = {
                **{
                    name: self.detected(detector, self.of(outcomes))._asdict()
                    for name, outcomes in (("latent", LATENT), ("nonfinite", DIVERGED), ("masked", (MASKED,)))
                },
                "latency": self.latencies(detector, self.of((*LATENT, *DIVERGED))),
                "false_alarms": false.found,
                "fault_free_steps": false.total,
                "slower": self.slower(detector),
                "memory": self.larger(detector),
            }
        known = {"experiments": len(self.seen), "undecided": self.undecided, "guesses": self.guesses}
        return {**known, "cannot_watch": dict(self.cannot_watch), "detectors": rows}


def read_board(folder: pathlib.Path) -> Board:
    """The scoreboard of a folder.

    Raises:
      InputError: there is none, or nothing was watched yet.
      Untrustworthy: what was watched is not what was judged.
    """
    with Store(folder) as campaign, ScoreStore(folder) as store:
        plan, settings = campaign.plan(), store.get("about", "settings")
        if plan is None or settings is None:
            raise InputError("the scoreboard has not begun", folder)
        verdicts = {row["number"]: row for row in campaign.query(VERDICTS)}
        found = {int(name): value for name, value in store.all(EXPERIMENT)}
        fault_free = dict(store.all("fault_free"))
        cost = store.get("cost", "all") or {}
        left_out = [*settings.get("cannot_watch", ()), *_enter(dict(store.all(ALARMS)), found, fault_free)]
    margin, window = 2.0, int(settings["window"])
    seen = []
    for number, value in sorted(found.items()):
        row = verdicts.get(number)
        if row is None:
            continue
        require_same(number, value, row, watched_steps(plan, window, Address(row["epoch"], row["step"])))
        large = not (row["history_excess"] <= margin and row["variance_excess"] <= margin)  # NaN is large
        struck = Target(row["site"], plan.targets[row["site"]].layer, row["worker"])
        seen.append(ScoredExperiment(number, row["model"], row["outcome"], large, value, struck))
    decided = [one for one in seen if one.outcome != UNDECIDED]
    watched = [one.found["seen"] for one in decided] + list(fault_free.values())
    if not watched:
        raise InputError("nothing was watched yet", folder)
    detectors = tuple(watched[0])
    return Board(
        plan.workload.title,
        plan.workload.details,
        detectors,
        decided,
        sum(row["outcome"] == UNDECIDED for row in verdicts.values()),
        fault_free,
        cost,
        window,
        plan.confidence,
        sum(verdicts[one.number]["guessed"] for one in decided),
        left_out,
    )


def _enter(
    entered: Mapping[str, Any], found: Mapping[int, Any], fault_free: Mapping[str, Any]
) -> Iterable[tuple[str, str]]:
    """Put what detectors of other frameworks said beside what was seen of each run; returns those left out, and why."""
    for name, said in entered.items():
        runs = len(found.keys() - {int(number) for number in said["experiments"]})
        runs += len(fault_free.keys() - said["fault_free"].keys())
        if runs:
            yield name, f"{runs} run(s) that were added after its alarms were read: export the logs again"
            continue
        for number, value in found.items():
            value["seen"][name] = said["experiments"][str(number)]
        for run, value in fault_free.items():
            value[name] = said["fault_free"][run]


def require_same(number: int, value: Mapping[str, Any], row: Any, whole: int) -> None:
    """See that what was watched is the run that was judged: the same bits struck, the same losses, bit by bit.

    Args:
      number: of the experiment.
      value: what `tasks.watched` found.
      row: one of `VERDICTS`.
      whole: see `watched_steps`.

    Raises:
      Untrustworthy: it is not.
    """
    judged = decode(row["curve"], row["recorded"])[:, 0]
    watched = np.array([float(x) for x in value["loss"]], np.float32)
    steps = min(len(judged), len(watched))
    bits = (value["old"], value["new"]) == (row["old_bits"], row["new_bits"])
    alike = np.array_equal(judged[:steps], watched[:steps], equal_nan=True)
    if not (bits and alike and _as_long(len(watched), whole, row)):
        what = f"experiment {number}: what the detectors watched is not the run that was judged"
        raise Untrustworthy(f"{what}; made by other code or on another machine? Choose another --out")


def _as_long(watched: int, whole: int, row: Any) -> bool:
    """Whether a run was watched for as many steps as one with this verdict is.

    Both end where they are exactly masked.  The judged run alone ends at a value that is not finite, and at an early
    verdict or a settled state that is not followed; after it, the watched run may be exactly masked at any step.
    """
    judged, masked = row["recorded"], row["exactly_masked_after"]
    if masked is not None:
        return bool(watched == min(masked + 1, whole) <= judged)
    nonfinite = row["first_nonfinite"] is not None
    if judged < whole and (nonfinite or row["guessed"]):
        return bool(judged + (not nonfinite) <= watched <= whole)
    return bool(watched == whole <= judged)
