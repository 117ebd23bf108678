"""What a golden run has to be, so that a faulty one can be compared with it."""

from collections.abc import Callable

import numpy as np

from ..machine.errors import InputError
from ..seam.leaves import State
from ..seam.measure import Evaluation, Measure
from ..seam.report import StepReport
from .records import Epoch
from .steps import Address, Observer

ROUNDING = 1e-6  # by which a mean may exceed the largest possible value


class Comparable(Observer):
    """Refuses a golden run whose loss or metric is not finite, or whose test metric lies outside of its own limits.

    It raises InputError.

    Args:
      run: how messages call the run, such as `golden run`.
      measure: what the metric is.
    """

    def __init__(self, run: str, measure: Measure):
        self._run, self._measure = run, measure

    def after_step(self, at: Address, state: State, report: StepReport) -> None:
        self._check(Evaluation(report.loss, report.metric), "", f"at epoch {at.epoch}, step {at.step}")

    def after_epoch(self, epoch: int, state: State, evaluate: Callable[[], Evaluation]) -> None:
        self._ended(epoch, evaluate())

    def recorded(self, epoch: int, record: Epoch) -> None:
        """The same of an epoch that has been made, perhaps by a version that refused nothing."""
        for step, told in enumerate(zip(record["loss"], record["metric"], strict=True)):
            self._check(Evaluation(*told), "", f"at epoch {epoch}, step {step}")
        self._ended(epoch, Evaluation(float(record["valid_loss"]), float(record["valid_metric"])))

    def _ended(self, epoch: int, told: Evaluation) -> None:
        self._check(told, "test ", f"after epoch {epoch}")
        if self._measure.limits is not None:
            low, high = self._measure.limits
            if not low - ROUNDING <= told.metric <= high + ROUNDING:
                raise InputError(
                    f"the {self._run}'s own test {self._measure.name} is {told.metric:g} after epoch {epoch}; "
                    f"the metric's limits are {low:g} and {high:g}"
                )

    def _check(self, told: Evaluation, part: str, when: str) -> None:
        for name, value in zip(("loss", self._measure.name), map(float, told), strict=True):
            if not np.isfinite(value):
                raise InputError(f"the {self._run}'s own {part}{name} is {value:g} {when}")
