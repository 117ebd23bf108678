"""Recovery: what is done at an alarm.  The engine does it, when a watcher asks for it."""

from collections.abc import Callable

from ..machine.errors import InputError
from ..models.observe.reductions import WHOLE
from ..runs.steps import Back
from ..seam.leaves import State
from ..seam.program import Program
from ..seam.report import StepReport

INVERSE = "inverse"
RECOVERIES = {
    "rewind": Back(2, again=True),  # the state before the last two steps, which are executed again
    "recompute": Back(1, again=True),  # the step is executed again
    "skip": Back(1, again=False),  # the update of the step is withheld
    INVERSE: Back(2, again=True),  # as rewind, but the states are calculated back
}


def needed(recovery: str | None) -> frozenset[str]:
    """What steps have to report for a recovery, of `models.observe.reductions.CHOICES`."""
    return frozenset({WHOLE}) if recovery == INVERSE else frozenset()


def undoing(recovery: str | None, program: Program) -> Callable[[State, StepReport], State] | None:
    """How steps are undone: by the optimizer's inverse, or None where states are kept.

    Raises:
      InputError: the optimizer has no inverse.
    """
    if recovery != INVERSE:
        return None
    if program.extras.undo is None:
        raise InputError("recovery inverse needs an optimizer with an algebraic inverse: Adam or SGD as Keras has them")
    return program.extras.undo
