"""One experiment: fork from the golden run, strike, and look no longer than the verdict needs."""

import dataclasses
import functools
import pathlib
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from models.fault import inactive_fault

from ..runs.faulty_run import check_struck, finite, same_bits
from ..runs.golden_run import Golden, noise_floor
from ..runs.outcome import MASKED, Outcome, Thresholds, Trace, chance, classify
from ..training.explicit import State, StepReport
from ..training.session import Session
from .conditions import Conditions, Envelope, Seen
from .plan import Plan
from .sampling import Choice, choose, draw
from .walk import Walk

# What ended an experiment, and so its verdict.
NONFINITE, EXACT, CONDITIONS, HORIZON, END = "non-finite", "exact", "conditions", "horizon", "end"


@dataclasses.dataclass(frozen=True)
class Result:
    """What came of an experiment: a row of the store but for its key (docs/campaign.md, Store)."""

    number: int
    epoch: int
    step: int
    worker: int
    site: str
    stage: str
    operand: str
    model: str
    value_source: str
    elements: int
    bit: int | None
    first_position: int
    old_bits: int
    new_bits: int
    operand_changed: int
    output_changed: int
    outcome: str
    rule: str
    exit: str
    steps: int
    first_nonfinite: int | None
    exactly_masked_after: int | None
    conditions_after: int | None
    history_excess: float
    variance_excess: float
    loss_gap: float
    worse_train: float | None
    worse_test: float | None
    audit_outcome: str | None
    audit_rule: str | None
    audit_steps: int
    seconds: float
    outside_seconds: float
    setup_seconds: float
    curve: bytes


@dataclasses.dataclass
class Course:
    """The faulty run of one experiment, as far as it was followed.

    Attributes:
      reports: of its steps, the faulty one first.
      evaluations: loss and accuracy on the test images after each epoch that it ended.
      first_nonfinite, exactly_masked_after, conditions_after: steps after the faulty one, or None.
      seen: what its first steps have shown.
    """

    reports: list[StepReport] = dataclasses.field(default_factory=list)
    evaluations: list[tuple[float, float]] = dataclasses.field(default_factory=list)
    first_nonfinite: int | None = None
    exactly_masked_after: int | None = None
    conditions_after: int | None = None
    seen: Seen = dataclasses.field(default_factory=Seen)

    @property
    def since(self) -> int:
        """Steps after the faulty one."""
        return len(self.reports) - 1


def _copy(state: State) -> State:
    """The same on the device, for steps to consume."""
    return jax.tree.map(jnp.copy, state)


class Laboratory:
    """Where experiments of one plan are made: its session, golden run and walks, kept between them.

    Its memory does not grow with the number of experiments: it keeps the golden record, the
    states before and after one step, and the envelopes of two epochs.

    Args:
      golden: of the plan's workload, made as far as experiments go.
      walks: folder of the states that experiments fork from, which are made where they are missing.
    """

    def __init__(
        self, plan: Plan, session: Session, golden: Golden, conditions: Conditions, walks: pathlib.Path
    ) -> None:
        self.plan, self.session, self.golden, self.conditions = plan, session, golden, conditions
        self.walks = walks
        self.record = functools.cache(golden.record)
        self.envelope = functools.lru_cache(maxsize=2)(
            lambda epoch: Envelope(golden, plan.golden_epochs, epoch, conditions)
        )
        self.state = functools.lru_cache(maxsize=2)(lambda epoch, step: Walk(golden, walks, epoch).state_before(step))
        self.noise = functools.cache(lambda window: noise_floor(golden, plan.workload.epochs, window, plan.twins))
        self.controlled: set[int] = set()
        self.stepping = self.setting_up = 0.0

    def run(self, number: int) -> Result:
        """Experiment `number`, to its verdict.

        Raises:
          NotRepeated: the machine does not reproduce the golden run.
          FaultNotApplied: the step's observations contradict the fault.
        """
        begun = time.perf_counter()
        self.stepping = self.setting_up = 0.0
        choice = choose(self.plan, draw(self.plan, number))
        course, ended = self._follow(choice)
        seconds = time.perf_counter() - begun
        return self._result(choice, course, ended, seconds)

    def _follow(self, choice: Choice) -> tuple[Course, str]:
        """The faulty step and those after it, until the plan's exit mode has a verdict."""
        e, spe = choice.experiment, self.session.steps_per_epoch
        end = self.plan.workload.epochs * spe - 1
        last = self.plan.last_step(e.epoch, e.step)
        course = Course()
        for epoch, step, state, report in self._steps(choice):
            course.reports.append(report)
            if not finite(report):
                course.first_nonfinite = course.since
                return course, NONFINITE
            golden = self.record(epoch)
            same = course.exactly_masked_after is None and (report.digest == golden["digest"][step]).all()
            if same and self._is_golden(choice, state, epoch, step):
                course.exactly_masked_after = course.since
                if self.plan.exit != "full":
                    return course, EXACT
            if course.since <= self.conditions.steps:
                course.seen = self.envelope(e.epoch).after(course.seen, report, golden["loss"][step], not course.since)
            if course.since == self.conditions.steps and course.seen.hold(self.conditions):
                course.conditions_after = course.since
                if self.plan.exit == "conditions":
                    if not e.audited:
                        return course, CONDITIONS
                    last = end
            if step == spe - 1:
                course.evaluations.append(self._timed(self.session.evaluate, state))
                if not np.isfinite(course.evaluations[-1][0]):  # it sees what the next step would have seen
                    course.first_nonfinite = course.since + 1
                    return course, NONFINITE
            if epoch * spe + step == last:
                break
        return course, END if last == end else HORIZON

    def _steps(self, choice: Choice):
        """Yields (epoch, step, state, report) from the faulty step to the end of the training."""
        e, session = choice.experiment, self.session
        state, report = self.strike(choice)
        yield e.epoch, e.step, state, report
        first = e.step + 1
        for epoch in range(e.epoch, self.plan.workload.epochs):
            steps = session.steps(state, epoch, first)
            while (now := self._timed(next, steps, None)) is not None:
                yield epoch, *now
                state = now[1]
            first = 0

    def strike(self, choice: Choice) -> tuple[State, StepReport]:
        """The faulty step, from the golden state before it.

        Raises:
          NotRepeated: the executable that strikes does not reproduce the golden run when it does not.
          FaultNotApplied: the step's observations contradict the fault.
        """
        e, fault = choice.experiment, choice.fault
        start = self.state(e.epoch, e.step)
        if len(fault.index) not in self.controlled:
            self._control(start, choice)
        state, report = self._timed(self.session.faulty_step, start, e.epoch, e.step, fault)
        check_struck(e.site, fault, report.struck)
        return state, report

    def _timed(self, function, *arguments):
        begun = time.perf_counter()
        value = function(*arguments)
        self.stepping += time.perf_counter() - begun
        return value

    def _control(self, start: State, choice: Choice) -> None:
        """Once a size of fault: the executables give the golden bits, also the one that strikes when it does not."""
        begun = time.perf_counter()
        e, size = choice.experiment, len(choice.fault.index)
        _, control = self.session.faulty_step(start, e.epoch, e.step, inactive_fault(size))
        ((_, _, plain),) = self.session.steps(_copy(start), e.epoch, e.step, e.step + 1)
        for report in (control, plain):
            self.golden.compare(self.record(e.epoch), e.epoch, e.step, report.digest)
        self.controlled.add(size)
        self.setting_up += time.perf_counter() - begun

    def _is_golden(self, choice: Choice, state: State, epoch: int, step: int) -> bool:
        """Confirm on every bit what equal digests suggest: that this is the golden state after the step."""
        e = choice.experiment
        golden = _copy(self.state(e.epoch, e.step + 1))
        at = (e.epoch, e.step + 1)
        while at <= (epoch, step):
            end = step + 1 if at[0] == epoch else self.session.steps_per_epoch
            for _, golden, _ in self.session.steps(golden, *at, end):
                pass
            at = (at[0] + 1, 0)
        return same_bits(state, golden)

    def _verdict(self, choice: Choice, course: Course, ended: str) -> Outcome:
        """The verdict on the run as far as it was followed, by the rules of a replay."""
        e, spe = choice.experiment, self.session.steps_per_epoch
        accuracy = np.array([report.accuracy for report in course.reports])
        records = [self.record(epoch) for epoch in range(e.epoch, e.epoch + 1 + (e.step + course.since) // spe)]
        golden = np.concatenate([record["accuracy"] for record in records])
        whole = np.concatenate([golden[: e.step], accuracy])  # from the start of the fault's epoch
        epochs, thresholds = range(len(course.evaluations)), Thresholds()
        # The twins are compared over as many last epochs as the verdict is a mean of.
        window = min(thresholds.final_epochs, len(epochs) or thresholds.final_epochs)
        return classify(
            Trace(
                golden[e.step : len(whole)],
                np.array([float(records[i]["train_accuracy"]) for i in epochs]),
                np.array([float(records[i]["valid_accuracy"]) for i in epochs]),
            ),
            Trace(
                accuracy,
                np.array([whole[i * spe : (i + 1) * spe].mean(dtype=np.float64) for i in epochs]),
                np.array([test for _, test in course.evaluations]),
            ),
            finished=ended == END,
            first_nonfinite=course.first_nonfinite,
            exactly_masked_after=course.exactly_masked_after if ended == EXACT else None,
            noise=self.noise(window),
            chance=chance(self.session.images.train_labels),
            thresholds=thresholds,
        )

    def _conditions_rule(self, course: Course) -> str:
        seen, c = course.seen, self.conditions
        return (
            f"masked by conditions: in the faulty step and {c.steps} after it optimizer history reached "
            f"{seen.history:.3g} and running variance {seen.variance:.3g} times the golden run's largest (at most "
            f"{c.margin:g}), and the loss stayed within {seen.loss_gap:.3g} of the golden one's (at most {c.loss:g})"
        )

    def _result(self, choice: Choice, course: Course, ended: str, seconds: float) -> Result:
        e, struck = choice.experiment, course.reports[0].struck
        assert struck is not None  # the faulty step's
        verdict = self._verdict(choice, course, ended)
        outcome, rule, steps = verdict.outcome, verdict.rule, len(course.reports)
        audit_outcome, audit_rule, audit_steps = None, None, 0
        if self.plan.exit == "conditions" and course.conditions_after is not None:
            if ended != CONDITIONS:  # audited: what it would have said stands, and beside it what it came to
                audit_outcome, audit_rule = outcome, rule
                audit_steps = steps - course.conditions_after - 1
            outcome, rule, ended = MASKED, self._conditions_rule(course), CONDITIONS
            steps = course.conditions_after + 1
        worse: dict[str, Any] = verdict.worse or {"train": None, "test": None}
        curve = np.array([[report.loss, report.accuracy] for report in course.reports], np.float32)
        return Result(
            number=e.number,
            epoch=e.epoch,
            step=e.step,
            worker=e.worker,
            site=e.site,
            stage=choice.site.stage,
            operand=e.operand.name.lower(),
            model=e.model.name,
            value_source=e.model.values,
            elements=len(choice.index),
            bit=choice.flipped_bit,
            first_position=int(choice.index[0]),
            old_bits=int(struck.old[0]),
            new_bits=int(struck.new[0]),
            operand_changed=int(struck.operand_changed),
            output_changed=int(struck.output_changed),
            outcome=outcome,
            rule=rule,
            exit=ended,
            steps=steps,
            first_nonfinite=course.first_nonfinite,
            exactly_masked_after=course.exactly_masked_after,
            conditions_after=course.conditions_after,
            history_excess=course.seen.history,
            variance_excess=course.seen.variance,
            loss_gap=course.seen.loss_gap,
            worse_train=worse["train"],
            worse_test=worse["test"],
            audit_outcome=audit_outcome,
            audit_rule=audit_rule,
            audit_steps=audit_steps,
            seconds=seconds,
            outside_seconds=seconds - self.stepping - self.setting_up,
            setup_seconds=self.setting_up,
            curve=curve.tobytes(),
        )
