"""`history_ratio`: the optimizer's history, or a running variance, is far above the largest that the run has shown.

Reference: the necessary condition of latent outcomes of He et al., ISCA 2023; the ratios are ours (docs/detection.md).
"""

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ..seam.leaves import Role
from ..seam.program import Program
from .detector import Alarms, Array, Detector, graded, namespace


class RatioMemory(NamedTuple):
    """How many times the largest so far a value may be, that largest, and how many values it is of; each [N]."""

    ratio: Array
    largest: Array
    seen: Array


@dataclasses.dataclass(frozen=True)
class HistoryRatio(Detector):
    """Raises an alarm where a moment, or a running variance, is many times the largest that it has been.

    .. math::
      x > k \\max x_{before}

    with x the largest absolute value of an array.  The first `warm_up` values enter without being compared, and zeros
    teach nothing.  A value with an alarm does not enter.  What is not finite raises an alarm at once.

    Attributes:
      variances: names of the running variances.
      of: `history`, or `gradients_of_parameters` of an optimizer without history.
      history: k of moments.
      variance: k of running variances.
      warm_up: number of values.

    >>> detector = HistoryRatio()
    >>> memory = detector.init(["opt_state/m/fc/kernel"])
    >>> for value in (0.0, 2.0, 5.0, 400.0, 501.0):
    ...     memory, alarms = detector.update(memory, np.array([value]))
    >>> alarms.level.tolist(), alarms.threshold.tolist()
    ([0], [40000.0])
    """

    variances: tuple[str, ...] = ()
    of: str = "history"
    history: float = 100.0
    variance: float = 10.0
    warm_up: int = 3

    @property
    def signals(self) -> tuple[str, ...]:
        return (f"largest/{self.of}", "largest/running_variance")

    def init(self, names: Sequence[str]) -> RatioMemory:
        known = frozenset(self.variances)
        ratio = np.array([self.variance if name in known else self.history for name in names])
        return RatioMemory(ratio, np.zeros(len(names)), np.zeros(len(names), np.int32))

    def update(self, memory: RatioMemory, values: Array) -> tuple[RatioMemory, Alarms]:
        xp = namespace(values)
        ratio, largest, seen = (xp.asarray(part) for part in memory)
        finite, known = xp.isfinite(values), (seen >= self.warm_up) & (largest > 0)
        threshold = xp.where(known, ratio * largest, xp.inf)
        stop = (values > threshold) | ~finite
        new = RatioMemory(
            ratio, xp.where(stop, largest, xp.maximum(largest, values)), seen + (~stop).astype(seen.dtype)
        )
        reached = xp.where(known & finite, values, 0.0)
        return new, graded(reached, xp.where(known, threshold, 1.0), threshold, finite, stop)


def history_ratio(program: Program) -> HistoryRatio:
    """The detector of a program."""
    watched = program.state.watched
    of = "history" if any(leaf.role == Role.HISTORY for leaf in watched) else "gradients_of_parameters"
    return HistoryRatio(tuple(leaf.name for leaf in watched if leaf.role == Role.VARIANCE), of)
