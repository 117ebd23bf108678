"""`replay`: every n-th step is executed again, and the digests of the two states are compared.

Reference: deterministic re-execution as in TorchTitan's replay detector and TPU's SDC checker (docs/detection.md).
"""

import dataclasses
import math
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from ..runs.steps import Address
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
    """

    every: int = 10

    signals: ClassVar[tuple[str, ...]] = ()
    remembers = False
    executes_again = True


class ReExecution(Watcher):
    """Executes every n-th step again, and raises an alarm where the digests differ.

    The second execution has no fault: what struck the first was transient, or it was another device.

    Args:
      again: the program that executes the second time, such as one on another device; by default the same.
    """

    detector: ReExecutionSettings

    def __init__(self, *watcher: Any, again: Program | None = None, **named: Any) -> None:
        super().__init__(*watcher, **named)
        self._again = again or self.program

    def look(self, at: Address, state: State, report: StepReport) -> tuple[list[Alarm], float]:
        number, every = self.number(at), self.detector.every
        found: list[Alarm] = []
        if (number + 1) % every == 0 and self._kept is not None:
            again = self._again
            start = self._kept if again is self.program else again.place(jax.device_get(self._kept))
            _, second = again.step(start, again.batch(*at), *at)
            differ = np.flatnonzero(report.digest != jax.device_get(second.digest)).tolist()
            found = differing(number, [self.program.state.leaves[i].name for i in differ])
        self._kept = jax.tree.map(jnp.copy, state) if (number + 2) % every == 0 else None
        return found, math.inf if found else 0.0
