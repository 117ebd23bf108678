"""The driver of a campaign: hands out walks and experiments, keeps the store, and outlives its processes."""

import contextlib
import dataclasses
import functools
import pathlib
import shutil
from typing import Any

from ...campaign.dispatcher import Dispatcher
from ...campaign.executors import Slot
from ...campaign.task import Ready, Task
from ...campaign.terminal import clock
from ...machine.errors import InputError
from ...machine.files import only_writer
from ...machine.processes import say
from ...runs.dependencies import content_hash
from . import jobs
from .answer import answer_of, unfinished
from .conditions import Rule
from .plan import Plan
from .result import Result
from .sampling import Experiment, draw_experiment
from .standing import LOCK, answer_lines, nothing_left, outcome_lines, outcome_rates
from .store import Store
from .support import support
from .together import audits_left
from .walks import work_by_epochs


def campaign(
    task: Task[Plan],
    out: pathlib.Path,
    executors: contextlib.AbstractContextManager[list[Slot]],
    plan_file: str | None = None,
) -> None:
    """Run a campaign, or what is left of it, to its end.

    Args:
      task: its plan, and where things are.
      out: its folder; where there was none and the campaign could not begin, there is none again.  Damaged rows
        of its store are removed, and their experiments run again.
      executors: where its jobs run.
      plan_file: where the plan was read from, for `status` to say how to go on.

    Raises:
      InputError: another campaign is in `out`, or runs there.
      NotRepeated, FaultNotApplied: a result was not to be trusted; what was done before is kept.
      JobLost: the processes of some experiments died again and again; all others are done.
    """
    task = dataclasses.replace(task, name=content_hash(str(out.absolute())))
    new, taken = not out.exists(), "another process is running a campaign in this folder"
    with executors as slots, only_writer(out / LOCK, refuse=taken), Store(out, write=True) as store:
        begun = store.expect(task.plan)
        if begun != task.plan:
            kept = f"{begun.audit:.1%} of early verdicts, as when it began; a new one of this size would follow"
            say(f"this campaign goes on to follow {kept} {task.plan.audit:.1%}")
        task = dataclasses.replace(task, plan=begun)
        lost = store.mend()
        if lost:
            say(f"{store.path}: damaged rows are removed, and what is missing is run again: {lost}")
        done = store.done()
        if done and max(done) >= task.plan.experiments:
            raise InputError(f"{len(done)} experiments are here, up to number {max(done)}: a plan can only grow", out)
        wanting = task.plan.wanted is not None and store.plan() is not None
        answer = answer_of(store, task.plan) if wanting else None
        if not lost and nothing_left(store, task.plan, answer):
            told = f"all {len(done)} experiments are done{f', and {answer.standing}' if answer else ''}"
            say(f"{told}; python -m fault_injection report {out}")
            return
        store.event("started")
        try:
            _run(task, store, slots, plan_file)
        except BaseException as error:
            with contextlib.suppress(InputError):
                store.event(f"stopped: {type(error).__name__} {error}".strip()[:300])
                if new and store.plan() is None:
                    shutil.rmtree(out, ignore_errors=True)
            raise
        store.event("finished")


def _run(task: Task[Plan], store: Store, slots: list[Slot], plan_file: str | None) -> None:
    """All that is missing."""
    plan, dispatcher = task.plan, Dispatcher(task, slots, store.event)
    golden: Ready = dispatcher.call("the golden run", jobs.make_golden)
    store.begin(golden.key, plan, **golden.about, plan_file=plan_file, jobs=sum(slot.jobs() for slot in slots))
    if plan.wanted is None:
        _number(plan, store, dispatcher, golden)
    else:
        _blocks(plan, store, dispatcher, golden)


def _blocks(plan: Plan, store: Store, dispatcher: Dispatcher, golden: Ready) -> None:
    """Block after block, until every rate is as narrow as wanted: the one that was begun, or else the next one."""
    answer, begun = answer_of(store, plan), 0

    def lines(seconds: float) -> list[str]:
        total = len(store.done())
        pace = f"{(total - begun) / seconds * 3600:.0f} an hour" if total > begun else "compiling the step that strikes"
        known = answer_lines(answer.rates()) if answer.experiments else []
        return [f"{total} experiments, {pace}; {answer.standing}", *known]

    def keep(_: Experiment, value: tuple[Result, dict[str, Any]]) -> None:
        store.add(*value, golden.key)

    while True:
        if (block := unfinished(store, answer)) is None:
            rules = tuple(each.rule for each in support(store) if each.enough) if plan.audits_first else ()
            if (block := answer.next(rules)) is None:
                say(answer.standing)
                return
            store.design(block)
        done, function = store.done(), functools.partial(jobs.experiment, supported=block.rules)
        drawn = zip(block.numbers, block.strata, strict=True)
        missing = [draw_experiment(plan, number, stratum) for number, stratum in drawn if number not in done]
        begun = len(done)
        work_by_epochs(dispatcher, golden, missing, function, keep, lines, store.walked)
        dispatcher.settle("experiments")
        answer.observe(block, store.observed(block))


def _number(plan: Plan, store: Store, dispatcher: Dispatcher, golden: Ready) -> None:
    """The experiments of a plan with a fixed number that are missing."""
    before = store.done()
    missing = [draw_experiment(plan, number) for number in range(plan.experiments) if number not in before]

    def lines(seconds: float) -> list[str]:
        outcomes, not_masked = outcome_rates(store, plan)
        total, wanted = sum(rate.found for rate in outcomes.values()), plan.experiments
        if done := total - len(before):
            pace = f"{done / seconds * 3600:.0f} an hour, {clock((wanted - total) * seconds / done)} left"
        else:
            pace = "compiling the step that strikes, once per job" if total < wanted else "nothing is left to do"
        mixed = ["  (epoch after epoch: rates so far are not those of the whole plan)"]
        more = mixed if 0 < total < wanted and len(plan.epochs) > 1 else []
        return [f"{total} of {wanted} experiments, {pace}", *more, *outcome_lines(outcomes, not_masked)]

    def keep(_: Experiment, value: tuple[Result, dict[str, Any]]) -> None:
        store.add(*value, golden.key)

    def work(experiments: list[Experiment], rules: tuple[Rule, ...] = ()) -> None:
        nonlocal before
        before = store.done()
        function = functools.partial(jobs.experiment, supported=rules)
        work_by_epochs(dispatcher, golden, experiments, function, keep, lines, store.walked)

    rules: tuple[Rule, ...] = ()
    if plan.audits_first:
        work([e for e in missing if e.audited])
        missing = [e for e in missing if not e.audited]
        found = support(store)
        rules = tuple(each.rule for each in found if each.enough)
        if missing:
            told = ", ".join(map(str, found)) or "no early verdict"
            told = f"audits, made first: {told}; rules in use: {', '.join(rules) or 'none'}"
            store.event(told)
            say(told)
    work(missing, rules)
    if plan.together is not None:
        _together(plan, store, dispatcher, golden)
    dispatcher.settle("experiments")


def _together(plan: Plan, store: Store, dispatcher: Dispatcher, golden: Ready) -> None:
    """The audits of masked early verdicts: in groups, and those by themselves whose group did not end masked."""
    left, begun, followed = audits_left(store, plan), len(store.groups()[0]), 0
    if left.regroup:
        store.regroup(left.grouped)

    def lines(seconds: float) -> list[str]:
        ran = len(store.groups()[0]) - begun
        done = f"{ran} of {len(left.groups)} groups of audits, {followed} audits followed alone because of them"
        return [done, *outcome_lines(*outcome_rates(store, plan))]

    def keep(_: Experiment, value: tuple[Result, dict[str, Any]]) -> None:
        nonlocal followed
        store.add(*value, golden.key)
        followed += 1

    work_by_epochs(
        dispatcher, golden, left.groups, jobs.group, lambda _, found: store.add_group(found), lines, store.walked
    )
    follow = [draw_experiment(plan, number) for number in audits_left(store, plan).follow]
    function = functools.partial(jobs.experiment, alone=True)
    work_by_epochs(dispatcher, golden, follow, function, keep, lines, store.walked)
