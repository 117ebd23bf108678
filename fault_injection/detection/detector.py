"""What a detector is: a pure function of what steps report, which raises alarms.

A detector keeps a memory and updates it with the values of one step.  It works on NumPy arrays
beside a run, on a log in float64, and on traced JAX arrays inside a compiled step: it takes the
functions that it needs from the values' own array namespace.
"""

import math
from collections.abc import Sequence
from types import ModuleType
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np

Array = Any  # of NumPy, or of JAX inside a compiled step
Memory = Any  # a pytree of arrays, most of them with one element per tensor

STOP, WARN = 1, 2  # levels of alarms: stop the run or recover, and only say so


class Alarms(NamedTuple):
    """What a detector says of one step: arrays with one element per tensor.

    Attributes:
      level: int32 [N]: 0 for no alarm, `STOP` or `WARN`.
      threshold: [N], what the value was compared with, in its unit; infinite where there is none yet.
        It is that of the level raised, of `STOP` where none is.
      excess: [N], how large the value is in units of what `STOP` needs: above 1 exactly where the
        level is `STOP`, infinite for what is not finite.  Sweeping a threshold means to compare
        this with other numbers than 1.
    """

    level: Array
    threshold: Array
    excess: Array


class AnyDetector(Protocol):
    """What every detector states of itself: a frozen dataclass, whose fields are its settings.

    Attributes:
      signals: kinds of tensors that it watches in a run, keys of `signals.KINDS`.
      remembers: whether what it says of a step depends on the steps before, so that it has to see them.
      executes_again: whether steps are executed again for it, from copies of their states.
      compares: whether it compares the tensors of a step with each other, so that it has to have them all.
    """

    @property
    def signals(self) -> tuple[str, ...]: ...

    remembers: ClassVar[bool] = True
    executes_again: ClassVar[bool] = False
    compares: ClassVar[bool] = False

    @property
    def reported_every(self) -> int:
        """Of how many steps one reports what it watches; the others are plain ones."""
        return 1


class Detector(AnyDetector, Protocol):
    """A detector that is a pure function of what steps report."""

    def init(self, names: Sequence[str], /) -> Memory:
        """The memory before the first step.

        Args:
          names: of the tensors watched, N of them.
        """

    def update(self, memory: Memory, values: Array, /) -> tuple[Memory, Alarms]:
        """What one step gives.

        Args:
          memory: before the step.
          values: floating point [N], one value per tensor.  NaN and infinities are legal, and never
            poison the memory.

        Returns:
          The memory after the step, and its alarms.
        """


class Alarm(NamedTuple):
    """One alarm, as it is told.

    Attributes:
      step: number of the step, as the run or the log counts.
      tensor: its name.
      value, threshold: in the value's unit; NaN where two arrays that should be the same differ.
      level: `STOP` or `WARN`.
      excess: see `Alarms`; infinite where arrays differ.
    """

    step: int
    tensor: str
    value: float
    level: int
    threshold: float
    excess: float = math.inf

    @property
    def rank(self) -> tuple[float, bool]:
        """How far it is beyond its threshold; of equal ones, one that names more than the run as a whole."""
        return self.excess, "/" in self.tensor


def namespace(values: Array) -> ModuleType:
    """NumPy or `jax.numpy`, whichever the array is of, traced or not."""
    found: ModuleType = values.__array_namespace__()
    return found


def graded(reached: Array, unit: Array, threshold: Array, finite: Array, stop: Array, warn: Array = False) -> Alarms:
    """The alarms of values that stop, or warn.

    Their excess is `reached / unit`, kept on the side of 1 where `stop` is: a quotient may round to 1 where the
    value itself is above its threshold.
    """
    xp = namespace(reached)
    ratio = xp.where(unit > 0, reached / xp.where(unit > 0, unit, 1.0), 0.0)
    above = 1 + float(xp.finfo(ratio.dtype).eps)
    excess = xp.where(finite, xp.where(stop, xp.maximum(ratio, above), xp.minimum(ratio, 1.0)), xp.inf)
    return Alarms(xp.where(stop, STOP, xp.where(warn, WARN, 0)).astype("int32"), threshold, excess)


def differing(step: int, tensors: Sequence[str]) -> list[Alarm]:
    """Alarms of arrays that differ from what they are compared with, bit by bit."""
    return [Alarm(step, tensor, math.nan, STOP, math.nan) for tensor in tensors]


def told(step: int, names: Sequence[str], values: Array, alarms: Alarms) -> list[Alarm]:
    """The alarms of one step as records, in the order of the tensors."""
    at = np.flatnonzero(alarms.level).tolist()
    columns = values, alarms.level, alarms.threshold, alarms.excess
    rows = ([column[i].item() for column in columns] for i in at)
    return [Alarm(step, names[i], *row) for i, row in zip(at, rows, strict=True)]
