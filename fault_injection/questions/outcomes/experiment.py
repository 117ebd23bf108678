"""One experiment: fork from the golden run, strike, and look no longer than the verdict needs."""

import dataclasses
import functools
import pathlib
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ...models.fault import Fault, Struck, inactive_fault
from ...runs.exits import EXACT, ExactlyMasked, FirstNonFinite
from ...runs.follow import Followed, follow
from ...runs.golden_run import Golden, Repeats, noise_floor
from ...runs.outcome import MASKED, Outcome, Thresholds, verdict_of
from ...runs.records import Recorder, Run, rows_of
from ...runs.steps import Address, Observer, addresses, numbered
from ...runs.witness import Witness
from ...seam.checkpoint_faults import elements_of
from ...seam.leaves import Role, State
from ...seam.program import Program
from ...seam.report import StepReport
from ...seam.stages import BESIDE, CHECKPOINT, STATE
from .conditions import CONDITIONS, Conditions, Rule, Seen
from .early_verdict import Early, EarlyVerdict, Envelope
from .plan import Plan
from .projection import Projection
from .result import END, HORIZON, Alteration, Result
from .sampling import Choice, choose, draw_experiment
from .walk import Walk


class Course(NamedTuple):
    """The faulty run of one experiment, as far as it was followed.

    Attributes:
      run: what was recorded, from the start of the fault's epoch on.
      struck: what the fault did.
      nothing: whether it struck nothing, since every step left the operation out.
      ended: what ended it.
      first_nonfinite, exactly_masked_after: steps after the faulty one, or None.
      early: the early verdict that its first steps allow, whether or not it ended there.
      seen: what its first steps have shown.
      seconds: spent in its steps and evaluations.
    """

    run: Run
    struck: Struck
    nothing: bool
    ended: str
    first_nonfinite: int | None
    exactly_masked_after: int | None
    early: Early | None
    seen: Seen
    seconds: float


class Laboratory:
    """What the experiments of one plan share in one process: golden run, walks, and what was read of them.

    Its memory does not grow with the number of experiments: it keeps the golden record, the
    states before and after one step, and the envelopes of two epochs.

    Args:
      plan: whose experiments are made.
      golden: of the plan's workload, made as far as experiments go, by a program that can strike its sites.
      conditions: what the early verdict depends on.
      walks: folder of the states that experiments fork from, which are made where they are missing.
    """

    def __init__(self, plan: Plan, golden: Golden, conditions: Conditions, walks: pathlib.Path) -> None:
        self.plan, self.golden, self.conditions, self.walks = plan, golden, conditions, walks
        self.record = functools.cache(golden.fetch_record)
        self.envelope = functools.lru_cache(maxsize=2)(
            lambda epoch: Envelope(golden, plan.golden_epochs, epoch, conditions)
        )
        self.state_before = functools.lru_cache(maxsize=2)(
            lambda epoch, step: Walk(golden, walks, epoch).state_before(step)
        )
        self.noise = functools.cache(lambda window: noise_floor(golden, plan.workload.epochs, window, plan.twins))
        self._controlled: set[tuple[int, int]] = set()

    def control(self, at: Address, fault: Fault) -> float:
        """See that both executables reproduce the golden run, also the one that strikes while nothing strikes.

        Args:
          at: a step of the golden run.
          fault: each number of elements has an executable, which is controlled once; so has each leaf of the state.

        Returns:
          Seconds that it took, compiling included.

        Raises:
          NotRepeated: one of them does not.
        """
        size, site = len(fault.index), fault.site if self.plan.leaf in BESIDE else None
        if (size, int(site or 0)) in self._controlled:
            return 0.0
        begun = time.perf_counter()
        for faults in ({at: inactive_fault(size, site)}, {}):
            start = _copy(self.state_before(at.epoch, at.step))
            follow(self.golden.program, start, [at], faults, [Repeats(self.golden)])
        self._controlled.add((size, int(site or 0)))
        return time.perf_counter() - begun

    def golden_after(self, fault: Address, at: Address) -> State:
        """The golden state after a step that is not before the fault, from the state kept after the fault's step."""
        program = self.golden.program
        steps_per_epoch = program.steps_per_epoch
        state = _copy(self.state_before(fault.epoch, fault.step + 1))
        following = Address(*divmod(numbered(fault, steps_per_epoch) + 1, steps_per_epoch))
        return follow(program, state, addresses(following, at, steps_per_epoch)).state

    def since(self, fault: Address) -> Callable[[Address], int]:
        """A function: the number of steps from a fault to an address."""
        steps_per_epoch = self.plan.steps_per_epoch
        return lambda at: numbered(at, steps_per_epoch) - numbered(fault, steps_per_epoch)

    def masked(self, choice: Choice, ends: bool = True) -> ExactlyMasked:
        """What sees that a run with this fault is the golden one again, and can end it there; see `ExactlyMasked`."""
        since, golden_after = self.since(choice.at), functools.partial(self.golden_after, choice.at)
        return ExactlyMasked(since, self.record, golden_after, ends, last_strike=since(max(choice.faults(self.plan))))

    def follow(
        self,
        choice: Choice,
        begin: Address,
        last: Address,
        observers: Sequence[Observer],
        keep: int = 0,
        undo: Callable[[State, StepReport], State] | None = None,
    ) -> Followed:
        """The run with this fault, at all steps that it strikes, from the golden state before a step; see `follow`."""
        plan, state = self.plan, self.state_before(begin.epoch, begin.step)
        if begin != choice.at:  # a step without a fault consumes its state
            state = _copy(state)
        steps, faults = addresses(begin, last, plan.steps_per_epoch), choice.faults(plan)
        return follow(self.golden.program, state, steps, faults, observers, keep, undo, plan.schedule.lasting)

    def judged(self, fault: Address) -> Callable[..., Outcome]:
        """A function: the verdict on a run with this fault; see `verdict_of`."""
        program = self.golden.program
        return functools.partial(
            verdict_of,
            golden=self.record,
            fault=fault,
            measure=program.measure(),
            watched=program.state.watched,
            noise=self.noise,
            thresholds=Thresholds(nonfinite=self.plan.nonfinite),
        )


def run_experiment(lab: Laboratory, number: int) -> Result:
    """Experiment `number` of a plan, to its verdict.

    Raises:
      NotRepeated: the machine does not reproduce the golden run.
      FaultNotApplied: the step's observations contradict the fault.
    """
    begun = time.perf_counter()
    choice = choose(lab.plan, draw_experiment(lab.plan, number))
    setting_up = lab.control(choice.at, choice.fault)
    course = _follow(lab, choice)
    judged = lab.judged(choice.at)
    verdict = judged(
        course.run,
        finished=course.ended == END,
        first_nonfinite=course.first_nonfinite,
        exactly_masked_after=course.exactly_masked_after if course.ended == EXACT else None,
    )
    early = None if course.early is None else _early_verdict(lab, course.early, course.seen, judged)
    if course.nothing:
        verdict, early = verdict.of_nothing(), early and early.of_nothing()
    seconds = time.perf_counter() - begun
    return _result(lab, choice, course, verdict, early, seconds, setting_up)


def _follow(lab: Laboratory, choice: Choice) -> Course:
    """The faulty step and those after it, until the plan's exit mode has a verdict."""
    plan, golden, at = lab.plan, lab.golden, choice.at
    program, steps_per_epoch = golden.program, golden.program.steps_per_epoch
    last, end = plan.last_step(at), plan.end
    since = lab.since(at)

    def reached(rule: Rule) -> tuple[Run, int | None] | None:
        reach = end if plan.golden_epochs == plan.workload.epochs else last
        return projection.project(recorder.run, reach) if rule == Rule.VARIANCE else (recorder.run, None)

    def ends(rule: Rule, seen: Seen) -> bool:
        e, near = choice.experiment, lab.conditions.near(rule, seen)
        return plan.exit == "conditions" and not e.audited and not (near and e.audited_near)

    # From the start of the fault's epoch: before the fault this run is the golden one.
    recorder = Recorder(Run(at.epoch, (), 0), rows_of(lab.record(at.epoch), at.step))
    witness, nonfinite = Witness(choice.site, choice.fault, at), FirstNonFinite(since, plan.nonfinite)
    masked = lab.masked(choice, ends=plan.exit != "full")
    of_statistics = choice.site.stage == STATE and _of_norms(program, choice.site.name)
    golden_after = functools.partial(lab.golden_after, at)
    projection = Projection(golden, at, since, lab.record, golden_after, plan.nonfinite, of_statistics)
    verdict = EarlyVerdict(lab.envelope(at.epoch), lab.conditions, since, lab.record, reached, ends, of_statistics)
    observers = [recorder, witness, nonfinite, masked, projection, verdict]

    followed = lab.follow(choice, at, last, observers)
    seconds = followed.seconds
    if followed.ended is None and last < end and verdict.given and plan.exit == "conditions":
        # An audit goes on to the end, whatever the horizon.
        following = Address(*divmod(numbered(last, steps_per_epoch) + 1, steps_per_epoch))
        steps = addresses(following, end, steps_per_epoch)
        followed, last = follow(program, followed.state, steps, observers=observers), end
        seconds += followed.seconds
    assert witness.struck is not None  # the faulty step was taken
    return Course(
        run=recorder.run,
        struck=witness.struck,
        nothing=witness.nothing,
        ended=followed.ended or (END if last == end else HORIZON),
        first_nonfinite=nonfinite.first,
        exactly_masked_after=masked.after,
        early=verdict.given,
        seen=verdict.seen,
        seconds=seconds,
    )


def _of_norms(program: Program, target: str) -> bool:
    """Whether a part of the state, or a leaf, holds only running statistics of norms: training does not read these.

    Scales of formats are statistics too, and every step reads them; but they stand beside no variance.
    """
    norms = {leaf.name.rpartition("/")[0] for leaf in program.state.leaves if leaf.role == Role.VARIANCE}
    struck = [leaf.name for leaf in program.state.leaves if f"{leaf.name}/".startswith(f"{target}/")]
    return bool(struck) and all(name.rpartition("/")[0] in norms for name in struck)


def _early_verdict(lab: Laboratory, early: Early, seen: Seen, judged: Callable[..., Outcome]) -> Outcome:
    """The verdict that the conditions give."""
    why = lab.conditions.sentence(early.rule, seen)
    if early.rule == Rule.VARIANCE:
        reached = early.run.first + early.run.ended == lab.plan.workload.epochs
        verdict = judged(early.run, finished=reached, first_nonfinite=early.first_nonfinite)
        return dataclasses.replace(verdict, rule=f"projected: {why}; {verdict.rule}")
    verdict = judged(early.run, finished=False)
    return dataclasses.replace(verdict, outcome=MASKED, rule=f"masked by conditions: {why}")


def _result(
    lab: Laboratory,
    choice: Choice,
    course: Course,
    verdict: Outcome,
    early: Outcome | None,
    seconds: float,
    setting_up: float,
) -> Result:
    e, struck = choice.experiment, course.struck
    curve = np.stack([course.run.column(name)[e.step :] for name in ("loss", "metric")], axis=1).astype(np.float32)
    outcome, rule, ended, steps = verdict.outcome, verdict.rule, course.ended, len(curve)
    audit_outcome, audit_rule, audit_steps = None, None, 0
    if lab.plan.exit == "conditions" and early is not None and course.early is not None:
        if ended == CONDITIONS:
            verdict = early
        else:  # audited: what it would have said stands, and beside it what it came to
            audit_outcome, audit_rule = outcome, rule
            audit_steps = steps - course.early.after - 1
        outcome, rule, ended = early.outcome, early.rule, CONDITIONS
        steps = course.early.after + 1
    worse, leaf = verdict.worse or {}, verdict.first_nonfinite_state
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
        elements=len(choice.bits.index),
        bit=choice.one_bit,
        first_position=int(choice.bits.index[0]),
        old_bits=int(struck.old[0]),
        new_bits=int(struck.new[0]),
        operand_changed=int(struck.operand_changed),
        output_changed=int(struck.output_changed),
        outcome=outcome,
        rule=rule,
        exit=ended,
        steps=steps,
        first_nonfinite=verdict.first_nonfinite,
        nonfinite_leaf=None if leaf is None else str(leaf["leaf"]),
        nonfinite_leaf_after=None if leaf is None else int(leaf["steps"]),
        exactly_masked_after=course.exactly_masked_after,
        early_rule=None if course.early is None else str(course.early.rule),
        early_after=None if course.early is None else course.early.after,
        early_outcome=None if early is None else early.outcome,
        near=int(course.early is not None and lab.conditions.near(course.early.rule, course.seen)),
        history_excess=course.seen.history,
        variance_excess=course.seen.variance,
        loss_gap=course.seen.loss_gap,
        worse_train=worse.get("train"),
        worse_test=worse.get("test"),
        audit_outcome=audit_outcome,
        audit_rule=audit_rule,
        audit_steps=audit_steps,
        seconds=seconds,
        outside_seconds=seconds - course.seconds - setting_up,
        setup_seconds=setting_up,
        curve=curve.tobytes(),
        alterations=_alterations(lab, choice, struck),
    )


def _alterations(lab: Laboratory, choice: Choice, struck: Struck) -> tuple[Alteration, ...]:
    """What was altered, where a run restarted from a checkpoint."""
    if choice.site.stage != CHECKPOINT:
        return ()
    places = elements_of(lab.golden.program.state, choice.site.name, choice.bits.index)
    words = zip(places, struck.old.tolist(), struck.new.tolist(), strict=False)  # those of a fault are padded
    return tuple(Alteration(*place, before, after) for place, before, after in words)


def _copy(state: State) -> State:
    """The same on the device, for steps to consume."""
    return jax.tree.map(jnp.copy, state)
