"""`rt_jump`: the size of the largest update jumps while the gradient's norm rises.

Reference: arXiv 2604.00726, 2026 (docs/detection.md): formula, numbers and what the code keeps are theirs.
"""

import dataclasses
from collections.abc import Sequence
from typing import ClassVar, NamedTuple

import numpy as np

from .detector import Alarms, Array, Detector, graded, namespace

NORM = "gradient_norm"


class RtMemory(NamedTuple):
    """What was before, and the mean of the jumps; `norms` is bool [N], the others are [N] of one number each.

    Attributes:
      norms: which of the tensors is the gradient's norm.
      size, norm: R and the norm of the step before.
      mean: W.
      seen: steps so far.
    """

    norms: Array
    size: Array
    norm: Array
    mean: Array
    seen: Array


@dataclasses.dataclass(frozen=True)
class RtJump(Detector):
    """Raises an alarm where the size of the update jumps further than its jumps so far allow.

    .. math::
      R_t = \\max_p \\mathrm{rms}(α m' / (\\sqrt{v'} + 10^{-8})), \\qquad ΔR = |R_t - R_{t-1}|, \\\\
      ΔG = \\max(0, ‖g‖_t - ‖g‖_{t-1}), \\qquad ΔG > 0 \\text{ and } ΔR > W / (c \\sqrt{ΔG})

    with W the mean of all ΔR so far, this step's included, which no longer changes after the warm-up.  A norm that is
    not finite raises an alarm at once; all else from step `first` on.  Nothing is left out of the memory: what raises
    an alarm enters it, and a NaN in R stays in W for ever, as in the published code.

    Attributes:
      factor: c.
      first: number of the first step that is compared.
      warm_up: number of steps that W is of.

    >>> detector = RtJump()
    >>> memory = detector.init(["gradient_norm", "rms/adam_steps/a", "rms/adam_steps/b"])
    >>> for step in range(20):
    ...     memory, alarms = detector.update(memory, np.array([1.0, 0.10 + 0.01 * (step % 2), 0.05]))
    >>> alarms.level.tolist(), detector.update(memory, np.array([900.0, 0.10, 0.50]))[1].level.tolist()
    ([0, 0, 0], [0, 0, 1])
    """

    signals: ClassVar[tuple[str, ...]] = (NORM, "rms/adam_steps")

    factor: float = 0.05
    first: int = 10
    warm_up: int = 1000

    def init(self, names: Sequence[str]) -> RtMemory:
        zeros = np.zeros(len(names))
        return RtMemory(np.array([name == NORM for name in names]), zeros, zeros, zeros, np.zeros(len(names), np.int32))

    def update(self, memory: RtMemory, values: Array) -> tuple[RtMemory, Alarms]:
        xp = namespace(values)
        norms, before, norm_before, mean, seen = (xp.asarray(part) for part in memory)
        sizes = xp.where(norms, -xp.inf, values)
        # Two ways to ask, because a maximum may pass over a NaN (docs/detection.md).
        lost = xp.any(xp.isnan(sizes))
        size = xp.where(lost, xp.nan, xp.max(xp.where(xp.isnan(sizes), -xp.inf, sizes)))
        norm = xp.sum(xp.where(norms, values, 0.0))
        jump = xp.where(seen > 0, xp.abs(size - before), 0.0)
        rise = xp.where(seen > 0, xp.maximum(norm - norm_before, 0.0), 0.0)
        enters = (seen > 0) & (seen < self.warm_up)
        count = xp.maximum(seen, 1).astype(values.dtype)
        mean = xp.where(enters, mean + (jump - mean) / count, mean)
        allowed = xp.where(rise > 0, mean / (self.factor * xp.sqrt(xp.where(rise > 0, rise, 1.0))), xp.inf)
        jumped = (seen >= self.first) & (rise > 0) & (jump > allowed)

        wrong = norms & ~xp.isfinite(norm)
        largest = ~norms & (sizes == size)  # the parameter that the alarm names
        stop = wrong | (largest & jumped)
        known = largest & (seen >= self.first) & xp.isfinite(allowed)
        threshold = xp.where(known, before + xp.where(size < before, -allowed, allowed), xp.inf)
        reached = xp.where(known & xp.isfinite(jump), jump, 0.0)
        found = graded(reached, xp.where(known, allowed, 1.0), threshold, ~(stop & ~xp.isfinite(values)), stop)
        same = xp.ones_like(values)
        return RtMemory(norms, size * same, norm * same, mean, seen + 1), found
