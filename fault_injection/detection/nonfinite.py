"""`nonfinite`: the loss, or anything of the state, is not a finite number."""

import dataclasses
from collections.abc import Sequence
from typing import ClassVar

from .detector import STOP, Alarms, Array, Detector, Memory, namespace


@dataclasses.dataclass(frozen=True)
class NonFinite(Detector):
    """Raises an alarm for a NaN or an infinity; without memory.

    >>> import numpy as np
    >>> NonFinite().update((), np.array([1.0, np.nan]))[1].level
    array([0, 1], dtype=int32)
    """

    signals: ClassVar[tuple[str, ...]] = ("loss", "largest/gradients_of_parameters", "largest/state")
    remembers = False

    def init(self, names: Sequence[str]) -> Memory:
        return ()

    def update(self, memory: Memory, values: Array) -> tuple[Memory, Alarms]:
        xp = namespace(values)
        bad = ~xp.isfinite(values)
        excess = xp.where(bad, xp.inf, 0.0).astype(values.dtype)
        return (), Alarms(xp.where(bad, STOP, 0).astype("int32"), xp.full_like(excess, xp.inf), excess)
