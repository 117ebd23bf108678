"""When a fault strikes, from its first step on: once, at every step, periodically, or at random; and for how long."""

import dataclasses
import re
from collections.abc import Iterator
from typing import Self

import numpy as np

from ..machine.reading import Kind, number, whole

AT_LEAST = 2  # steps that a schedule lasts: one step is `once`


@dataclasses.dataclass(frozen=True)
class Schedule:
    """When a fault strikes after its first step.

    A fault that strikes once is *transient*; one that strikes at every step *permanent*; at random, *intermittent*.

    Attributes:
      every: the number of steps from one strike to the next; 0 where there is no next.
      probability: it strikes at each later step with this probability.
      steps: how many steps it lasts, its first one included; None lasts to the end of the training.
      attempts: whether a step that is executed again is struck again; None asks whether the fault is still there: one
        that strikes at every step is.
      device: tells faults apart that strike with the same probability: each has its own chance.

    >>> [after for after in range(7) if Schedule(every=3).strikes(after, seed=0)]
    [0, 3, 6]
    >>> [after for after in range(7) if Schedule(every=1, steps=3).strikes(after, seed=0)]
    [0, 1, 2]
    """

    every: int = 0
    probability: float = 0.0
    steps: int | None = None
    attempts: bool | None = None
    device: int = 0

    def of_device(self, number: int) -> Self:
        """The schedule of one fault of many: where chance decides, the fault has its own.

        >>> str(Schedule(probability=0.5).of_device(7)), str(Schedule(every=1).of_device(7))
        ('probability 0.5 as device 7', 'permanent')
        """
        return dataclasses.replace(self, device=number) if self.probability else self

    @property
    def single(self) -> bool:
        """Whether it strikes at its first step alone."""
        return not self.every and not self.probability

    @property
    def lasting(self) -> bool:
        """Whether a step that is executed again is struck again: a permanent fault is still there."""
        return self.every == 1 if self.attempts is None else self.attempts

    def strikes(self, after: int, seed: int) -> bool:
        """Whether it strikes `after` steps after its first strike; chance is addressed by seed, step and device."""
        if after == 0:
            return True
        if self.steps is not None and after >= self.steps:
            return False
        if self.probability:
            address = [seed, after, *([self.device] if self.device else [])]
            return bool(np.random.default_rng(address).random() < self.probability)
        return self.every > 0 and after % self.every == 0

    def times(self, steps: int, seed: int) -> Iterator[int]:
        """The steps at which it strikes, counted from its first; `steps` are left in the training, the first included.

        >>> list(Schedule(every=10).times(25, seed=0)), list(Schedule().times(25, seed=0))
        ([0, 10, 20], [0])
        """
        most = min(steps, 1 if self.single else self.steps or steps)
        return (after for after in range(most) if self.strikes(after, seed))

    def __str__(self) -> str:
        """As an injection file and a plan write it.

        >>> str(Schedule()), str(Schedule(every=1)), str(Schedule(every=10)), str(Schedule(probability=0.1))
        ('once', 'permanent', 'every 10', 'probability 0.1')
        >>> str(Schedule(every=1, steps=5)), str(Schedule(every=10, steps=90, attempts=True))
        ('steps 5', 'every 10 for 90 steps at every attempt')
        """
        if self.probability:
            kind = f"probability {self.probability!r}"
        elif self.every == 1 and self.steps is not None:
            kind = f"steps {self.steps}"
        else:
            kind = f"every {self.every}" if self.every > 1 else ("permanent" if self.every else "once")
        limited = self.steps is not None and not kind.startswith("steps")
        length = f" for {self.steps} steps" if limited else ""
        attempt = "" if self.attempts is None else f" at {'every' if self.attempts else 'first'} attempt"
        device = f" as device {self.device}" if self.device else ""
        return kind + length + attempt + device

    def sentence(self) -> str:
        """What it does after its first step, to end a sentence with; empty where nothing is to be said.

        >>> Schedule(every=1, steps=5).sentence()
        ', and again at each of the 4 steps after it'
        >>> Schedule(every=10, attempts=False).sentence()
        ', and again every 10 steps; a step that is executed again is not struck again'
        """
        each = "every later step" if self.steps is None else f"each of the {self.steps - 1} steps after it"
        within = "" if self.steps is None else f" within {self.steps} steps"
        if self.probability:
            later = f", and again at {each} with probability {self.probability!r}"
        elif self.every > 1:
            later = f", and again every {self.every} steps{within}"
        else:
            later = f", and again at {each}" if self.every else ""
        if self.attempts is None:
            return later
        return f"{later}; a step that is executed again is {'' if self.attempts else 'not '}struck again"


WRITTEN = re.compile(
    r"(?:(?P<word>once|permanent)|every (?P<every>\S+)|probability (?P<probability>\S+)|steps (?P<burst>\S+))"
    r"(?: for (?P<steps>\S+) steps)?(?: at (?P<attempt>every|first) attempt)?(?: as device (?P<device>\S+))?"
)


def _parse(text: str) -> Schedule:
    found = WRITTEN.fullmatch(text)
    if found is None or (found["steps"] and (found["word"] or found["burst"])):  # `steps 5` says it in one word
        raise ValueError
    if found["device"] and not found["probability"]:  # nothing else is left to chance
        raise ValueError
    every = 1 if found["word"] == "permanent" or found["burst"] else whole(1).parse(found["every"] or "1")
    length = found["steps"] or found["burst"]
    return Schedule(
        every=0 if found["word"] == "once" or found["probability"] else every,
        probability=number(lambda p: 0 < p < 1, "").parse(found["probability"]) if found["probability"] else 0.0,
        steps=whole(AT_LEAST).parse(length) if length else None,
        attempts=found["attempt"] == "every" if found["attempt"] else None,
        device=whole(1).parse(found["device"]) if found["device"] else 0,
    )


def _expected(text: str) -> str:
    kinds = "once, permanent, steps N (from 2), every N (steps), or probability P (from 0 to 1, per step)"
    more = "these two may go on with 'for N steps', all with 'at every attempt' or 'at first attempt', and the last"
    return f"{kinds}; {more} with 'as device N'"


ONCE = Schedule()
SCHEDULE: Kind[Schedule] = Kind(_parse, _expected)
