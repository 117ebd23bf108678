"""Observers that watch a run for alarms, and may have steps undone."""

import abc
import collections
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ..runs.steps import Address, Again, Back, Observer, numbered
from ..seam.leaves import State
from ..seam.program import Program
from ..seam.report import StepReport
from .checksum import confirmed
from .detector import STOP, Alarm, AnyDetector, Detector, Memory, told
from .signals import SignalReader


class Undone(NamedTuple):
    """What was done at an alarm.

    Attributes:
      step: the one with the alarm.
      first: the first step that was undone.
      again: whether it and those after it were executed again.
    """

    step: Address
    first: Address
    again: bool


class Watcher(Observer, abc.ABC):
    """Watches a run, and may have steps undone where it stops.

    No bit of a run depends on it unless it recovers.

    Attributes:
      memory: after the last step; None before the first step of a training.
      alarms: all so far, their steps counted over all epochs.
      peak: the largest `Alarms.excess` of each step.
      actions: what was done, in order.

    Args:
      memory: to go on with.
      recovery: what is done at an alarm that stops; None does nothing.  A step that is executed
        again is not undone again: an alarm that repeats is no transient fault.
    """

    _again: Again  # the engine gives it before the first step

    def __init__(
        self,
        program: Program,
        detector: AnyDetector,
        memory: Memory = None,
        recovery: Back | None = None,
    ) -> None:
        self.program, self.detector, self._recovery = program, detector, recovery
        self._kept: State = None  # a copy of the state before the next step, where that is due
        self._before: collections.deque[tuple[Address, Memory]] = collections.deque(
            maxlen=recovery.steps if recovery else 0
        )
        self._tried: Address | None = None
        self.memory = memory
        self.alarms: list[Alarm] = []
        self.peak: list[float] = []
        self.actions: list[Undone] = []

    @abc.abstractmethod
    def look(self, at: Address, state: State, report: StepReport) -> tuple[list[Alarm], float]:
        """The alarms of a step and its largest excess; keeps in `memory` what the next step needs."""

    def due(self, number: int) -> bool:
        """Whether the step of this number may be executed again, so that the state before it is kept."""
        return self.detector.executes_again

    def _keep(self, number: int, state: State) -> None:
        self._kept = jax.tree.map(jnp.copy, state) if self.due(number) else None

    def starts(self, at: Address, state: State, again: Again) -> None:
        self._again = again
        self._keep(self.number(at), state)

    def after_step(self, at: Address, state: State, report: StepReport) -> Back | None:
        before = self.memory
        found, peak = self.look(at, state, report)
        self._keep(self.number(at) + 1, state)
        self._before.append((at, before))
        self.alarms += found
        self.peak.append(peak)
        stops = any(alarm.level == STOP for alarm in found)
        if self._recovery is None or not stops or (self._tried is not None and at <= self._tried):
            return None
        self._tried = at
        if not self._recovery.again:  # what it saw has not happened
            self.actions.append(Undone(at, at, False))
            self.memory = before
        return self._recovery

    def undone(self, at: Address) -> None:
        assert self._tried is not None  # it has asked for it
        self.actions.append(Undone(self._tried, at, True))
        self.memory = next(memory for address, memory in self._before if address == at)

    def number(self, at: Address) -> int:
        """The number of a step over all epochs."""
        return numbered(at, self.program.steps_per_epoch)


class Watch(Watcher):
    """Runs a detector beside a run, on the steps' reports and nothing else.

    The alarms of one that executes again are confirmed: the step is executed again, with what lasts of a fault, and a
    value that comes again is no alarm.  A step repeats its bits, so that such a value is rounding or a permanent
    fault, or the state was wrong before the step.
    """

    detector: Detector

    def __init__(self, program: Program, detector: Detector, *more: Any, **named: Any) -> None:
        super().__init__(program, detector, *more, **named)
        self._reader = SignalReader(program, detector.signals)

    def look(self, at: Address, state: State, report: StepReport) -> tuple[list[Alarm], float]:
        names, values = self._reader.read(report)
        memory = self.detector.init(names) if self.memory is None else self.memory
        with np.errstate(all="ignore"):
            self.memory, alarms = self.detector.update(memory, values)
        found, excess = told(self.number(at), names, values, alarms), np.asarray(alarms.excess)
        if found and self.detector.executes_again:
            second = self._reader.named(self._again(at, self._kept))
            found = [alarm for alarm in found if confirmed(alarm.value, second[alarm.tensor])]
            kept = {alarm.tensor for alarm in found}
            excess = np.where([one <= 1 or name in kept for one, name in zip(excess, names, strict=True)], excess, 0.0)
        return found, float(np.max(excess, initial=0.0))
