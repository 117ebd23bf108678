"""Ends a run that is no further from the golden one than a twin: a premise, which the plan has followed up at random.

A twin is a fault-free run, so a run that cannot be told from one by its distance to the golden run is taken to end as
a twin does: *Masked*.  Nothing proves it.  So a share of these runs is followed all the same (`Plan.settled_follow`),
and rates allow for what these have not seen (`tally`).

To look at a distance takes the golden run's state after the same step.  It is at hand after the fault's step, and where
the golden run keeps a checkpoint between epochs.  From there on the golden run is taken along for as long as the
distance is small, so that a run which is far away costs nothing.
"""

from collections.abc import Callable

import jax
import numpy as np

from ...runs.follow import follow
from ...runs.golden_run import Golden, Repeats
from ...runs.records import Epoch
from ...runs.steps import Address, Observer, numbered
from ...runs.twin_distance import distance
from ...seam.leaves import State
from ...seam.report import StepReport
from .result import SETTLED, Comparison


class Settled(Observer):
    """Compares a run with the golden one where that is cheap, and ends it once it has settled.

    A run is as near as a twin after a step if in each leaf its largest difference to the golden run is within
    `twin_distance.limits_of`, and leaves that hold no numbers are the golden run's bit by bit.  What is not a number is
    never near.

    Attributes:
      after: steps after the faulty one at which it settled; None while it has not.
      golden_steps: steps of the golden run that were taken beside it.

    Args:
      golden: the golden run, made to its end.
      steps: as how many consecutive steps it has to be near.
      limits: float32 [steps of the training, leaves], the largest distances of a twin.
      since: number of steps from the fault to an address.
      record: the golden record of an epoch.
      golden_after: the golden state after an address that is not before the fault.
      last_strike: number of steps from the fault to the last step that it strikes; nothing settles before.
      ends: whether the run ends there, or goes on to its end all the same.
    """

    def __init__(
        self,
        golden: Golden,
        steps: int,
        limits: np.ndarray,
        since: Callable[[Address], int],
        record: Callable[[int], Epoch],
        golden_after: Callable[[Address], State],
        last_strike: int,
        ends: bool,
    ):
        self._golden, self._steps, self._limits, self._since, self._record = golden, steps, limits, since, record
        self._golden_after, self._last_strike, self._ends = golden_after, last_strike, ends
        self._per_epoch, self._repeats = golden.program.steps_per_epoch, Repeats(golden)
        leaves = jax.tree.leaves(golden.program.state.abstract)
        self._numberless = np.array([not jax.numpy.issubdtype(leaf.dtype, np.inexact) for leaf in leaves])
        self._beside: State | None = None
        self._near = 0
        self.after: int | None = None
        self.golden_steps = 0

    def after_step(self, at: Address, state: State, report: StepReport) -> str | None:
        if self.after is not None or self._since(at) < self._last_strike:
            return None
        self._beside = self._golden_beside(at)
        if self._beside is None:
            return None
        if not self._as_near_as_a_twin(at, state, report):
            self._beside, self._near = None, 0
            return None
        self._near += 1
        if self._near < self._steps:
            return None
        self.after, self._beside = self._since(at), None
        return SETTLED if self._ends else None

    def _golden_beside(self, at: Address) -> State | None:
        """The golden state after a step, if it is at hand, or if the golden run was taken along so far."""
        if self._beside is not None:
            self.golden_steps += 1
            return follow(self._golden.program, self._beside, [at], observers=[self._repeats]).state
        if len(self._limits) - numbered(at, self._per_epoch) <= self._steps:
            return None  # too late to settle before the end
        if self._since(at) == self._last_strike:
            self.golden_steps += self._last_strike
            return self._golden_after(at)
        if at.step == self._per_epoch - 1 and at.epoch + 1 in self._golden.store.checkpoints():
            return self._golden.fetch_state_before(at.epoch + 1)
        return None

    def _as_near_as_a_twin(self, at: Address, state: State, report: StepReport) -> bool:
        apart = np.asarray(jax.device_get(distance(state, self._beside)))
        differs = np.asarray(report.digest) != self._record(at.epoch)["digest"][at.step]
        near = apart <= self._limits[numbered(at, self._per_epoch)]  # what is not a number is not
        return bool(near.all() and not differs[self._numberless].any())

    def sentence(self) -> str:
        """Why the run need not be followed, once it has settled."""
        after = "the faulty step" if not self.after else f"step {self.after} after the faulty one"
        return (
            f"settled: for {self._steps} step(s), up to {after}, no array of the state was further from the golden "
            "run's than twins are"
        )

    def comparison(self) -> Comparison:
        """What the store keeps of it."""
        return Comparison(self.after, int(self._ends and self.after is not None), self.golden_steps)
