"""What a golden run has to be, so that a faulty one can be compared with it."""

from collections.abc import Callable

import numpy as np

from ..machine.errors import InputError
from ..seam.leaves import State
from ..seam.measure import Evaluation, Measure
from ..seam.report import StepReport
from .records import Epoch
from .steps import Address, Observer

FIRST = Address(0, 0)
ROUNDING = 1e-6  # by which a mean may exceed the largest possible value


class Comparable(Observer):
    """Refuses a golden run that faulty ones cannot be compared with.

    Its loss or metric is not finite, its test metric lies outside of its own limits, or its second step leaves the
    state as it is: no fault would do harm there.  It raises InputError.

    Args:
      run: how messages call the run, such as `golden run`.
      measure: what the metric is.
    """

    def __init__(self, run: str, measure: Measure):
        self._run, self._measure = run, measure
        self._first: np.ndarray | None = None  # the digest of the state after the first step

    def after_step(self, at: Address, state: State, report: StepReport) -> None:
        self._check(Evaluation(report.loss, report.metric), "", f"at epoch {at.epoch}, step {at.step}")
        if at == FIRST:
            self._first = np.asarray(report.digest)
        elif self._first is not None:
            self._check_moves(self._first, np.asarray(report.digest), at)
            self._first = None

    def after_epoch(self, epoch: int, state: State, evaluate: Callable[[], Evaluation]) -> None:
        self._ended(epoch, evaluate())

    def recorded(self, epoch: int, record: Epoch) -> None:
        """The same of an epoch that has been made, perhaps by a version that refused nothing."""
        for step, told in enumerate(zip(record["loss"], record["metric"], strict=True)):
            self._check(Evaluation(*told), "", f"at epoch {epoch}, step {step}")
        if epoch == FIRST.epoch and len(record["digest"]) > 1:
            before, after = record["digest"][:2]
            self._check_moves(before, after, Address(epoch, 1))
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

    def _check_moves(self, before: np.ndarray, after: np.ndarray, at: Address) -> None:
        if np.array_equal(before, after):
            raise InputError(
                f"the {self._run}'s step leaves the whole state as it was at epoch {at.epoch}, step {at.step}: a step "
                "returns what it changes (a module of Flax NNX that is changed under jax.jit stays as it was: nnx.jit)"
            )

    def _check(self, told: Evaluation, part: str, when: str) -> None:
        for name, value in zip(("loss", self._measure.name), map(float, told), strict=True):
            if not np.isfinite(value):
                raise InputError(f"the {self._run}'s own {part}{name} is {value:g} {when}")
