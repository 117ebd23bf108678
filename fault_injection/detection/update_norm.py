"""`update_norm`: what a step adds to a parameter is far above the median of what the steps before have added."""

import dataclasses
from typing import ClassVar

from .spike import Spike


@dataclasses.dataclass(frozen=True)
class UpdateNorm(Spike):
    """`update_norm`: the root mean square of a parameter's update is far above what it was.

    The update is the parameter after the step less the parameter before it: whatever clips, scales or forgets a
    gradient on its way has been done.

    >>> import numpy as np
    >>> detector = UpdateNorm(warm_up=2)
    >>> memory = detector.init(["rms/updates/w"])
    >>> for value in (1.0, 1.1, 1.05, 9.0):
    ...     memory, alarms = detector.update(memory, np.array([value]))
    >>> alarms.level
    array([1], dtype=int32)
    """

    signals: ClassVar[tuple[str, ...]] = ("rms/updates",)

    deviations: float = 20.0
    floor: float = 0.1
