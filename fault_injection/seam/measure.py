"""What a run is judged by: the metric of its loss head, and what has to stay finite."""

import dataclasses
import math
from typing import Any, NamedTuple

NONFINITE_RULES = ("loss", "state")  # what has to stay finite for a run to go on, see `finite`; the first by default

BETTER = ("higher", "lower")


@dataclasses.dataclass(frozen=True)
class Measure:
    """What a loss head measures: by this metric runs are compared and judged.

    Attributes:
      name: of the metric, such as `accuracy`; `loss` where the loss itself is the metric.
      better: `higher` or `lower`.
      chance: what guessing gives.
      tolerance: a run whose metric at the end is worse by no more than this is no worse.
      limits: smallest and largest possible value, None where there are none.

    Raises:
      ValueError: one of them is none of these.

    >>> accuracy = Measure("accuracy", "higher", chance=0.1, tolerance=0.02, limits=(0.0, 1.0))
    >>> accuracy.worse(0.75, 0.5) > accuracy.tolerance
    True
    """

    name: str
    better: str
    chance: float
    tolerance: float
    limits: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        if self.better not in BETTER:
            raise ValueError(f"better is {self.better!r:.60}; expected one of {', '.join(BETTER)}")
        for name, least in (("chance", -math.inf), ("tolerance", 0.0)):
            value = getattr(self, name)
            if not _is_number(value) or value < least:
                raise ValueError(f"{name} is {value!r:.60}; expected a number" + (" from 0" if least == 0 else ""))
        if self.limits is not None:
            if len(self.limits) != 2 or not all(map(_is_number, self.limits)) or self.limits[0] >= self.limits[1]:
                raise ValueError(f"limits are {self.limits!r:.60}; expected the smallest and the largest value")
            object.__setattr__(self, "limits", tuple(self.limits))  # in JSON it was a list

    def worse(self, golden: Any, faulty: Any) -> Any:
        """By how much `faulty` is worse than `golden`; negative where it is better.

        >>> Measure("accuracy", "higher", 0.1, 0.02).worse(0.75, 0.5)
        0.25
        >>> Measure("loss", "lower", 2.3, 0.05).worse(0.75, 0.5)
        -0.25
        """
        return golden - faulty if self.better == "higher" else faulty - golden

    def lead(self, value: Any) -> Any:
        """How much better than guessing `value` is."""
        return self.worse(value, self.chance)

    @property
    def span(self) -> float:
        """What a lead over guessing is small or large in comparison with.

        It is the distance between the limits, 1 for an accuracy.  A metric without limits, such as a
        loss, has the size of what guessing gives.

        >>> Measure("accuracy", "higher", 0.1, 0.02, (0.0, 1.0)).span
        1.0
        >>> Measure("loss", "lower", 2.3, 0.05).span
        2.3
        """
        return self.limits[1] - self.limits[0] if self.limits else abs(self.chance)


def _is_number(value: object) -> bool:
    """Whether it is a finite number."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


class Evaluation(NamedTuple):
    """Mean loss and metric over the test data."""

    loss: float
    metric: float
