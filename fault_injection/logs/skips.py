"""Steps that a trainer skipped: an overflow under a loss scale is how mixed precision works, and no fault."""

from typing import NamedTuple

import numpy as np

from . import megatron
from .choice import words
from .log import Log, spans

COUNTERS = ({"skipped"}, {"skip"}, {"skips"}, {"found", "inf"}, {"overflow"}, {"overflows"})
SCALES = ({"loss", "scale"}, {"grad", "scale"}, {"loss", "scaler"}, {"scaler"}, {"lossscale"}, {"amp", "scale"})
HALF = 0.5


class Skips(NamedTuple):
    """The steps that were skipped.

    Attributes:
      steps: of the log, each once.
      how: why they are taken as skipped.
    """

    steps: frozenset[int]
    how: str

    def note(self) -> str:
        """What is to be said of the steps; empty where there is none."""
        if not self.steps:
            return ""
        return f"{len(self.steps)} skipped step(s), whose infinities are no alarms: {spans(self.steps)} ({self.how})"


def skipped(log: Log) -> Skips:
    """The steps that a log says were skipped, by a column that counts them, or by a loss scale.

    Where a scale is in the log, a step with a value that is not finite was skipped if the next scale is at most half.

    >>> steps = np.array([0, 0, 1, 1, 2, 2])
    >>> values = np.array([8.0, 1.0, 8.0, np.inf, 4.0, 1.0])
    >>> log = Log("", steps, ("loss_scale", "grad_norm"), np.array([0, 1] * 3), values, None, steps, 2)
    >>> sorted(skipped(log).steps)
    [1]
    """
    counters = [name for name in log.tensors if any(each <= set(words(name)) for each in COUNTERS)]
    scales = [name for name in log.tensors if any(each <= set(words(name)) for each in SCALES)]
    found: set[int] = set()
    how = []
    for name in counters:
        one = log.of([name])
        counted = one.values.copy()
        # Megatron counts since the line before; what never falls counts since the beginning.
        if log.family != megatron.NAME and len(counted) > 1 and np.all(np.diff(counted) >= 0):
            counted = np.diff(counted, prepend=0.0)
        steps = set(one.steps[counted > 0].tolist())
        how += [f"by {name}"] if steps else []
        found |= steps
    for name in scales:
        one, not_finite = log.of([name]), set(log.steps[~np.isfinite(log.values)].tolist())
        halved = one.values[1:] <= HALF * one.values[:-1]
        # The scale of a step holds up to the next row of the scale.
        starts, ends = one.steps[:-1][halved], one.steps[1:][halved]
        steps = {s for s in not_finite if np.any((starts <= s) & (s < ends))} if len(starts) else set()
        how += [f"{name} is halved after them"] if steps else []
        found |= steps
    return Skips(frozenset(found), ", ".join(how))
