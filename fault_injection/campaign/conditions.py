"""The early verdict: what a run must show within two steps of the fault for a bad outcome to follow later.

**Second-hand** [He 2023]: a bad outcome that does not show at once needs, within two steps of the
fault, large values in the optimizer's gradient history or a large running variance.  What "large"
means is **ours**: larger than the golden run's around that step.  An optimizer without history has
the gradients themselves looked at, because its update is a multiple of them.
"""

import dataclasses
from collections.abc import Callable

import numpy as np

from ..runs.follow import Address, Observer
from ..runs.golden_run import Golden
from ..runs.records import Epoch
from ..training.program import Role, State, StepReport

CONDITIONS = "conditions"  # the reason to end a run early


@dataclasses.dataclass(frozen=True)
class Conditions:
    """Every number that the early verdict depends on.

    Attributes:
      steps: how many after the faulty one are looked at, besides the faulty one.
      margin: a value is large if it exceeds this many times the golden run's largest of its array.
      floor: an array whose largest golden value is below this share of the largest of all arrays
        of the same moment counts as if it had that share: the gradients of a bias before a batch
        norm are rounding errors, and vary by themselves.
      neighbours: the golden run's largest is that of the fault's epoch and of this many before and after.
      loss: a loss agrees if it differs from the golden run's of that step by at most this much.
    """

    steps: int = 2
    margin: float = 2.0
    floor: float = 0.01
    neighbours: int = 1
    loss: float = 0.05


@dataclasses.dataclass(frozen=True)
class Seen:
    """What the steps since the fault have shown, each the largest so far.

    Attributes:
      history: largest value of the optimizer's history, in units of the golden run's largest.
      variance: the same of running variances; 0 where there are none.
      loss_gap: difference to the golden run's loss, of the steps after the faulty one.
    """

    history: float = 0.0
    variance: float = 0.0
    loss_gap: float = 0.0

    def hold(self, conditions: Conditions) -> bool:
        """Whether nothing left the golden run's envelope; what is not a number has left it."""
        inside = _worst([self.history, self.variance]) <= conditions.margin
        return bool(inside and self.loss_gap <= conditions.loss)


class Envelope:
    """The golden run's largest values around one epoch.

    Args:
      golden: the run.
      epochs: how many of it are looked at, at most.
      epoch: that of the fault.
    """

    def __init__(self, golden: Golden, epochs: int, epoch: int, conditions: Conditions):
        program = golden.program
        self._moments = [program.positions(Role.HISTORY, moment) for moment in program.moments] or [
            program.positions(Role.GRADIENT)
        ]
        self._variance = program.positions(Role.VARIANCE)
        first = max(golden.first, epoch - conditions.neighbours)
        last = min(epochs, epoch + conditions.neighbours + 1)
        largest = np.max([golden.fetch_record(e)["magnitude"].max(axis=0) for e in range(first, last)], axis=0)
        for arrays in (*self._moments, self._variance):
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
        return Seen(*map(_worst, ((seen.history, history), (seen.variance, variance), (seen.loss_gap, gap))))


class WithinEnvelope(Observer):
    """Looks at the faulty step and the ones right after it; ends a run that has stayed in the envelope.

    Attributes:
      seen: what those steps have shown so far.
      after: steps after the faulty one until the conditions held; None while they have not.

    Args:
      since: number of steps from the fault to an address.
      record: the golden record of an epoch.
      ends: whether to end the run there, or only to note it.
    """

    def __init__(
        self,
        envelope: Envelope,
        conditions: Conditions,
        since: Callable[[Address], int],
        record: Callable[[int], Epoch],
        ends: bool,
    ):
        self._envelope, self._conditions, self._since, self._record = envelope, conditions, since, record
        self._ends = ends
        self.seen = Seen()
        self.after: int | None = None

    def after_step(self, at: Address, state: State, report: StepReport) -> str | None:
        """End the run if it has stayed in the envelope for as long as the conditions ask."""
        steps = self._since(at)
        if steps <= self._conditions.steps:
            golden_loss = float(self._record(at.epoch)["loss"][at.step])
            self.seen = self._envelope.after(self.seen, report, golden_loss, faulty=steps == 0)
        if steps == self._conditions.steps and self.seen.hold(self._conditions):
            self.after = steps
            return CONDITIONS if self._ends else None
        return None


def _worst(values: object) -> float:
    """The largest, not a number being larger than any; 0 of none."""
    return float(np.max(np.asarray(values, np.float64), initial=0.0))
