"""`loss_spike`: the loss is far above what it was."""

import dataclasses
from typing import ClassVar

from .spike import Spike


@dataclasses.dataclass(frozen=True)
class LossSpike(Spike):
    """See `Spike`.

    >>> import numpy as np
    >>> detector = LossSpike(warm_up=2)
    >>> memory = detector.init(["loss"])
    >>> for value in (1.0, 1.1, 1.05, 9.0):
    ...     memory, alarms = detector.update(memory, np.array([value]))
    >>> alarms.level
    array([1], dtype=int32)
    """

    signals: ClassVar[tuple[str, ...]] = ("loss",)
