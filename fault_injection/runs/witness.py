"""What a faulty step did, compared with its fault."""

import numpy as np

from ..machine.errors import Untrustworthy
from ..models.bits import rewritten
from ..models.fault import Fault, Operand, Struck
from ..models.site import Site
from ..seam.leaves import State
from ..seam.report import StepReport
from .steps import Address, Observer


class FaultNotApplied(Untrustworthy):
    """The step did not do what the fault says: a defect of this program or of the machine."""


class Witness(Observer):
    """Compares what every faulty step reports with the fault, and holds what the first one reports that was struck.

    Attributes:
      struck: what the fault did at the first step that ran the operation; as long as none has, at the first that it
        names; None before that one.
    """

    def __init__(self, site: Site, fault: Fault, at: Address, struck: Struck | None = None):
        self._site, self._fault, self._at = site, fault, at
        self.struck = struck

    @property
    def nothing(self) -> bool:
        """Whether each step so far that the fault names has left the operation out."""
        return self.struck is None or left_out(self._site, self.struck)

    def after_step(self, at: Address, state: State, report: StepReport) -> None:
        """Look at the step; raises FaultNotApplied where its observations contradict the fault."""
        due = self.struck is None and at == self._at  # executed again, it may be without the fault
        if due or report.struck is not None:
            absent = left_out(self._site, report.struck)
            struck = check_struck(self._site.name, self._fault, report.struck, absent)
            if self.nothing:
                self.struck = struck


def left_out(site: Site, struck: Struck | None) -> bool:
    """Whether a step has left out an operation that it may leave out, such as one in a branch not taken."""
    return site.conditional and struck is not None and int(struck.hits) == 0


def check_struck(site: str, fault: Fault, struck: Struck | None, absent: bool = False) -> Struck:
    """Compare the step's observations with the fault: exactly the listed elements changed, to the bits asked for.

    Where the operand is the operation's result, the result has changed in just these elements too.

    The new bits of an element that is a copy of another cannot be told beforehand, and are not compared.

    Args:
      absent: the step has left the operation out, see `left_out`; then nothing may have changed.

    Raises:
      FaultNotApplied: they contradict it.
    """
    if struck is None:
        raise FaultNotApplied(f"{site}: the step has no fault support")
    if absent:
        if struck.operand_changed or struck.output_changed:
            raise FaultNotApplied(f"{site}: elements changed of an operation that was left out")
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
