"""`replay`: every n-th step is executed again, and the digests of the two states are compared.

Reference: deterministic re-execution as in TorchTitan's replay detector and TPU's SDC checker (docs/detection.md).
"""

import dataclasses
import math
from typing import Any, ClassVar

import jax
import numpy as np

from ..runs.steps import Address, Again
from ..seam.leaves import State
from ..seam.program import Program
from ..seam.report import StepReport
from .detector import Alarm, AnyDetector, differing
from .watch import Watcher


@dataclasses.dataclass(frozen=True)
class ReExecutionSettings(AnyDetector):
    """Settings of the detector.

    Attributes:
      every: n; steps are counted over all epochs, and number n − 1 is the first that is checked.
      after_load: how many of the first steps are checked, whatever their numbers, where a run begins, loads a
        checkpoint, or goes on after a recovery.
    """

    every: int = 10
    after_load: int = 0

    signals: ClassVar[tuple[str, ...]] = ()
    remembers = False
    executes_again = True


class ReExecution(Watcher):
    """Executes every n-th step again, and raises an alarm where the digests differ.

    The second execution has what lasts of a fault, so that a permanent one strikes both alike and is not seen.

    Args:
      again: a program that executes the second time, without a fault, such as one on another device.
    """

    detector: ReExecutionSettings

    def __init__(self, *watcher: Any, again: Program | None = None, **named: Any) -> None:
        super().__init__(*watcher, **named)
        self._other = again
        self._began = 0  # number of the first step after a load

    def starts(self, at: Address, state: State, again: Again) -> None:
        self._began = self.number(at)
        super().starts(at, state, again)

    def due(self, number: int) -> bool:
        after_load = 0 <= number - self._began < self.detector.after_load
        return after_load or (number + 1) % self.detector.every == 0

    def look(self, at: Address, state: State, report: StepReport) -> tuple[list[Alarm], float]:
        number = self.number(at)
        if not self.due(number):
            return [], 0.0
        second = self._again(at, self._kept) if self._other is None else self._elsewhere(self._other, at)
        differ = np.flatnonzero(report.digest != second.digest).tolist()
        found = differing(number, [self.program.state.leaves[i].name for i in differ])
        return found, math.inf if found else 0.0

    def _elsewhere(self, other: Program, at: Address) -> StepReport:
        """What another program says of the step."""
        start = other.place(jax.device_get(self._kept))
        report: StepReport = jax.device_get(other.step(start, other.batch(*at), *at)[1])
        return report
