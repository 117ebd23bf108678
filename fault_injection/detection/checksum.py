"""`checksum` and its kin: a product is wrong by more than rounding explains."""

import dataclasses
from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from .detector import STOP, Alarms, Array, Detector, Memory, namespace


@dataclasses.dataclass(frozen=True)
class Checksum(Detector):
    """Raises an alarm for a product whose sums differ by more than the worst rounding; without memory.

    The values are those of `models.observe.checksum`: differences in units of their tolerance.

    >>> Checksum().update((), np.array([0.9, 1.5, np.inf]))[1].level
    array([0, 1, 1], dtype=int32)
    """

    signals: ClassVar[tuple[str, ...]] = ("checksum/products",)
    remembers = False
    executes_again = True  # to confirm its alarms

    def init(self, names: Sequence[str]) -> Memory:
        return ()

    def update(self, memory: Memory, values: Array) -> tuple[Memory, Alarms]:
        xp = namespace(values)
        excess = xp.where(xp.isfinite(values), values, xp.inf)
        return (), Alarms(xp.where(excess > 1, STOP, 0).astype("int32"), xp.ones_like(excess), excess)


@dataclasses.dataclass(frozen=True)
class UnconfirmedChecksum(Checksum):
    """As `Checksum`, and no alarm has to be confirmed: a permanent fault, which repeats itself, is seen too.

    It also raises alarms where a wrong state makes right products infinite.

    >>> Checksum.executes_again, UnconfirmedChecksum().executes_again
    (True, False)
    """

    executes_again = False


@dataclasses.dataclass(frozen=True)
class SampledChecksum(UnconfirmedChecksum):
    """As `UnconfirmedChecksum`, in every n-th step only: what lasts is found at an n-th of the cost.

    A training has two compiled steps, and takes the one with checksums now and then: both compute the same bits.
    `epoch_checksum` is this with n the steps of an epoch: the last one of each is checked, before a checkpoint is kept.

    Attributes:
      every: n; steps are counted over all epochs, and number n − 1 is the first that is checked.

    >>> detector = SampledChecksum(every=2)
    >>> memory, first = detector.update(detector.init(["a"]), np.array([1.5]))
    >>> first.level, detector.update(memory, np.array([1.5]))[1].level
    (array([0], dtype=int32), array([1], dtype=int32))
    """

    remembers = True
    every: int = 256

    @property
    def reported_every(self) -> int:
        return self.every

    def init(self, names: Sequence[str]) -> Memory:
        return np.zeros((), np.int32)

    def update(self, memory: Memory, values: Array) -> tuple[Memory, Alarms]:
        xp = namespace(values)
        due = (memory + 1) % self.every == 0
        return memory + 1, super().update((), xp.where(due, values, 0.0))[1]


@dataclasses.dataclass(frozen=True)
class VarianceChecksum(Checksum):
    """As `Checksum`, with the tolerance from the variance of independent roundings, which is smaller.

    >>> VarianceChecksum().update((), np.array([0.9, 1.5]))[1].level
    array([0, 1], dtype=int32)
    """

    signals: ClassVar[tuple[str, ...]] = ("variance_checksum/products",)


def confirmed(value: float, again: float) -> bool:
    """Whether an alarm is one of hardware: the same step, executed again, gives another value of the same product.

    A step repeats its bits, so that a value that comes again is rounding, or the step was given a
    state that is wrong already.  What a permanent fault does comes again too.

    Args:
      value: that raised the alarm.
      again: of the same product, in the same step executed again from the same state.

    >>> confirmed(1.5, 0.2), confirmed(1.5, 1.5), confirmed(float("nan"), 0.2), confirmed(float("inf"), float("inf"))
    (True, False, True, False)
    """
    return not np.array_equal(value, again, equal_nan=True)
