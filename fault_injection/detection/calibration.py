"""Thresholds from fault-free logs of one's own, for a wanted rate of false alarms.

With n values that were compared, of which j exceed the threshold that the (j + 1)-th largest sets, the probability that
another value exceeds it has the distribution Beta(j + 1, n − j), whatever that of the values is.  The threshold is the
lowest whose bound at the confidence wanted is at most the rate.  Where the logs are too short for any, it is the
largest value, and the rate that they support is said.  A detector that does not remember what it stops may stop more
with a lower threshold than its old memory says: so j is what it stops itself, and the threshold rises until its own
bound holds.  Reference: Wilks, *Annals of Mathematical Statistics* 12 (1941).
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from ..machine.errors import InputError
from .asd import Asd
from .asd_v1 import AsdV1
from .asd_v3 import AsdV3
from .examination import Material
from .log_reading import look
from .spike import Spike

CONFIDENCE = 0.95
ABOVE = 1 + 1e-9  # a threshold's share that keeps the value which set it below, after rounding

# What a detector's excess of 1 means after its thresholds are so many times as high, in its settings.
HIGHER: dict[type, Callable[[Any, float], dict[str, Any]]] = {
    Spike: lambda detector, factor: {"deviations": detector.deviations * factor},
    Asd: lambda detector, factor: {"upper": detector.upper * factor**2},
    # The second threshold warns below the first: what is calibrated warns of nothing.
    AsdV1: lambda detector, factor: {
        "upper": (detector.upper[0] * factor,) * 2,
        "sigma": (detector.sigma[0] * factor,) * 2,
    },
    AsdV3: lambda detector, factor: {"upper": (detector.upper[0] * factor**2,) * 2},
}


class Calibration(NamedTuple):
    """A detector with thresholds from fault-free logs.

    Attributes:
      detector: with them.
      settings: those that changed.
      values: how many were compared with a threshold.
      above: how many of these exceed the new one.
      rate: what the logs support: with `CONFIDENCE`, at most this share of values raises a false alarm.
      wanted: the share that was asked for.
    """

    detector: Any
    settings: dict[str, Any]
    values: int
    above: int
    rate: float
    wanted: float

    def sentence(self, logs: int) -> str:
        """What is to be said, of so many logs."""
        said = " ".join(f"--set {name}={_text(value)}" for name, value in self.settings.items())
        bound = f"at most 1 false alarm in {1 / self.rate:,.0f} values, with {CONFIDENCE:.0%} confidence"
        head = f"calibrated on {self.values:,} values of {logs} log(s), of which {self.above} are above: {said}; "
        if self.rate <= self.wanted:
            return head + bound
        return f"{head}{bound}: the logs are too short for 1 in {1 / self.wanted:,.0f}"


def _text(value: Any) -> str:
    return ",".join(map(_text, value)) if isinstance(value, tuple) else f"{value:.17g}"


def bound(above: int, values: int) -> float:
    """The rate of false alarms that so many values support, if so many of them are above the threshold.

    >>> round(bound(0, 2995), 6)  # the rule of three
    0.001
    """
    from scipy.special import betaincinv  # slow to import

    return 1.0 if above >= values else float(betaincinv(above + 1, values - above, CONFIDENCE))


def calibrate(detector: Any, logs: Sequence[Material], wanted: float) -> Calibration:
    """Set the thresholds of a detector by fault-free logs.

    Args:
      wanted: share of values, between 0 and 1.

    Raises:
      InputError: the detector has no threshold, or the logs have no value that is compared with one, or one that is
        not finite.
    """
    higher = next((HIGHER[kind] for kind in type(detector).__mro__ if kind in HIGHER), None)
    if higher is None:
        raise InputError(f"{type(detector).__name__} has no threshold that could be calibrated")
    for given in logs:
        wrong = np.flatnonzero(~np.isfinite(given.log.values))
        if len(wrong):
            step = int(given.log.steps[wrong[0]])
            raise InputError(f"--calibrate: {given.log.values[wrong[0]]} at step {step}; expected fault-free logs")
    excess = np.sort(_excess(detector, logs))[::-1]
    if not len(excess) or not excess[0] > 0:
        raise InputError("--calibrate: no value is above what a threshold is counted from: the logs are too short")

    def tried(above: int) -> Calibration:
        """With the threshold that so many values exceed, as the old detector's memory has it."""
        settings = higher(detector, float(excess[above]) * ABOVE)
        changed = dataclasses.replace(detector, **settings)
        own = _excess(changed, logs)
        stopped = int(np.sum(own > 1))
        return Calibration(changed, settings, len(own), stopped, bound(stopped, len(own)), wanted)

    positive = int(np.sum(excess > 0))  # a threshold of nothing would be none
    most = _most(lambda above: bound(above, len(excess)) <= wanted, positive)
    found = tried(most)
    if found.rate > wanted and most:
        found = tried(_most(lambda above: tried(above).rate <= wanted, most))
    return found


def _most(holds: Callable[[int], bool], end: int) -> int:
    """The largest number below an end for which something holds that holds of all smaller ones; 0 where it is none."""
    low, high = 0, end
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


def _excess(detector: Any, logs: Sequence[Material]) -> np.ndarray:
    """The values of logs that are compared with a threshold, in its units."""
    parts = []
    for given in logs:
        seen = look(detector, given.log, given.following)
        # Thresholds of the warm-up are no part of what is set.
        compared = np.isfinite(seen.threshold) & (given.following.depth >= getattr(detector, "warm_up", 0))
        parts.append(seen.excess[compared])
    return np.concatenate(parts)
