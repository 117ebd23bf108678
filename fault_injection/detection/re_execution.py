"""Steps executed again: `replay`, and alarms that are confirmed so.

`replay`: every n-th step is executed again, and the digests of the two states are
compared.

Reference: deterministic re-execution as in TorchTitan's replay detector and TPU's SDC checker (docs/detection.md).
"""

import dataclasses
import math
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from ..runs.steps import Address, Back
from ..seam.leaves import State
from ..seam.program import Program
from ..seam.report import StepReport
from .checksum import confirmed
from .detector import STOP, Alarm, Detector, Memory
from .watch import Watch, Watcher


@dataclasses.dataclass(frozen=True)
class ReExecutionSettings:
    """Settings of the detector.

    Attributes:
      every: n; steps are counted over all epochs, and number n − 1 is the first that is checked.
    """

    every: int = 10

    signals: ClassVar[tuple[str, ...]] = ()


class ReExecution(Watcher):
    """Executes every n-th step again, and raises an alarm where the digests differ.

    The second execution has no fault: what struck the first was transient, or it was another device.

    Args:
      again: the program that executes the second time, such as one on another device; by default the same.
    """

    def __init__(
        self,
        program: Program,
        settings: ReExecutionSettings,
        memory: Memory = None,
        recovery: Back | None = None,
        again: Program | None = None,
    ) -> None:
        super().__init__(program, memory, recovery)
        self._settings, self._again = settings, again or program

    def look(self, at: Address, state: State, report: StepReport) -> tuple[list[Alarm], float]:
        """Compare the step, if it is one of those; keep the state if the next one is."""
        number, every = self.number(at), self._settings.every
        found: list[Alarm] = []
        kept = self.memory
        if (number + 1) % every == 0 and kept is not None:
            again = self._again
            start = again.place(jax.device_get(kept)) if again is not self.program else kept
            _, second = again.step(jax.tree.map(jnp.copy, start), again.batch(*at), *at)
            differing = np.flatnonzero(report.digest != jax.device_get(second.digest)).tolist()
            found = [
                Alarm(number, self.program.state.leaves[i].name, float(report.digest[i]), STOP, float(second.digest[i]))
                for i in differing
            ]
        self.memory = jax.tree.map(jnp.copy, state) if (number + 2) % every == 0 else None
        return found, math.inf if found else 0.0


class Confirmed(Watch):
    """A watch whose alarms are confirmed: the step is executed again, and a value that comes again is no alarm.

    A step repeats its bits.  So a value that comes again is rounding, or the state was wrong before the step.

    Args:
      kept: a copy of the state before the next step; without it the first step's alarms stand.
    """

    def __init__(
        self,
        program: Program,
        detector: Detector,
        memory: Memory = None,
        recovery: Back | None = None,
        kept: State = None,
    ) -> None:
        super().__init__(program, detector, memory, recovery)
        self._kept = kept

    def look(self, at: Address, state: State, report: StepReport) -> tuple[list[Alarm], float]:
        """Give the step to the detector, and execute it again where it stops."""
        found, peak = super().look(at, state, report)
        if found and self._kept is not None:
            _, again = self.program.step(self._kept, self.program.batch(*at), *at)
            values = self._reader.named(jax.device_get(again))
            found = [alarm for alarm in found if confirmed(alarm.value, values[alarm.tensor])]
            peak = peak if found else 0.0
        self._kept = jax.tree.map(jnp.copy, state)
        return found, peak

    def undone(self, at: Address) -> None:
        """The state that was kept is of a step that has not happened."""
        super().undone(at)
        self._kept = None
