"""`loss_spike` and `gradient_norm`: a value is far above the median of those before it."""

import dataclasses
from collections.abc import Sequence
from typing import ClassVar, NamedTuple

import numpy as np

from .detector import Alarms, Array, Detector, graded, namespace

NORMAL = 1.4826  # the standard deviation of a normal distribution in units of its median absolute deviation
EARLIEST = 3  # values before the first that is compared


class SpikeMemory(NamedTuple):
    """The last values, the newest last, and how many of all values were finite: [N, window] and [N]."""

    last: Array
    seen: Array


@dataclasses.dataclass(frozen=True)
class Spike(Detector):
    """Raises an alarm where a value exceeds the median of a window by some deviations.

    .. math::
      T = M + k \\max(1.4826\\, D, f |M|)

    with M the median of the last values and D the median of their distances from M.  So a spike counts as one
    value, however large it is: it hides neither the next spike, nor is it forgotten late.  A lasting change is accepted
    when it fills half of the window.  What is not finite does not enter.  The practice is common, the numbers are ours.

    Attributes:
      window: number of values.
      deviations: k.
      floor: f, the least deviation in units of the median.
      warm_up: number of values after which T is the threshold; what is not finite raises an alarm at once.
      early: from the fourth value up to the warm-up's end the threshold is M + early · max(1.4826 D, |M|).
    """

    window: int = 100
    deviations: float = 6.0
    floor: float = 0.01
    warm_up: int = 20
    early: float = 1000.0

    def init(self, names: Sequence[str]) -> SpikeMemory:
        return SpikeMemory(np.zeros((len(names), self.window)), np.zeros(len(names), np.int32))

    def update(self, memory: SpikeMemory, values: Array) -> tuple[SpikeMemory, Alarms]:
        xp = namespace(values)
        last, seen = (xp.asarray(part) for part in memory)
        last = last.astype(values.dtype)
        count = xp.minimum(seen, self.window)
        kept = xp.arange(self.window, dtype=count.dtype)[None, :] >= self.window - count[:, None]
        middle = _median(xp, xp.where(kept, last, xp.inf), count)
        spread = _median(xp, xp.where(kept, xp.abs(last - middle[:, None]), xp.inf), count)

        finite, warm = xp.isfinite(values), seen >= self.warm_up
        size = xp.abs(middle)
        ordinary = self.deviations * xp.maximum(NORMAL * spread, self.floor * size)
        spread = xp.where(warm, ordinary, self.early * xp.maximum(NORMAL * spread, size))
        known = warm | ((seen >= EARLIEST) & (spread > 0))  # what began with zeros says nothing yet
        threshold = xp.where(known, middle + spread, xp.inf)
        stop = (known & (values > threshold)) | ~finite

        shifted = xp.concatenate([last[:, 1:], values[:, None]], axis=1)
        new = SpikeMemory(xp.where(finite[:, None], shifted, last), seen + finite.astype(seen.dtype))
        # The share of the way from the median to the threshold.
        reached = xp.where(known & finite, xp.maximum(values - middle, 0.0), 0.0)
        return new, graded(reached, spread, threshold, finite, stop)


def _median(xp: Array, values: Array, count: Array) -> Array:
    """The median of the first `count` values in order, of each row; 0 where the count is.

    Args:
      values: [N, window], infinite where nothing is meant.
      count: int32 [N].
    """
    ordered = xp.sort(values, axis=1)
    at = xp.stack([xp.maximum(count - 1, 0) // 2, xp.minimum(count // 2, values.shape[1] - 1)], axis=1)
    low, high = xp.moveaxis(xp.take_along_axis(ordered, at, axis=1), 1, 0)
    return xp.where(count > 0, low / 2 + high / 2, 0.0)  # halves first: a sum may overflow


@dataclasses.dataclass(frozen=True)
class LossSpike(Spike):
    """`loss_spike`: the loss is far above what it was.

    >>> detector = LossSpike(warm_up=2)
    >>> memory = detector.init(["loss"])
    >>> for value in (1.0, 1.1, 1.05, 9.0):
    ...     memory, alarms = detector.update(memory, np.array([value]))
    >>> alarms.level
    array([1], dtype=int32)
    """

    signals: ClassVar[tuple[str, ...]] = ("loss",)


@dataclasses.dataclass(frozen=True)
class GradientNorm(Spike):
    """`gradient_norm`: the norm of the whole gradient is far above what it was.

    >>> detector = GradientNorm(warm_up=2)
    >>> memory = detector.init(["gradient_norm"])
    >>> for value in (1.0, 1.1, 1.05, 9.0):
    ...     memory, alarms = detector.update(memory, np.array([value]))
    >>> alarms.level
    array([1], dtype=int32)
    """

    signals: ClassVar[tuple[str, ...]] = ("gradient_norm",)
