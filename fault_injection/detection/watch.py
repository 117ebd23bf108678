"""An observer that runs a detector beside a run."""

import collections
from typing import NamedTuple

import numpy as np

from ..runs.follow import Address, Back, Observer, numbered
from ..training.program import Program, State, StepReport
from .detector import STOP, Alarm, Detector, Memory, told
from .signals import Reader


class Action(NamedTuple):
    """What was done at an alarm.

    Attributes:
      step: the one with the alarm.
      first: the first step that was undone.
      again: whether it and those after it were executed again.
    """

    step: Address
    first: Address
    again: bool


class Watch(Observer):
    """Runs a detector beside a run, and may have steps undone where it stops.

    It reads the steps' reports and nothing else: no bit of a run depends on it unless it recovers.

    Attributes:
      memory: of the detector, after the last step; None before the first step of a training.
      alarms: all so far, their steps counted over all epochs.
      peak: the largest `Alarms.excess` of each step.
      actions: what was done, in order.

    Args:
      memory: to go on with.
      recovery: what is done at an alarm that stops; None does nothing.  A step that is executed
        again is not undone again: an alarm that repeats is no transient fault.
    """

    def __init__(
        self, program: Program, detector: Detector, memory: Memory = None, recovery: Back | None = None
    ) -> None:
        self._reader, self._detector, self._recovery = Reader(program, detector.signals), detector, recovery
        self._steps_per_epoch = program.steps_per_epoch
        self._before: collections.deque[tuple[Address, Memory]] = collections.deque(
            maxlen=recovery.steps if recovery else 0
        )
        self._tried: Address | None = None
        self.memory = memory
        self.alarms: list[Alarm] = []
        self.peak: list[float] = []
        self.actions: list[Action] = []

    def after_step(self, at: Address, state: State, report: StepReport) -> Back | None:
        """Give the step to the detector."""
        names, values = self._reader.names(report), self._reader.read(report)
        if self.memory is None:
            self.memory = self._detector.init(names)
        self._before.append((at, self.memory))
        with np.errstate(all="ignore"):
            self.memory, alarms = self._detector.update(self.memory, values)
        self.peak.append(float(np.max(alarms.excess, initial=0.0)))
        found = told(numbered(at, self._steps_per_epoch), names, values, alarms)
        self.alarms += found
        stops = any(alarm.level == STOP for alarm in found)
        if self._recovery is None or not stops or (self._tried is not None and at <= self._tried):
            return None
        self._tried = at
        if not self._recovery.again:  # what it saw has not happened
            self.actions.append(Action(at, at, False))
            self.memory = self._before[-1][1]
        return self._recovery

    def undone(self, at: Address) -> None:
        """Remember what it did before that step."""
        assert self._tried is not None  # it has asked for it
        self.actions.append(Action(self._tried, at, True))
        self.memory = next(memory for address, memory in self._before if address == at)
