"""One faulty run: of which golden run, where it is struck, with what, what lasts, and how it ends."""

import functools
from collections.abc import Callable, Sequence

from ..models.fault import Struck
from ..seam.leaves import State
from ..seam.report import StepReport
from .exits import EXACT, ExactlyMasked, FirstNonFinite
from .follow import Followed, follow
from .golden_run import Golden
from .outcome import Noise, Outcome, Thresholds, verdict_of
from .records import Epoch, Recorder, Run
from .steps import Address, Observer, addresses, numbered
from .strikes import Strike, faults_of_steps, struck_steps
from .witness import Witness


class Course:
    """A faulty run: replays, experiments, and runs with detectors or recoveries are all assembled here.

    Each fault strikes as its schedule says to the end of the training, whatever the horizon; so nothing is exactly
    masked as long as one may strike again.  A step that is taken again, after a recovery or by a detector, is struck
    again by what lasts: `Schedule.lasting`.

    Attributes:
      at: the first step struck.
      end: the last step of the training.
      faults: what strikes at which step, one fault or several.
      recorder, witness, nonfinite, masked: what has looked at its steps.
      ended: the reason that an observer gave; None while there is none.

    Args:
      golden: the fault-free run, whose program takes the steps.
      strikes: the faults, the first in time first.
      nonfinite: one of `NONFINITE_RULES`: by which it ends.
      record: the golden record of an epoch.
      golden_after: the golden state after a step from `at` on.
      noise: spread over the golden run's twins, see `verdict_of`.
      recorder: has recorded the steps before the first one to be taken.
      struck, struck_at: what each fault did and when, where steps that they name have been taken already.
      masked_ends: whether it ends where its state is the golden one again.
    """

    def __init__(
        self,
        golden: Golden,
        strikes: Sequence[Strike],
        nonfinite: str = Thresholds().nonfinite,
        *,
        record: Callable[[int], Epoch],
        golden_after: Callable[[Address], State],
        noise: Callable[[int], Noise | None],
        recorder: Recorder,
        struck: Sequence[Struck | None] = (),
        struck_at: Sequence[Address | None] = (),
        masked_ends: bool = True,
    ):
        workload, self._program = golden.workload, golden.program
        self._steps = self._program.steps_per_epoch
        self.at, self.end = strikes[0].at, Address(workload.epochs - 1, self._steps - 1)
        steps = struck_steps(strikes, workload.epochs, self._steps, workload.seed)
        again = {at: tuple(number for number in steps[at] if strikes[number].lasting) for at in steps}
        self.faults = faults_of_steps(strikes, steps)
        self._lasting = {
            at: tuple(fault for fault, number in zip(self.faults[at], steps[at], strict=True) if number in again[at])
            for at in steps
        }
        self.recorder, self.witness = recorder, Witness(strikes, steps, again, struck, struck_at)
        self.nonfinite = FirstNonFinite(self.since, nonfinite)
        last_strike = self.since(max(self.faults))
        self.masked = ExactlyMasked(self.since, record, golden_after, masked_ends, last_strike)
        self.ended: str | None = None
        self._judge = functools.partial(
            verdict_of,
            golden=record,
            fault=self.at,
            watched=self._program.state.watched,
            noise=noise,
            thresholds=Thresholds(nonfinite=nonfinite),
        )

    def since(self, at: Address) -> int:
        """The number of steps from the fault to an address."""
        return numbered(at, self._steps) - numbered(self.at, self._steps)

    def later(self, steps: int) -> Address:
        """The address that lies this number of steps after the fault."""
        return Address(*divmod(numbered(self.at, self._steps) + steps, self._steps))

    def take(
        self,
        state: State,
        first: Address,
        last: Address,
        watching: Sequence[Observer] = (),
        *,
        before: Sequence[Observer] = (),
        after: Sequence[Observer] = (),
        past_nonfinite: bool = False,
        keep: int = 0,
        undo: Callable[[State, StepReport], State] | None = None,
    ) -> Followed:
        """Take the steps from `first` to `last`, or to where something ends the run.

        Args:
          state: the state before `first`; a step that is not struck consumes it.
          watching: observers that may have steps undone, asked before the run can end.
          before, after: observers asked before and after all others.
          past_nonfinite: go on after a value that is not finite.
          keep, undo: see `follow`.
        """
        ends = [self.masked] if past_nonfinite else [self.nonfinite, self.masked]
        observers = [*before, self.recorder, self.witness, *watching, *ends, *after]
        steps = addresses(first, last, self._steps)
        followed = follow(self._program, state, steps, self.faults, observers, keep, undo, self._lasting)
        self.ended = followed.ended
        return followed

    @property
    def struck(self) -> Struck:
        """What the first fault did at the first step that it struck, see `Witness`."""
        struck = self.witness.struck[0]
        assert struck is not None  # the faulty step was taken
        return struck

    def judged(
        self, run: Run, finished: bool, first_nonfinite: int | None = None, exactly_masked_after: int | None = None
    ) -> Outcome:
        """The verdict on any run with this fault; see `verdict_of`."""
        return self._judge(
            run,
            measure=self._program.measure(),
            finished=finished,
            first_nonfinite=first_nonfinite,
            exactly_masked_after=exactly_masked_after,
        )

    def verdict(self, finished: bool, run: Run | None = None) -> Outcome:
        """The verdict on the run as it has ended.

        Args:
          finished: whether it was to reach the end of the training.
          run: what it comes to, where more is known than was recorded.
        """
        masked_after = self.masked.after if self.ended == EXACT else None
        found = self.judged(run or self.recorder.run, finished, self.nonfinite.first, masked_after)
        return found.of_nothing(self.witness.why_nothing) if self.witness.nothing else found
