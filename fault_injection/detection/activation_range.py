"""`activation_range`: an activation is far larger than its layer has shown so far.

Reference: Chen et al., A Low-cost Fault Corrector for Deep Neural Networks through Range Restriction (Ranger), DSN 2021
(docs/detection.md says what of it is theirs).
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from .detector import Alarms, Array, Detector, graded, namespace

MARGIN = 10.0


@dataclasses.dataclass(frozen=True)
class ActivationRange(Detector):
    """Raises an alarm where the largest absolute activation of a layer exceeds what it has been.

    .. math::
      a > k \\max a_{before}

    with a the largest absolute value of a step.  The memory is the largest value that has raised no alarm; zeros
    teach nothing, and one value has to be there.  What is not finite raises an alarm.

    Attributes:
      margin: k.

    >>> detector = ActivationRange()
    >>> memory = detector.init(["largest/activations/conv1"])
    >>> for value in (0.0, 2.0, 19.0, 200.0):
    ...     memory, alarms = detector.update(memory, np.array([value]))
    >>> alarms.level.tolist(), alarms.threshold.tolist()
    ([1], [190.0])
    """

    margin: float = MARGIN

    signals: ClassVar[tuple[str, ...]] = ("largest/activations",)

    def init(self, names: Sequence[str]) -> Array:
        return np.full(len(names), math.nan)

    def update(self, memory: Array, values: Array) -> tuple[Array, Alarms]:
        xp = namespace(values)
        return within(xp.full_like(values, math.nan), xp.asarray(memory), values, self.margin)


def within(bound: Array, largest: Array, values: Array, margin: float) -> tuple[Array, Alarms]:
    """The largest values so far, after those of a step, and alarms where these are too large.

    Args:
      bound: what a value may be; NaN where it may be `margin` times the largest so far.
      largest: so far; NaN before the first.
    """
    xp = namespace(values)
    learned = xp.where(xp.isnan(largest) | (largest == 0), xp.inf, margin * largest)  # zeros teach nothing
    threshold = xp.where(xp.isnan(bound), learned, bound)
    finite = xp.isfinite(values)
    stop = (values > threshold) | ~finite
    seen = xp.where(xp.isnan(largest), values, xp.maximum(largest, values))
    known = xp.isfinite(threshold)
    reached = xp.where(known & finite, values, 0.0)
    return xp.where(stop, largest, seen), graded(reached, xp.where(known, threshold, 1.0), threshold, finite, stop)
