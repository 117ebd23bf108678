"""The steps of a run by their addresses, and who looks at them."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

from ..seam.leaves import State
from ..seam.measure import Evaluation
from ..seam.report import StepReport

Again = Callable[["Address", State], StepReport]  # takes a step again; see `Observer.starts`


class Address(NamedTuple):
    """A step of a training, both numbers counted from 0."""

    epoch: int
    step: int


class Back(NamedTuple):
    """What an observer gives to have steps undone, the one just done and those right before it.

    Attributes:
      steps: how many.
      again: whether they are executed again; otherwise the run goes on without their updates.
    """

    steps: int
    again: bool


class Observer:
    """Looks at a run as it goes on, and may end it by giving a reason, or have steps undone.

    An observer keeps its own memory and changes nothing else.  The methods here do nothing.
    """

    def starts(self, at: Address, state: State, again: Again) -> None:
        """Before each step that does not follow on the one before: the first, and after a load or steps undone.

        Args:
          at: the step.
          state: the state before it, which the step consumes.
          again: takes a step again on the same device, with what lasts of the fault, from a copy of the state
            before the step, which it consumes.  Returns what the step says of itself, on the host.
        """

    def after_step(self, at: Address, state: State, report: StepReport) -> "str | Back | None":
        """After each step.

        Args:
          at: the step just done.
          state: the state after it, which the next step consumes.
          report: what the step said of itself, on the host.

        Returns:
          Why the run ends here, which steps are undone, or None to go on.
        """

    def undone(self, at: Address) -> None:
        """The steps from `at` on are undone, and executed again.  An epoch among them ends again, too."""

    def after_epoch(self, epoch: int, state: State, evaluate: Callable[[], Evaluation]) -> str | None:
        """After the last step of an epoch.

        Args:
          epoch: the one that ended.
          state: the state after it.
          evaluate: evaluates the state, once for all observers, if one asks.

        Returns:
          Why the run ends here, or None to go on.
        """


def addresses(first: Address, last: Address, steps_per_epoch: int) -> Iterator[Address]:
    """The steps from `first` to `last`, both included.

    >>> [tuple(at) for at in addresses(Address(0, 1), Address(1, 0), steps_per_epoch=3)]
    [(0, 1), (0, 2), (1, 0)]
    """
    for number in range(numbered(first, steps_per_epoch), numbered(last, steps_per_epoch) + 1):
        yield Address(*divmod(number, steps_per_epoch))


def numbered(at: Address, steps_per_epoch: int) -> int:
    """The number of a step over all epochs.

    >>> numbered(Address(2, 1), steps_per_epoch=10)
    21
    """
    return at.epoch * steps_per_epoch + at.step


def horizon_or_end(epochs: int, steps_per_epoch: int, fault: Address, horizon: int | None) -> Address:
    """The step that is `horizon` steps after a fault, or the training's last where that comes first.

    >>> tuple(horizon_or_end(3, 10, Address(1, 8), horizon=5))
    (2, 3)

    Args:
      epochs, steps_per_epoch: of the training.
      horizon: None goes on to the end of the training.
    """
    end = epochs * steps_per_epoch - 1
    last = end if horizon is None else min(numbered(fault, steps_per_epoch) + horizon, end)
    return Address(*divmod(last, steps_per_epoch))
