"""When a fault strikes, from its first step on: once, at every step, periodically, or at random."""

import dataclasses

import numpy as np

from ..machine.reading import Kind, number, whole


@dataclasses.dataclass(frozen=True)
class Schedule:
    """When a fault strikes after its first step.

    A fault that strikes once is *transient*; one that strikes at every step *permanent*; at random, *intermittent*.

    Attributes:
      every: the number of steps from one strike to the next; 0 where there is no next.
      probability: it strikes at each later step with this probability.

    >>> [after for after in range(7) if Schedule(every=3).strikes(after, seed=0)]
    [0, 3, 6]
    """

    every: int = 0
    probability: float = 0.0

    @property
    def lasting(self) -> bool:
        """Whether a step that is executed again is struck again: a permanent fault is still there."""
        return self.every == 1

    def strikes(self, after: int, seed: int) -> bool:
        """Whether it strikes `after` steps after its first strike; chance is addressed by seed and step."""
        if after == 0:
            return True
        if self.probability:
            return bool(np.random.default_rng([seed, after]).random() < self.probability)
        return self.every > 0 and after % self.every == 0

    def __str__(self) -> str:
        """As an injection file and a plan write it.

        >>> str(Schedule()), str(Schedule(every=1)), str(Schedule(every=10)), str(Schedule(probability=0.1))
        ('once', 'permanent', 'every 10', 'probability 0.1')
        """
        if self.probability:
            return f"probability {self.probability!r}"
        return f"every {self.every}" if self.every > 1 else ("permanent" if self.every else "once")

    def sentence(self) -> str:
        """What it does after its first step, to end a sentence with; empty where it does nothing."""
        if self.probability:
            return f", and again at each later step with probability {self.probability!r}"
        if self.every > 1:
            return f", and again every {self.every} steps"
        return ", and again at every later step" if self.every else ""


def _parse(text: str) -> Schedule:
    words = {"once": Schedule(), "permanent": Schedule(every=1)}
    if text in words:
        return words[text]
    kind, _, value = text.partition(" ")
    if kind == "every":
        return Schedule(every=whole(1).parse(value))
    if kind == "probability":
        return Schedule(probability=number(lambda p: 0 < p < 1, "").parse(value))
    raise ValueError


ONCE = Schedule()
SCHEDULE: Kind[Schedule] = Kind(
    _parse, lambda text: "once, permanent, every N (steps), or probability P (from 0 to 1, per step)"
)
