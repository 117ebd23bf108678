"""Looks at a faulty run's first steps, and ends it where its conditions say that it need not be followed."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from ...runs.golden_run import Golden
from ...runs.records import Epoch, Run
from ...runs.steps import Address, Observer
from ...seam.leaves import Role, State
from ...seam.report import StepReport
from .conditions import CONDITIONS, Conditions, Rule, Seen


class Envelope:
    """The golden run's largest values around one epoch.

    Args:
      golden: the run.
      epochs: how many of it are looked at, at most.
      epoch: that of the fault.
    """

    def __init__(self, golden: Golden, epochs: int, epoch: int, conditions: Conditions):
        program = golden.program
        self._moments = [program.state.positions(Role.HISTORY, moment) for moment in program.state.moments] or [
            program.state.positions(Role.GRADIENT)
        ]
        self._variance = program.state.positions(Role.VARIANCE)
        self._parameters = program.state.positions(Role.PARAMETER)
        first = max(golden.first, epoch - conditions.neighbours)
        last = min(epochs, epoch + conditions.neighbours + 1)
        largest = np.max([golden.fetch_record(e)["magnitude"].max(axis=0) for e in range(first, last)], axis=0)
        for arrays in (*self._moments, self._variance, self._parameters):
            if arrays:
                largest[arrays] = np.maximum(largest[arrays], conditions.floor * largest[arrays].max())
        self._largest = largest

    def after(self, seen: Seen, report: StepReport, golden_loss: float, faulty: bool) -> Seen:
        """What has been seen after one more step; the faulty step's own loss is not judged."""
        value = np.asarray(report.magnitude, np.float64)  # a quotient of two float32 may exceed the largest
        outside = np.where(value > 0, np.inf, 0)  # where the golden run has nothing but zeros
        ratio = np.divide(value, self._largest, out=outside, where=self._largest > 0)
        history = _worst([_worst(ratio[arrays]) for arrays in self._moments])
        variance = _worst(ratio[self._variance])
        gap = 0.0 if faulty else abs(float(report.loss) - golden_loss)
        return Seen(
            history=_worst((seen.history, history)),
            variance=_worst((seen.variance, variance)),
            loss_gap=_worst((seen.loss_gap, gap)),
            parameters=_worst((seen.parameters, _worst(ratio[self._parameters]))),
            finite=seen.finite and bool(np.isfinite(value).all()),
        )


class Early(NamedTuple):
    """An early verdict.

    Attributes:
      rule: by which the run need not be followed.
      after: how many steps after the faulty one.
      run: what it comes to: as far as it was recorded, or projected as far as the golden run goes.
      first_nonfinite: steps after the faulty one, or None.
    """

    rule: Rule
    after: int
    run: Run
    first_nonfinite: int | None


class EarlyVerdict(Observer):
    """Looks at the faulty step and the ones right after it, and ends a run that need not be followed.

    Attributes:
      seen: what those steps have shown, up to the verdict.
      given: the verdict, None while there is none.

    Args:
      since: number of steps from the fault to an address.
      record: the golden record of an epoch.
      reached: what a run comes to by a rule, and when it is not finite; None where the rule gives no verdict.
      ends: whether the run ends there, or goes on to its end all the same.
      of_statistics: whether the fault struck running statistics.
    """

    def __init__(
        self,
        envelope: Envelope,
        conditions: Conditions,
        since: Callable[[Address], int],
        record: Callable[[int], Epoch],
        reached: Callable[[Rule], tuple[Run, int | None] | None],
        ends: Callable[[Rule, Seen], bool],
        of_statistics: bool = False,
    ):
        self._of_statistics = of_statistics
        self._envelope, self._conditions, self._since, self._record = envelope, conditions, since, record
        self._reached, self._ends = reached, ends
        self.seen = Seen()
        self.given: Early | None = None

    def after_step(self, at: Address, state: State, report: StepReport) -> str | None:
        steps = self._since(at)
        if self.given is not None or steps > self._conditions.steps:
            return None
        golden_loss = float(self._record(at.epoch)["loss"][at.step])
        self.seen = self._envelope.after(self.seen, report, golden_loss, faulty=steps == 0)
        rule = self._conditions.rule(steps, self.seen, self._of_statistics)
        if rule is None or (reached := self._reached(rule)) is None:
            return None
        self.given = Early(rule, steps, *reached)
        return CONDITIONS if self._ends(rule, self.seen) else None


def _worst(values: object) -> float:
    """The largest, not a number being larger than any; 0 of none."""
    return float(np.max(np.asarray(values, np.float64), initial=0.0))
