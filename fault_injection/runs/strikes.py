"""The faults of a run: what each strikes, with what, from which step on, and which of them strike at which step."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ..faults.injection import Injection
from ..faults.schedule import ONCE, Schedule
from ..models.fault import Fault, inactive_fault
from ..models.rule import at_strike
from ..models.site import Site
from ..seam.stages import BESIDE, CHECKPOINT
from .steps import Address, numbered

Numbers = Mapping[Address, tuple[int, ...]]  # of faults, by the step that they strike


class Strike(NamedTuple):
    """One fault of a run.

    Attributes:
      site, fault: what is struck, and with what.
      at: the first step struck.
      schedule: when it strikes again.
    """

    site: Site
    fault: Fault
    at: Address
    schedule: Schedule = ONCE

    @property
    def lasting(self) -> bool:
        """Whether a step that is taken again is struck again.  It does not load a checkpoint again."""
        return self.schedule.lasting and self.site.stage != CHECKPOINT

    def inactive(self) -> Fault:
        """A fault that strikes nothing, and that a step takes as it takes this one."""
        site = self.fault.site if self.site.stage in BESIDE else None
        return inactive_fault(len(self.fault.index), site, self.fault.keep.dtype, self.fault.rule is not None)

    def at_strike(self, number: int) -> Fault:
        """The fault as it strikes for the time `number`, from 0: a rule draws its chance anew, and may have grown."""
        if self.fault.rule is None:
            return self.fault
        return dataclasses.replace(self.fault, rule=at_strike(self.fault.rule, number))


def strikes_of(injection: Injection) -> tuple[Strike, ...]:
    """Each fault of an injection, the first in time first."""
    return tuple(Strike(one.site, one.fault(), Address(one.epoch, one.step), one.schedule) for one in injection.every)


def struck_steps(strikes: Sequence[Strike], epochs: int, steps_per_epoch: int, seed: int) -> Numbers:
    """The numbers of the faults that strike at each step of a training."""
    found: dict[Address, tuple[int, ...]] = {}
    for number, strike in enumerate(strikes):
        first = numbered(strike.at, steps_per_epoch)
        for after in strike.schedule.times(epochs * steps_per_epoch - first, seed):
            at = Address(*divmod(first + after, steps_per_epoch))
            found[at] = (*found.get(at, ()), number)
    return found


def faults_of_steps(strikes: Sequence[Strike], steps: Numbers) -> dict[Address, tuple[Fault, ...]]:
    """The faults of each step that is struck, as they are then."""
    done, found = [0] * len(strikes), {}
    for at in sorted(steps):
        found[at] = tuple(strikes[number].at_strike(done[number]) for number in steps[at])
        for number in steps[at]:
            done[number] += 1
    return found


def controls(strikes: Sequence[Strike], steps: Numbers) -> list[tuple[Fault, ...]]:
    """Inactive faults for each executable that strikes in a run, those of the first step struck first.

    What a step is compiled for are the numbers of elements and the types of masks of the faults that strike at it.
    """
    found: dict[Any, tuple[Fault, ...]] = {}
    for at in sorted(steps):
        inactive = tuple(strikes[number].inactive() for number in steps[at])
        kinds = ((len(one.index), str(one.keep.dtype), int(one.site), one.rule is not None) for one in inactive)
        found.setdefault(tuple(kinds), inactive)
    return list(found.values())
