"""One experiment: fork from the golden run, strike, and look no longer than the verdict needs."""

import dataclasses
import functools
import pathlib
import time
from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ...models.bits import signed
from ...models.fault import Fault, Struck, inactive_fault
from ...models.site import Site
from ...runs.course import Course
from ...runs.dependencies import EXPERIMENT, content_hash, source_of_verdicts
from ...runs.follow import follow
from ...runs.golden_run import Golden, Repeats
from ...runs.noise import noise_floor
from ...runs.outcome import MASKED, UNDECIDED, Outcome
from ...runs.records import Recorder, Run, rows_of
from ...runs.steps import Address, Observer, addresses, numbered
from ...runs.twin_distance import limits_of, twin_distances
from ...seam.checkpoint_faults import elements_of
from ...seam.leaves import State
from ...seam.stages import BESIDE, CHECKPOINT, UPDATE
from .conditions import CONDITIONS, Conditions, Rule, Seen
from .early_verdict import Early, EarlyVerdict, Envelope
from .plan import Plan
from .projection import Projection
from .result import END, HORIZON, SETTLED, Alteration, Result
from .sampling import Choice, choose, draw_experiment
from .settled import Settled
from .walk import Walk


class Trail(NamedTuple):
    """The faulty run of one experiment, as far as it was followed.

    Attributes:
      course: the run, and what has looked at it.
      ended: what ended it.
      early: the early verdict that its first steps allow, whether or not it ended there.
      seen: what its first steps have shown.
      settled: what has compared it with a twin; None where nothing does.
      seconds: spent in its steps and evaluations.
    """

    course: Course
    ended: str
    early: Early | None
    seen: Seen
    settled: Settled | None
    seconds: float


class Laboratory:
    """What the experiments of one plan share in one process: golden run, walks, and what was read of them.

    Its memory does not grow with the number of experiments: it keeps the golden record, and the
    states before and after one step.

    Args:
      plan: whose experiments are made.
      golden: of the plan's workload, made as far as experiments go, by a program that can strike its sites.
      conditions: what the early verdict depends on.
      walks: folder of the states that experiments fork from, which are made where they are missing.
    """

    def __init__(self, plan: Plan, golden: Golden, conditions: Conditions, walks: pathlib.Path) -> None:
        self.plan, self.golden, self.conditions, self.walks = plan, golden, conditions, walks
        self.record = functools.cache(golden.fetch_record)
        self.envelope = Envelope(golden.program.state, conditions)
        self.state_before = functools.lru_cache(maxsize=2)(
            lambda epoch, step: Walk(golden, walks, epoch).state_before(step)
        )
        self.noise = functools.cache(lambda window: noise_floor(golden, plan.workload.epochs, window, plan.twins))
        kept = f"twin_distances_{content_hash([plan.twins, plan.workload.epochs, source_of_verdicts(EXPERIMENT)])}.npz"
        self.twin_limits = functools.cache(
            lambda: limits_of(twin_distances(golden, plan.twins, plan.workload.epochs, golden.folder / kept))
        )
        self._controlled: set[tuple[int, np.dtype, int, bool]] = set()

    def control(self, at: Address, fault: Fault) -> float:
        """See that both executables reproduce the golden run, also the one that strikes while nothing strikes.

        Args:
          at: a step of the golden run.
          fault: each number of elements, and each type of masks, has an executable, which is controlled once; so has
            each leaf of the state.

        Returns:
          Seconds that it took, compiling included.

        Raises:
          NotRepeated: one of them does not.
        """
        size, mask, site = len(fault.index), fault.keep.dtype, fault.site if self.plan.leaf in BESIDE else None
        ruled = fault.rule is not None
        if (kind := (size, mask, int(site or 0), ruled)) in self._controlled:
            return 0.0
        begun = time.perf_counter()
        for faults in ({at: inactive_fault(size, site, mask, ruled)}, {}):
            start = copied(self.state_before(at.epoch, at.step))
            follow(self.golden.program, start, [at], faults, [Repeats(self.golden)])
        self._controlled.add(kind)
        return time.perf_counter() - begun

    def golden_after(self, fault: Address, at: Address) -> State:
        """The golden state after a step that is not before the fault, from the state kept after the fault's step."""
        program = self.golden.program
        steps_per_epoch = program.steps_per_epoch
        state = copied(self.state_before(fault.epoch, fault.step + 1))
        following = Address(*divmod(numbered(fault, steps_per_epoch) + 1, steps_per_epoch))
        return follow(program, state, addresses(following, at, steps_per_epoch)).state

    def course(self, choice: Choice, begin: Address, masked_ends: bool = True, others: Sequence[Choice] = ()) -> Course:
        """The run with this fault, and `others` after it, to be taken from the step `begin` of the fault's epoch on."""
        at, before = choice.at, rows_of(self.record(begin.epoch), begin.step)  # those of the golden run
        return Course(
            self.golden,
            [one.strike(self.plan.schedule) for one in (choice, *others)],
            self.plan.nonfinite,
            record=self.record,
            golden_after=functools.partial(self.golden_after, at),
            noise=self.noise,
            recorder=Recorder(Run(begin.epoch, (), 0), before),
            masked_ends=masked_ends,
        )


def run_experiment(
    lab: Laboratory,
    number: int,
    supported: Collection[Rule] = (),
    stratum: int | None = None,
    alone: bool = False,
) -> Result:
    """Experiment `number` of a plan, to its verdict.

    Args:
      supported: rules that end a run with a fault beyond their premises; see `Plan.beyond_premises`.
      stratum: as of `draw_experiment`.
      alone: whether an audit is followed by itself though the plan groups it, see `together`.

    Raises:
      NotRepeated: the machine does not reproduce the golden run.
      FaultNotApplied: the step's observations contradict the fault.
    """
    begun = time.perf_counter()
    choice = choose(lab.plan, draw_experiment(lab.plan, number, stratum))
    setting_up = lab.control(choice.at, choice.fault)
    trail = _follow(lab, choice, supported, alone or choice.experiment.alone)
    verdict = trail.course.verdict(finished=trail.ended == END)
    early = None if trail.early is None else _early_verdict(lab, trail.early, trail.seen, trail.course.judged)
    if early is not None and trail.course.witness.nothing:
        early = early.of_nothing(trail.course.witness.why_nothing)
    seconds = time.perf_counter() - begun
    return _result(lab, choice, trail, verdict, early, seconds, setting_up)


def _follow(lab: Laboratory, choice: Choice, supported: Collection[Rule], alone: bool) -> Trail:
    """The faulty step and those after it, until the plan's exit mode has a verdict."""
    plan, golden, at = lab.plan, lab.golden, choice.at
    last, end = plan.last_step(at), plan.end
    course = lab.course(choice, at, masked_ends=plan.exit != "full")
    since, recorder = course.since, course.recorder

    def reached(rule: Rule, seen: Seen) -> tuple[Run, int | None] | None:
        reach = end if plan.golden_epochs == plan.workload.epochs else last
        return projection.project(recorder.run, reach, seen.apart) if rule == Rule.VARIANCE else (recorder.run, None)

    def ends(early: Early, seen: Seen) -> bool:
        e, near = choice.experiment, lab.conditions.near(early.rule, seen)
        projected = (plan.wanted or plan.together) and early.rule == Rule.VARIANCE
        masked = not projected or _early_verdict(lab, early, seen, course.judged).outcome == MASKED
        if plan.wanted is not None and not masked:
            # These are few.  Were only some of them audited, a rate might lie as far below what is known as above it,
            # which takes half as many steps again.
            return False
        audited = e.audited or (near and e.audited_near)
        grouped = plan.together is not None and masked and not alone
        return plan.exit == "conditions" and (not audited or grouped)

    beyond, audit = plan.beyond_premises, plan.audits_first and choice.experiment.audited
    golden_after = functools.partial(lab.golden_after, at)
    projection = Projection(golden, at, since, lab.record, golden_after, plan.nonfinite)
    verdict = EarlyVerdict(
        lab.envelope,
        lab.conditions,
        since,
        lab.record,
        reached,
        ends,
        # That statistics which alone differ change evaluations alone is no guess of what the fault does.
        trusted=(Rule.VARIANCE, *supported) if beyond and not audit else tuple(Rule),
        premises=beyond or _before_update(choice.site),
        unread=golden.program.extras.trains_without_statistics and not beyond,
    )
    settled = _settled(lab, choice, course)
    looking: list[Observer] = [projection, verdict] if plan.schedule.single else []  # what strikes again has no rule
    looking += [] if settled is None else [settled]

    followed = course.take(lab.state_before(at.epoch, at.step), at, last, after=looking)
    seconds = followed.seconds
    guessed = (verdict.given and plan.exit == "conditions") or (settled is not None and settled.after is not None)
    if followed.ended is None and last < end and guessed:
        # What checks a guess goes on to the end, whatever the horizon.
        followed, last = course.take(followed.state, course.later(since(last) + 1), end, after=looking), end
        seconds += followed.seconds
    ended = followed.ended or (END if last == end else HORIZON)
    return Trail(course, ended, verdict.given, verdict.seen, settled, seconds)


def _settled(lab: Laboratory, choice: Choice, course: Course) -> Settled | None:
    """What compares the run with a twin; None where the plan does not ask for it."""
    if lab.plan.settled is None:
        return None
    return Settled(
        lab.golden,
        lab.plan.settled,
        lab.twin_limits(),
        course.since,
        lab.record,
        functools.partial(lab.golden_after, choice.at),
        course.since(max(course.faults)),
        ends=not choice.experiment.followed,
    )


def _before_update(site: Site) -> bool:
    """Whether the optimizer has yet to make an update of what a fault at this site changes."""
    return site.stage not in (*BESIDE, UPDATE) and site.details.get("role") != "update"


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
    trail: Trail,
    verdict: Outcome,
    early: Outcome | None,
    seconds: float,
    setting_up: float,
) -> Result:
    e, course, struck = choice.experiment, trail.course, trail.course.struck
    curve = np.stack([course.recorder.run.column(name)[e.step :] for name in ("loss", "metric")], axis=1).astype(
        np.float32
    )
    said = _said(lab, trail, verdict, early, len(curve))
    if trail.ended == CONDITIONS and early is not None:
        verdict = early
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
        elements=int(struck.matched[0]) if choice.bits is None else len(choice.bits.index),
        bit=choice.one_bit,
        first_position=int(struck.matched[1] if choice.bits is None else choice.bits.index[0]),
        old_bits=signed(struck.old[0]),
        new_bits=signed(struck.new[0]),
        operand_changed=int(struck.operand_changed),
        output_changed=int(struck.output_changed),
        **said,
        first_nonfinite=verdict.first_nonfinite,
        nonfinite_leaf=None if leaf is None else str(leaf["leaf"]),
        nonfinite_leaf_after=None if leaf is None else int(leaf["steps"]),
        exactly_masked_after=course.masked.after,
        early_rule=None if trail.early is None else str(trail.early.rule),
        early_after=None if trail.early is None else trail.early.after,
        early_outcome=None if early is None else early.outcome,
        near=int(trail.early is not None and lab.conditions.near(trail.early.rule, trail.seen)),
        history_excess=trail.seen.history,
        variance_excess=trail.seen.variance,
        loss_gap=trail.seen.loss_gap,
        worse_train=worse.get("train"),
        worse_test=worse.get("test"),
        seconds=seconds,
        outside_seconds=seconds - trail.seconds - setting_up,
        setup_seconds=setting_up,
        curve=curve.tobytes(),
        alterations=_alterations(lab, choice, struck),
        comparison=None if trail.settled is None else trail.settled.comparison(),
    )


def _said(lab: Laboratory, trail: Trail, verdict: Outcome, early: Outcome | None, recorded: int) -> dict[str, Any]:
    """The verdict, and beside a guess what its run came to, where it was followed: columns of a `Result`."""
    guess, end = (verdict.outcome, verdict.rule, trail.ended), (verdict.outcome, verdict.rule)
    steps, settled = recorded, trail.settled
    if lab.plan.exit == "conditions" and early is not None and trail.early is not None:
        guess, steps = (early.outcome, early.rule, CONDITIONS), trail.early.after + 1
        if trail.ended == SETTLED and settled is not None:
            end = (UNDECIDED, f"{settled.sentence()}; {verdict.rule}")
    elif settled is not None and settled.after is not None:
        guess, steps = (MASKED, settled.sentence(), SETTLED), settled.after + 1
    followed = trail.ended != guess[2]
    audit = (*end, recorded - steps) if followed else (None, None, 0)
    names = ("outcome", "rule", "exit", "steps", "audit_outcome", "audit_rule", "audit_steps")
    return dict(zip(names, (*guess, steps, *audit), strict=True))


def _alterations(lab: Laboratory, choice: Choice, struck: Struck) -> tuple[Alteration, ...]:
    """What was altered, where a run restarted from a checkpoint."""
    if choice.site.stage != CHECKPOINT or choice.bits is None:
        return ()
    places = elements_of(lab.golden.program.state, choice.site.name, choice.bits.index)
    words = zip(places, struck.old, struck.new, strict=False)  # those of a fault are padded
    return tuple(Alteration(*place, signed(before), signed(after)) for place, before, after in words)


def copied(state: State) -> State:
    """The same on the device, for steps to consume."""
    return jax.tree.map(jnp.copy, state)
