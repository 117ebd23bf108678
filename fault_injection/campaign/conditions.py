"""The early verdict: what a run must show within two steps of the fault for a bad outcome to follow later.

**Second-hand** [He 2023]: a bad outcome that does not show at once needs, within two steps of the
fault, large values in the optimizer's gradient history or a large running variance.  What "large"
means is **ours**: larger than the golden run's around that step.  An optimizer without history has
the gradients themselves looked at, of which its update is a multiple.
"""

import dataclasses

import numpy as np

from ..runs.golden_run import Golden
from ..runs.replay_run import WATCHED_STEPS
from ..training.explicit import StepReport
from ..training.session import Names


@dataclasses.dataclass(frozen=True)
class Conditions:
    """Every number that the early verdict depends on.

    Attributes:
      steps: how many after the faulty one are looked at, and the faulty one.
      margin: a value is large that exceeds so many times the golden run's largest of its array.
      floor: of arrays whose largest golden value is below this share of the largest of all arrays
        of the same moment, that share is what counts: the gradients of a bias before a batch norm
        are rounding errors, and vary by themselves.
      neighbours: the golden run's largest is that of the fault's epoch and so many before and after.
      loss: a loss agrees that differs from the golden run's of that step by at most so much.
    """

    steps: int = WATCHED_STEPS
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
        names: Names = golden.session.names
        self.moments = list(names.history.values()) or [
            [i for i, name in enumerate(names.magnitude) if name.startswith("gradients/")]
        ]
        self.variance = names.running_variance
        first = max(golden.first, epoch - conditions.neighbours)
        last = min(epochs, epoch + conditions.neighbours + 1)
        largest = np.max([golden.record(e)["magnitude"].max(axis=0) for e in range(first, last)], axis=0)
        for leaves in (*self.moments, self.variance):
            if leaves:
                largest[leaves] = np.maximum(largest[leaves], conditions.floor * largest[leaves].max())
        self.largest = largest

    def after(self, seen: Seen, report: StepReport, golden_loss: float, faulty: bool) -> Seen:
        """What has been seen after one more step; the faulty step's own loss is not judged."""
        value = np.asarray(report.magnitude, np.float64)  # a quotient of two float32 may exceed the largest
        outside = np.where(value > 0, np.inf, 0)  # where the golden run has nothing but zeros
        ratio = np.divide(value, self.largest, out=outside, where=self.largest > 0)
        history = max(_worst(ratio[leaves]) for leaves in self.moments)
        variance = _worst(ratio[self.variance])
        gap = 0.0 if faulty else abs(float(report.loss) - golden_loss)
        return Seen(*map(_worst, ((seen.history, history), (seen.variance, variance), (seen.loss_gap, gap))))


def _worst(values) -> float:
    """The largest, not a number being larger than any; 0 of none."""
    return float(np.max(np.asarray(values, np.float64), initial=0.0))
