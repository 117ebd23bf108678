"""Recovery: what is done at an alarm.  The engine does it, when a `Watch` asks for it."""

from ..runs.follow import Back

RECOVERIES = {
    "rewind": Back(2, again=True),  # the state before the last two steps, which are executed again
    "recompute": Back(1, again=True),  # the step is executed again
    "skip": Back(1, again=False),  # the update of the step is withheld
}
