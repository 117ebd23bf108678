"""Looks at a faulty run's first steps, and ends it where its conditions say that it need not be followed."""

from collections.abc import Callable, Collection
from typing import NamedTuple

import numpy as np

from ...runs.records import PER_STEP, Epoch, Run, StepRow
from ...runs.steps import Address, Observer
from ...seam.leaves import MEANS, SUMS, Role, State
from ...seam.report import StepReport
from ...seam.state_spec import StateSpec
from .conditions import CONDITIONS, Conditions, Rule, Seen


class Envelope:
    """How far a run is from the golden one after the same step: every array of the state is compared.

    Args:
      state: what it consists of.
    """

    def __init__(self, state: StateSpec, conditions: Conditions):
        self._conditions, first = conditions, len(state.gradients)
        norms = {first + place for place in state.norms}
        statistics = [state.positions(role) for role in (Role.STATISTIC, Role.VARIANCE)]
        self._moments = [
            *(state.positions(Role.HISTORY, moment) for moment in state.moments),
            _gradients(state),
            *([at for at in arrays if at not in norms] for arrays in statistics),  # every step reads these
        ]
        self._statistics = [[at for at in arrays if at in norms] for arrays in statistics]
        self._parameters = state.positions(Role.PARAMETER)
        places = {leaf.name: place for place, leaf in enumerate(state.leaves)}
        self._of_parameters = state.places(Role.PARAMETER)
        self._owners = [  # pairs of a moment, as it is watched, and its parameter; all where that is not known
            (first + place, [places[leaf.parameter]] if leaf.parameter else self._of_parameters)
            for place, leaf in enumerate(state.leaves)
            if leaf.role == Role.HISTORY
        ]
        self._unknown, self._norms = state.places(Role.OTHER), state.norms

    def after(self, seen: Seen, report: StepReport, golden: StepRow, before: StepRow | None) -> Seen:
        """What has been seen after one more step.

        Args:
          golden: the golden run's same step.
          before: its step before; None in the faulty step, whose own loss is not judged.
        """
        value = np.asarray(report.magnitude, np.float64)  # a quotient of two float32 may exceed the largest
        largest = np.array(golden.magnitude, np.float64)
        for arrays in (*self._moments, *self._statistics, self._parameters):
            if arrays:
                largest[arrays] = np.maximum(largest[arrays], self._conditions.floor * largest[arrays].max())
        outside = np.where(value == 0, 0, np.inf)  # where the golden run has nothing but zeros
        ratio = np.divide(value, largest, out=outside, where=largest > 0)
        gap = 0.0 if before is None else abs(float(report.loss) - float(golden.loss))
        differs = np.asarray(report.digest) != golden.digest
        updated = before is not None and bool((golden.digest != before.digest)[self._of_parameters].any())
        apart = seen.apart or (before is None and bool(differs[self._norms].any()))
        return Seen(
            history=_worst((seen.history, *(_worst(ratio[arrays]) for arrays in self._moments))),
            variance=_worst((seen.variance, *(_worst(ratio[arrays]) for arrays in self._statistics))),
            loss_gap=_worst((seen.loss_gap, gap)),
            parameters=_worst((seen.parameters, _worst(ratio[self._parameters]))),
            finite=seen.finite and bool(np.isfinite(value).all()),
            updates=self._updates(seen, differs, ratio, updated),
            unknown=bool(differs[self._unknown].any()),
            apart=apart and not np.delete(differs, self._norms).any(),
        )

    def _updates(self, seen: Seen, differs: np.ndarray, ratio: np.ndarray, updated: bool) -> int | None:
        """See `Seen.updates`: a moment that is larger than the golden run's is on its way to its parameter."""
        if seen.updates is not None:
            return seen.updates + updated
        above = [own for moment, own in self._owners if ratio[moment] > self._conditions.at_once]
        waits = not all(differs[own].all() for own in above)
        return None if waits or not differs[self._of_parameters].any() else 0


def _gradients(state: StateSpec) -> list[int]:
    """Positions of the gradients, or updates, that no moment of a known meaning shows."""
    shown = {leaf.parameter for leaf in state.leaves if leaf.kind in (*MEANS, *SUMS)}
    parameters = [state.leaves[place].name for place in state.places(Role.PARAMETER)]
    gradients = state.positions(Role.GRADIENT)
    if len(parameters) != len(gradients):
        return gradients
    return [at for at, name in zip(gradients, parameters, strict=True) if name not in shown]


class Early(NamedTuple):
    """An early verdict.

    Attributes:
      rule: by which the run need not be followed.
      after: how many steps after the faulty one.
      run: what it comes to: as far as it was recorded, or projected as far as the golden run goes.
      first_nonfinite: steps after the faulty one, or None.
    """

    rule: Rule
    after: int
    run: Run
    first_nonfinite: int | None


class EarlyVerdict(Observer):
    """Looks at the faulty step and the ones right after it, and ends a run that need not be followed.

    Attributes:
      seen: what those steps have shown, up to the verdict.
      given: the verdict, None while there is none.

    Args:
      since: number of steps from the fault to an address.
      record: the golden record of an epoch.
      reached: what a run comes to by a rule, and when it is not finite; None where the rule gives no verdict.
      ends: whether the run ends there, or goes on to its end all the same.
      trusted: the rules that may give it; a run that meets another one first has no early verdict.
      premises, unread: see `Conditions.rule`.
    """

    def __init__(
        self,
        envelope: Envelope,
        conditions: Conditions,
        since: Callable[[Address], int],
        record: Callable[[int], Epoch],
        reached: Callable[[Rule, Seen], tuple[Run, int | None] | None],
        ends: Callable[[Early, Seen], bool],
        trusted: Collection[Rule] = tuple(Rule),
        premises: bool = True,
        unread: bool = False,
    ):
        self._envelope, self._conditions, self._since, self._record = envelope, conditions, since, record
        self._reached, self._ends = reached, ends
        self._trusted, self._premises, self._unread = trusted, premises, unread
        self._looks = True
        self._before: StepRow | None = None
        self.seen = Seen()
        self.given: Early | None = None

    def after_step(self, at: Address, state: State, report: StepReport) -> str | None:
        if not self._looks or (self.seen.updates or 0) > self._conditions.steps:
            return None
        steps, epoch = self._since(at), self._record(at.epoch)
        golden = StepRow(*(epoch[name][at.step] for name in PER_STEP))
        self.seen = self._envelope.after(self.seen, report, golden, self._before)
        self._before = golden
        rule = self._conditions.rule(steps, self.seen, self._premises, self._unread)
        if rule is None or (reached := self._reached(rule, self.seen)) is None:
            return None
        self._looks = False
        if rule not in self._trusted:
            return None
        self.given = Early(rule, steps, *reached)
        return CONDITIONS if self._ends(self.given, self.seen) else None


def _worst(values: object) -> float:
    """The largest, not a number being larger than any; 0 of none."""
    return float(np.max(np.asarray(values, np.float64), initial=0.0))
