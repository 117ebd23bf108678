"""When alarms become one that is raised: at the first, or at the third strike on a clock."""

import dataclasses
from typing import NamedTuple

MINUTE = 60.0


class Counted(NamedTuple):
    """Times in seconds of the alarms that were counted and have not been part of one raised."""

    counted: tuple[float, ...] = ()
    last: float | None = None  # of the last counted, raised or not


@dataclasses.dataclass(frozen=True)
class Strikes:
    """Counts alarms on a clock: a pure function of their times, which a test or a log can simulate.

    An alarm less than `cooldown` after the last counted one is not counted.  `number` counted within
    `window`, both ends included, are raised, and counted no more.

    Attributes:
      number: strikes that raise.
      cooldown, window: in minutes.

    Reference: Ascend Extension for PyTorch, `NPU_ASD_CONFIG`: 3 strikes, 5 and 480 minutes.

    >>> strikes, struck = Strikes(), Counted()
    >>> for minute in (0, 4, 5, 10):
    ...     struck, raised = strikes.update(struck, minute * MINUTE)
    ...     print(minute, raised)
    0 False
    4 False
    5 False
    10 True
    """

    number: int = 3
    cooldown: float = 5.0
    window: float = 480.0

    def update(self, struck: Counted, time: float) -> tuple[Counted, bool]:
        """One more alarm.

        Args:
          struck: before it.
          time: of the alarm, in seconds of any clock.

        Returns:
          What is counted after it, and whether it is raised.
        """
        if struck.last is not None and time - struck.last < self.cooldown * MINUTE:
            return struck, False
        counted = (*struck.counted, time)[-self.number :]
        if len(counted) == self.number and time - counted[0] <= self.window * MINUTE:
            return Counted((), time), True
        return Counted(counted, time), False
