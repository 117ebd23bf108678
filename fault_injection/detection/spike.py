"""`loss_spike` and `gradient_norm`: a value is far above the exponential mean of those before it."""

import dataclasses
from collections.abc import Sequence
from typing import ClassVar, NamedTuple

import numpy as np

from .detector import Alarms, Array, Detector, graded, namespace


class SpikeMemory(NamedTuple):
    """Exponential mean and variance, and how many values they are of; each [N]."""

    mean: Array
    variance: Array
    seen: Array


@dataclasses.dataclass(frozen=True)
class Spike(Detector):
    """Raises an alarm where a value exceeds the exponential mean by some deviations.

    .. math::
      T = μ + k \\max(σ, f |μ|), \\quad μ ← μ + (1 - β)(x - μ), \\quad σ² ← β (σ² + (1 - β)(x - μ)²)

    The practice is common, the numbers are ours.  The first values count alike: with n values
    before it, a value enters with the weight max(1 − β, 1/(n + 1)).  A value above the threshold
    enters as if it were the threshold, so that one spike does not hide the next, and a lasting
    change is accepted in the end.  What is not finite, or whose square is not, does not enter.

    Attributes:
      decay: β, of mean and variance.
      deviations: k.
      floor: f, the least deviation in units of the mean.
      warm_up: number of values before the first alarm; what is not finite raises one at once.
    """

    decay: float = 0.98
    deviations: float = 6.0
    floor: float = 0.01
    warm_up: int = 20

    def init(self, names: Sequence[str]) -> SpikeMemory:
        zeros = np.zeros(len(names))
        return SpikeMemory(zeros, zeros, np.zeros(len(names), np.int32))

    def update(self, memory: SpikeMemory, values: Array) -> tuple[SpikeMemory, Alarms]:
        xp = namespace(values)
        mean, variance, seen = (xp.asarray(part) for part in memory)
        finite, warm = xp.isfinite(values), seen >= self.warm_up
        spread = self.deviations * xp.maximum(xp.sqrt(variance), self.floor * xp.abs(mean))
        threshold = xp.where(warm, mean + spread, xp.inf)
        stop = (warm & (values > threshold)) | ~finite

        weight = xp.maximum(1 - self.decay, 1 / (seen + 1).astype(values.dtype))
        entering = xp.minimum(values, threshold)
        # What has no square does not enter either, in float32 from 5e18: an infinite variance would never go.
        enters = finite & (xp.abs(entering) < float(xp.finfo(values.dtype).max) ** 0.5 / 4)
        distance = xp.where(enters, entering, mean) - mean
        new = SpikeMemory(
            mean + weight * distance,
            xp.where(enters, (1 - weight) * (variance + weight * distance * distance), variance),
            seen + enters.astype(seen.dtype),
        )
        # The share of the way from the mean to the threshold.
        reached = xp.where(warm & finite, xp.maximum(values - mean, 0.0), 0.0)
        return new, graded(reached, spread, threshold, finite, stop)


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
