"""`asd`: accuracy-sensitive anomaly detection as torch_npu has it since 7.1 and MindSpore since 2.7.1.

Reference: Ascend Extension for PyTorch, `NPU_ASD_CONFIG`; MindSpore, *Feature value detection* (docs/detection.md).
"""

import collections
import dataclasses
from collections.abc import Sequence
from typing import ClassVar, NamedTuple

import numpy as np

from .detector import Alarms, Array, Detector, graded, namespace
from .worker_names import whose

DECAY = 0.99
LOCAL = "largest/local_gradients/"
WARM_UP = 10  # values that enter the average before the first comparison


class AsdMemory(NamedTuple):
    """Average of squares, square of the value before, how many values the average is of, whether watched; each [N]."""

    average: Array
    previous: Array
    seen: Array
    sampled: Array


@dataclasses.dataclass(frozen=True)
class Asd(Detector):
    """Raises an alarm where the square of the largest absolute gradient jumps far above its average.

    .. math::
      T_i = c_i \\, a / (1 - 0.99^n), \\qquad x > T_1 \\text{ and } |x - x_{before}| > T_1

    with x the square.  A value up to T₂ enters the average, `a ← 0.99 a + 0.01 x`.  After a zero the value before is
    0, and the average stays.  What is not finite raises an alarm and changes nothing: the vendors' code keeps it as the
    value before, and then cannot see the next jump.

    Attributes:
      upper: c₁, for an alarm.
      accepted: c₂, for a value to enter the average.
      grad_sample_interval: of so many local gradients of a run one is watched, the first and every n-th after it, for
        each worker by itself.  What a log has is watched, all of it: who wrote it has chosen.

    >>> import numpy as np
    >>> detector = Asd()
    >>> memory = detector.init(["largest/local_gradients/worker_0/w"])
    >>> for value in [1.0] * 20 + [1e5]:
    ...     memory, alarms = detector.update(memory, np.array([value]))
    >>> alarms.level
    array([1], dtype=int32)
    """

    signals: ClassVar[tuple[str, ...]] = ("largest/local_gradients",)

    upper: float = 1e6
    accepted: float = 1e2
    grad_sample_interval: int = 3

    def init(self, names: Sequence[str]) -> AsdMemory:
        zeros = np.zeros(len(names))
        return AsdMemory(zeros, zeros, np.zeros(len(names), np.int32), _sampled(names, self.grad_sample_interval))

    def update(self, memory: AsdMemory, values: Array) -> tuple[AsdMemory, Alarms]:
        xp = namespace(values)
        average, previous, seen, sampled = (xp.asarray(part) for part in memory)
        square = xp.where(sampled, values * values, 0.0)
        counts = xp.isfinite(square) & (square != 0)
        warm = (seen >= WARM_UP) & (average != 0)
        weight = xp.where(warm, 1 - DECAY ** seen.astype(average.dtype), 1.0)
        threshold = xp.where(warm, self.upper * average / weight, xp.inf)
        accepted = xp.where(warm, self.accepted * average / weight, xp.inf)
        over = xp.where(counts, xp.minimum(square, xp.abs(square - previous)), 0.0)
        stop = (over > threshold) | ~xp.isfinite(square)
        enters = counts & ~stop & (square <= accepted)
        new = AsdMemory(
            xp.where(enters, DECAY * average + 0.01 * square, average),
            xp.where(xp.isfinite(square), square, previous),
            seen + enters.astype(seen.dtype),
            sampled,
        )
        root = xp.sqrt(threshold)
        return new, graded(xp.sqrt(over), root, root, xp.isfinite(square), stop)


def _sampled(names: Sequence[str], interval: int) -> np.ndarray:
    """Which of the tensors are watched, bool [N]: every n-th local gradient of each worker, and all that is none.

    >>> _sampled(["largest/local_gradients/worker_0/" + name for name in "abcd"], 3).tolist()
    [True, False, False, True]
    """
    count: collections.Counter[str] = collections.Counter()
    chosen = []
    for name in names:
        worker = whose(name) if name.startswith(LOCAL) else ""
        chosen.append(not worker or count[worker] % interval == 0)
        count[worker] += 1
    return np.array(chosen, bool)
