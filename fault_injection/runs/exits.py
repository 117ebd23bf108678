"""Observers that end a run: non-finite values, and a state that is the golden one again."""

from collections.abc import Callable

import numpy as np

from ..seam.leaves import State
from ..seam.measure import Evaluation
from ..seam.report import StepReport, finite
from ..seam.trees import same_bits
from .records import Epoch
from .steps import Address, Observer

NONFINITE, EXACT = "non-finite", "exact"  # reasons to end a run


class FirstNonFinite(Observer):
    """Ends a run at its first non-finite value: a training or test loss or, by the rule `state`, anything.

    Which array of the state was the first, `verdict_of` finds in the record, whatever the rule.

    Attributes:
      first: number of steps from the fault to it; None while there was none.

    Args:
      since: number of steps from the fault to an address.
      rule: one of `NONFINITE_RULES`: whether gradients and the state's leaves are looked at too.
    """

    def __init__(self, since: Callable[[Address], int], rule: str):
        self._since, self._rule = since, rule
        self._last = 0
        self.first: int | None = None

    def after_step(self, at: Address, state: State, report: StepReport) -> str | None:
        self._last = self._since(at)
        if not finite(report, self._rule):
            self.first = self._last
            return NONFINITE
        return None

    def after_epoch(self, epoch: int, state: State, evaluate: Callable[[], Evaluation]) -> str | None:
        if not np.isfinite(evaluate().loss):
            self.first = self._last + 1  # the test sees what the next step would have seen
            return NONFINITE
        return None


class ExactlyMasked(Observer):
    """Ends a run whose state is bit-identical to the golden one: nothing can differ from there on.

    Attributes:
      after: number of steps from the fault to the first such state; None while there was none.

    Args:
      since: number of steps from the fault to an address.
      record: the golden record of an epoch, whose digests suggest that a state is the golden one.
      golden: the golden state after an address, which confirms it on every bit.
      ends: whether to end the run there, or only to note it.
      last_strike: number of steps from the fault to the last step that it can strike.  Before
        that step a state that is the golden one again does not stay so.
    """

    def __init__(
        self,
        since: Callable[[Address], int],
        record: Callable[[int], Epoch],
        golden: Callable[[Address], State],
        ends: bool = True,
        last_strike: int = 0,
    ):
        self._since, self._record, self._golden, self._ends = since, record, golden, ends
        self._last_strike = last_strike
        self.after: int | None = None

    def after_step(self, at: Address, state: State, report: StepReport) -> str | None:
        if self._since(at) < self._last_strike:
            return None
        if self.after is not None or (report.digest != self._record(at.epoch)["digest"][at.step]).any():
            return None
        if same_bits(state, self._golden(at)):
            self.after = self._since(at)
            return EXACT if self._ends else None
        return None
