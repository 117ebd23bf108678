"""`asd_v3`: accuracy-sensitive anomaly detection by the square of the largest gradient and its average.

Reference: CANN, `aclnnSilentCheckV2`, which torch_npu calls version 3 (docs/detection.md).
"""

import dataclasses
from collections.abc import Sequence
from typing import ClassVar, NamedTuple

import numpy as np

from .detector import Alarms, Array, Detector, graded, namespace

DECAY = 0.99


class AsdV3Memory(NamedTuple):
    """Average of squares, and how many values it is of beside its seed; each [N]."""

    average: Array
    seen: Array


@dataclasses.dataclass(frozen=True)
class AsdV3(Detector):
    """Raises an alarm where the square of the largest absolute gradient is far above its average.

    .. math::
      x > c_i \\, T, \\qquad T = a / (1 - 0.99^n), \\qquad a ← 0.99 a + 0.01 x

    with x the square, and T = a before the first value has entered (n = 0).  i = 1 stops and i = 2
    warns.  A value that stops does not enter the average, one that warns does.  The vendor seeds the
    average with the median of the squared gradients that are not zero.  Here only the largest is
    known: its square is the seed, which is larger, and has half its weight after 69 steps.

    Attributes:
      upper: c₁ and c₂.

    >>> import numpy as np
    >>> detector = AsdV3()
    >>> memory = detector.init(["largest/gradients/w"])
    >>> for value in [1.0] * 20 + [1e5]:
    ...     memory, alarms = detector.update(memory, np.array([value]))
    >>> alarms.level
    array([1], dtype=int32)
    """

    signals: ClassVar[tuple[str, ...]] = ("largest/gradients",)

    upper: tuple[float, float] = (1e6, 1e4)

    def init(self, names: Sequence[str]) -> AsdV3Memory:
        return AsdV3Memory(np.zeros(len(names)), np.zeros(len(names), np.int32))

    def update(self, memory: AsdV3Memory, values: Array) -> tuple[AsdV3Memory, Alarms]:
        xp = namespace(values)
        average, seen = (xp.asarray(part) for part in memory)
        square = values * values
        finite = xp.isfinite(square)
        seeded = xp.where((average == 0) & finite, square, average)
        mean = seeded / xp.where(seen > 0, 1 - DECAY ** seen.astype(average.dtype), 1.0)
        known = finite & (mean > 0)
        stop = (known & (square > self.upper[0] * mean)) | ~finite
        warn = known & (square > self.upper[1] * mean) & ~stop
        enters = known & ~stop
        new = AsdV3Memory(
            xp.where(enters, DECAY * seeded + 0.01 * square, average),
            seen + enters.astype(seen.dtype),
        )
        threshold = xp.where(mean > 0, xp.where(warn, self.upper[1], self.upper[0]) * mean, xp.inf)
        reached = xp.where(known, xp.sqrt(square), 0.0)
        return new, graded(reached, xp.sqrt(self.upper[0] * mean), xp.sqrt(threshold), finite, stop, warn)
