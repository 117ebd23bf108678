"""`asd_v1`: accuracy-sensitive anomaly detection as it began: bounds of the gradient's norm and of its jumps.

Reference: Ascend, `NPU_ASD_UPPER_THRESH`, `NPU_ASD_SIGMA_THRESH`; CANN, `aclnnSilentCheck` (docs/detection.md).
"""

import dataclasses
from collections.abc import Sequence
from typing import ClassVar, NamedTuple

import numpy as np

from .detector import Alarms, Array, Detector, graded, namespace


class AsdV1Memory(NamedTuple):
    """The value before, the smallest and the largest so far, and how many there were; each [N]."""

    previous: Array
    smallest: Array
    largest: Array
    seen: Array


@dataclasses.dataclass(frozen=True)
class AsdV1(Detector):
    """Raises an alarm where the gradient's norm, or its jump in units of the range so far, exceeds a bound.

    .. math::
      x > U_i \\quad\\text{or}\\quad |x - x_{before}| / (x_{max} - x_{min}) > S_i

    i = 1 stops and i = 2 warns.  A value that stops does not enter the memory, one that warns does.

    Attributes:
      upper: U₁ and U₂.
      sigma: S₁ and S₂.
      warm_up: number of values in memory before the first jump is looked at (inferred; a variant has 7).

    >>> import numpy as np
    >>> detector = AsdV1()
    >>> memory = detector.init(["norm/gradients/w"])
    >>> for value in [1.0] * 20 + [1e7]:
    ...     memory, alarms = detector.update(memory, np.array([value]))
    >>> alarms.level
    array([1], dtype=int32)
    """

    signals: ClassVar[tuple[str, ...]] = ("norm/gradients",)

    upper: tuple[float, float] = (1e6, 1e4)
    sigma: tuple[float, float] = (1e5, 5e3)
    warm_up: int = 100

    def init(self, names: Sequence[str]) -> AsdV1Memory:
        zeros, far = np.zeros(len(names)), np.full(len(names), np.inf)
        return AsdV1Memory(zeros, far, -far, np.zeros(len(names), np.int32))

    def update(self, memory: AsdV1Memory, values: Array) -> tuple[AsdV1Memory, Alarms]:
        xp = namespace(values)
        previous, smallest, largest, seen = (xp.asarray(part) for part in memory)
        finite, warm = xp.isfinite(values), (seen >= self.warm_up) & (largest > smallest)
        extent = xp.where(warm, largest - smallest, 1.0)
        jump = xp.where(warm & finite, xp.abs(values - previous) / extent, 0.0)
        exceeds = [(values > upper) | (jump > sigma) for upper, sigma in zip(self.upper, self.sigma, strict=True)]
        stop = exceeds[0] | ~finite
        warn = exceeds[1] & ~stop
        new = AsdV1Memory(
            xp.where(stop, previous, values),
            xp.where(stop, smallest, xp.minimum(smallest, values)),
            xp.where(stop, largest, xp.maximum(largest, values)),
            seen + (~stop).astype(seen.dtype),
        )
        # What was exceeded: the bound of the norm, or the norm at which the jump has its bound.
        upper = xp.where(warn, self.upper[1], self.upper[0])
        from_jump = xp.where(warm, previous + xp.where(warn, self.sigma[1], self.sigma[0]) * extent, xp.inf)
        threshold = xp.where(values > upper, upper, xp.minimum(upper, from_jump))
        reached = xp.maximum(xp.where(finite, values, 0.0) / self.upper[0], jump / self.sigma[0])
        return new, graded(reached, xp.ones_like(reached), threshold, finite, stop, warn)
