"""What a campaign's processes do: functions of a plan and a number, run by any `concurrent.futures` executor."""

import dataclasses
import functools
import time
from typing import Any

from ...campaign.task import Ready, Task, environment_of, require_alike
from ...machine.processes import say
from ...runs.dependencies import EXPERIMENT, GROUP, content_hash, source_of_verdicts
from ...runs.golden_run import Golden, kept_epochs
from .conditions import Conditions, Rule
from .experiment import Laboratory, run_experiment
from .group_run import run_group
from .plan import Plan
from .result import GroupResult, Result
from .walk import Walk

# A word for those who have seen a replay's golden run.
WHY_ANOTHER = "on CPUs each job computes with one thread, and the bits of a run depend on the number of threads"


def laboratory(task: Task[Plan]) -> Laboratory:
    """What the experiments of a campaign share in this process; it is set up once, and nothing runs yet."""
    task.set_up()
    return _laboratory(task)


@functools.lru_cache(maxsize=1)
def _laboratory(task: Task[Plan]) -> Laboratory:
    plan = task.plan
    program = plan.workload.program(plan.supported, 1, task.data_dir, task.reductions())
    golden = Golden(plan.workload, program, task.cache, kept_epochs(program, plan.golden_epochs, plan.epochs))
    return Laboratory(plan, golden, Conditions(), golden.folder / "walks" / task.name)


def make_golden(task: Task[Plan]) -> Ready:
    """Make the golden run, and its twins, as far as the plan's experiments go."""
    lab = laboratory(task)
    plan, golden = task.plan, lab.golden
    megabytes = disk_bytes(plan, golden) / 1e6
    say(f"{golden.folder}: up to {megabytes:.0f} MB, with the states that experiments fork from")
    if golden.recorded() < plan.golden_epochs:
        say(f"making a golden run of this campaign's own: {WHY_ANOTHER}")
    for run in _runs(plan, golden):
        run.make(plan.golden_epochs)
    if plan.settled is not None:
        lab.twin_limits()
    about = {"conditions": dataclasses.asdict(lab.conditions), "measure": dataclasses.asdict(golden.program.measure())}
    return Ready(plan_key(lab), golden.key, about, lab.walks)


def disk_bytes(plan: Plan, golden: Golden) -> int:
    """The most disk that a campaign's golden runs take, with the states that experiments fork from."""
    states = 2 * (plan.steps_per_epoch + 1) * golden.program.state.bytes  # within two epochs at a time
    return states + sum(run.disk_bytes(plan.golden_epochs) for run in _runs(plan, golden))


def _runs(plan: Plan, golden: Golden) -> list[Golden]:
    return [golden, *map(golden.twin_run, range(1, plan.twins + 1))]


def plan_key(lab: Laboratory) -> str:
    """Content hash of all that verdicts depend on: the golden run, the plan, and the code that strikes and judges."""
    code = EXPERIMENT if lab.plan.together is None else GROUP
    return content_hash([lab.golden.key, lab.plan.identity(), source_of_verdicts(code)])


def walk(task: Task[Plan], golden_key: str, epoch: int, steps: tuple[int, ...]) -> tuple[int, float]:
    """Walk through an epoch for the experiments at `steps`; returns steps computed and seconds."""
    begun = time.perf_counter()
    states = {at for step in steps for at in (step, step + 1)}  # after it too, to be compared with
    lab = alike(task, golden_key)
    return Walk(lab.golden, lab.walks, epoch).go(states), time.perf_counter() - begun


def experiment(
    task: Task[Plan],
    golden_key: str,
    number: int,
    supported: tuple[Rule, ...] = (),
    stratum: int | None = None,
    alone: bool = False,
) -> tuple[Result, dict[str, Any]]:
    """One experiment to its verdict, and where it was made; see `run_experiment`."""
    lab = alike(task, golden_key)
    return run_experiment(lab, number, supported, stratum, alone), environment_of(lab.golden)


def group(task: Task[Plan], golden_key: str, members: tuple[int, ...]) -> GroupResult:
    """The run of a group of audits; see `run_group`."""
    return run_group(alike(task, golden_key), members)


def alike(task: Task[Plan], golden_key: str) -> Laboratory:
    """The laboratory; raises InputError where this machine does not compute the golden run's bits."""
    lab = laboratory(task)
    require_alike(lab.golden, golden_key)
    return lab
