"""What becomes of a run in which nothing but running statistics differs from the golden run, without training it.

Training does not read running statistics: it normalises by those of its own batch.  Each step moves
them towards the batch's by a constant share, so that their excess over the golden run's shrinks by a
constant factor.  So the run has the golden run's losses, and only its evaluations differ: those of
the golden states whose statistics have the excess that is left.  The factor is measured.
"""

import dataclasses
from collections.abc import Callable

import jax
import numpy as np

from ...runs.exits import FirstNonFinite
from ...runs.follow import follow
from ...runs.golden_run import Golden
from ...runs.records import Epoch, Recorder, Run, rows_of
from ...runs.steps import Address, Observer, addresses
from ...seam.leaves import Batch, Role, State
from ...seam.measure import Evaluation
from ...seam.report import StepReport

ALIKE = 1e-3  # by how much the factors of the elements may differ
NOTICEABLE = 1e-2  # an excess of this share of a golden array's largest value is measured to far better than that

Excess = dict[int, np.ndarray]  # of a running statistic over the golden run's, by the position of its leaf


class Projection(Observer):
    """Remembers the running statistics after the steps that follow the faulty one, and projects the run from them.

    Args:
      golden: the golden run, made as far as the projection goes.
      fault: the faulty step.
      since: number of steps from the fault to an address.
      record: the golden record of an epoch.
      golden_after: the golden state after an address.
      nonfinite: the rule by which the run ends.
    """

    def __init__(
        self,
        golden: Golden,
        fault: Address,
        since: Callable[[Address], int],
        record: Callable[[int], Epoch],
        golden_after: Callable[[Address], State],
        nonfinite: str,
    ):
        self._golden, self._fault, self._since, self._record = golden, fault, since, record
        self._golden_after, self._nonfinite = golden_after, nonfinite
        self._variances, self._statistics = golden.program.state.places(Role.VARIANCE), golden.program.state.norms
        self._seen: dict[Address, Excess] = {}

    def after_step(self, at: Address, state: State, report: StepReport) -> None:
        if self._variances and 1 <= self._since(at) <= 2:
            self._seen[at] = self._fetch(state)

    def project(self, faulty: Run, last: Address, apart: bool = False) -> tuple[Run, int | None] | None:
        """The run from the start of the fault's epoch to `last`, or to a non-finite test loss.

        It has no reports but the golden run's for the steps that `faulty` does not have.

        Args:
          faulty: what was recorded of the run.
          apart: whether nothing but these statistics differs at all.

        Returns:
          The run, and the number of steps from the fault to what was not finite, or None.  None
          where the run cannot be projected: the excess does not shrink by one factor, or the
          golden run does not keep the state after every epoch.
        """
        if len(self._seen) < 2 or self._golden.keep is not None:
            return None
        golden = {at: self._fetch(self._golden_after(at)) for at in self._seen}
        first, second = (
            {i: statistics[i].astype(np.float64) - golden[at][i] for i in self._statistics}
            for at, statistics in self._seen.items()
        )
        factor = self._factor(first, second, golden[next(iter(golden))], apart)
        if factor is None:
            return None
        program = self._golden.program
        known = [rows_of(epoch, len(epoch["step"])) for epoch in faulty.epochs]

        def step(state: State, batch: Batch, epoch: int, step: int) -> tuple[State, StepReport]:
            recorded = known[epoch - faulty.first] if epoch - faulty.first < len(known) else []
            row = recorded[step] if step < len(recorded) else rows_of(self._record(epoch), step + 1)[step]
            after = {i: excess * factor for i, excess in state[1].items()}
            return (epoch, after), StepReport(row.loss, row.metric, row.digest, row.magnitude)

        def evaluate(state: State) -> Evaluation:
            epoch, excess = state
            leaves, structure = jax.tree.flatten(jax.device_get(self._golden.fetch_state_before(epoch + 1)))
            for i, more in excess.items():
                leaves[i] = (leaves[i] + more).astype(leaves[i].dtype)
            return program.evaluate(program.place(jax.tree.unflatten(structure, leaves)))

        # A program whose steps cost nothing; its state is the excess, before the faulty step what it would have been.
        idle = dataclasses.replace(program, batch=lambda epoch, step: None, step=step, evaluate=evaluate)
        start = (self._fault.epoch, {i: excess / factor**2 for i, excess in first.items()})
        recorder = Recorder(Run(self._fault.epoch, (), 0), rows_of(self._record(self._fault.epoch), self._fault.step))
        nonfinite = FirstNonFinite(self._since, self._nonfinite)
        steps = addresses(self._fault, last, program.steps_per_epoch)
        follow(idle, start, steps, observers=[recorder, nonfinite])
        return recorder.run, nonfinite.first

    def _fetch(self, state: State) -> Excess:
        leaves = jax.tree.leaves(state)
        return {i: np.asarray(jax.device_get(leaves[i])) for i in self._statistics}

    def _factor(self, first: Excess, second: Excess, golden: Excess, apart: bool) -> float | None:
        """By what the excess shrinks in a step, where that is one number for all that is large.

        An excess of running statistics alone may be small, and is measured where it is noticeable.  What is
        not noticeable anywhere is taken not to shrink.
        """
        read, least = (self._statistics, NOTICEABLE) if apart else (self._variances, 1.0)
        large = {i: np.abs(first[i]) > least * np.abs(golden[i]).max() for i in read}
        if apart:  # what is infinite stays so
            large = {i: chosen & np.isfinite(first[i]) for i, chosen in large.items()}
        with np.errstate(invalid="ignore"):
            factors = np.concatenate([second[i][large[i]] / first[i][large[i]] for i in read])
        if apart and not factors.size:
            return 1.0
        if not factors.size or not np.isfinite(factors).all() or np.ptp(factors) > ALIKE:
            return None
        factor = float(np.median(factors))
        return factor if 0 < factor < 1 else None
