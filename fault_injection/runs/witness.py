"""What a faulty step did, compared with its faults."""

from collections.abc import Sequence

import numpy as np

from ..machine.errors import Untrustworthy
from ..models.bits import rewritten
from ..models.fault import Fault, Operand, Struck, each_of
from ..models.site import Site
from ..seam.leaves import State
from ..seam.report import StepReport
from .steps import Address, Observer
from .strikes import Numbers, Strike


class FaultNotApplied(Untrustworthy):
    """The step did not do what the fault says: a defect of this program or of the machine."""


class Witness(Observer):
    """Compares what every faulty step reports with its faults, and holds what the first one reports of each.

    Attributes:
      struck: what each fault did at the first step that ran its operation; as long as none has, at the first that it
        names; None before that one.
      at: that step of each fault.

    Args:
      strikes: the faults of the run.
      steps: the numbers of those that strike at each step.
      again: the same of a step that is taken again.
      struck, at: what they did and when, where steps that they name have been taken already.
    """

    def __init__(
        self,
        strikes: Sequence[Strike],
        steps: Numbers,
        again: Numbers,
        struck: Sequence[Struck | None] = (),
        at: Sequence[Address | None] = (),
    ):
        self._strikes, self._steps, self._again = strikes, steps, again
        self._taken: set[Address] = set()
        self.struck = list(struck) or [None] * len(strikes)
        self.at = list(at) or [None] * len(strikes)

    @property
    def nothing(self) -> bool:
        """Whether each step so far that a fault names has left its operation out, or has no element that fits it."""
        return all(map(self._nothing_of, range(len(self._strikes))))

    @property
    def why_nothing(self) -> str:
        """Why nothing was struck, where nothing was."""
        if all(strike.fault.rule is None for strike in self._strikes):
            return "the operation was left out of every step taken that the fault names"
        left = " or it was left out" if any(strike.site.conditional for strike in self._strikes) else ""
        return f"no element fitted the profile in any step taken that the fault names{left}"

    def _nothing_of(self, number: int) -> bool:
        struck = self.struck[number]
        return struck is None or left_out(self._strikes[number].site, struck)

    def after_step(self, at: Address, state: State, report: StepReport) -> None:
        """Look at the step; raises FaultNotApplied where its observations contradict a fault."""
        due = (self._again if at in self._taken else self._steps).get(at, ())
        told = each_of(report.struck)
        if len(told) != len(due):
            names = ", ".join(self._strikes[number].site.name for number in due) or "nothing"
            raise FaultNotApplied(f"{names}: the step tells of {len(told)} faults, expected {len(due)}")
        for number, found in zip(due, told, strict=True):
            self._taken.add(at)
            strike = self._strikes[number]
            struck = check_struck(strike.site.name, strike.fault, found, left_out(strike.site, found))
            if self.struck[number] is None or (self._nothing_of(number) and not left_out(strike.site, struck)):
                self.struck[number], self.at[number] = struck, at


def left_out(site: Site, struck: Struck | None) -> bool:
    """Whether nothing was struck, as it may be.

    A step may leave out an operation, such as one in a branch not taken; and no element may fit a rule.
    """
    return struck is not None and int(struck.hits) == 0 and (site.conditional or struck.matched is not None)


def check_struck(site: str, fault: Fault, struck: Struck | None, absent: bool = False) -> Struck:
    """Compare the step's observations with the fault: exactly the listed elements changed, to the bits asked for.

    Where the operand is the operation's result, the result has changed in just these elements too.

    The new bits of an element that is a copy of another cannot be told beforehand, and are not compared.

    Args:
      absent: nothing was struck, see `left_out`; then nothing may have changed.

    What a rule strikes only the step knows.  Of it the counts are compared: no more elements changed than fit.

    Raises:
      FaultNotApplied: they contradict it.
    """
    if struck is None:
        raise FaultNotApplied(f"{site}: the step has no fault support")
    if absent:
        if struck.operand_changed or struck.output_changed:
            raise FaultNotApplied(f"{site}: elements changed of an operation that was not struck")
        return struck
    if fault.rule is not None:
        matched, changed = int(struck.matched[0]), int(struck.operand_changed)
        of_result = fault.operand == Operand.OUTPUT and int(struck.output_changed) != changed
        if int(struck.hits) != 1 or changed > matched or of_result:
            told = f"{matched} elements fit, {changed} and {int(struck.output_changed)} of the result changed"
            raise FaultNotApplied(f"{site}: the step contradicts the rule: {told}")
        return struck
    listed = fault.index >= 0
    known = listed & ((fault.keep == 0) | (fault.source == fault.index))
    wanted = rewritten(struck.old, fault.keep, fault.flip)
    changed = int(np.sum((struck.old != struck.new)[listed]))
    found = {
        "operations struck": (int(struck.hits), 1),
        "listed elements with the listed bits": (int(np.sum((struck.new == wanted)[known])), int(np.sum(known))),
        "elements of the operand changed": (int(struck.operand_changed), changed),
    }
    if fault.operand == Operand.OUTPUT:
        found["elements of the result changed"] = (int(struck.output_changed), changed)
    for what, (observed, expected) in found.items():
        if observed != expected:
            raise FaultNotApplied(f"{site}: {what}: {observed}, expected {expected}")
    return struck
