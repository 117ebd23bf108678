"""What a campaign's processes do: functions of a plan and a number, run by any `concurrent.futures` executor.

A job is a process that computes.  Each sets itself up once and keeps what experiments share;
all that it is told is picklable, and a task that an engine runs twice gives the same twice.
"""

import dataclasses
import functools
import pathlib
import platform
import time
import uuid
from typing import Any

from ...machine import environment
from ...machine.errors import InputError
from ...machine.processes import say
from ...machine.termination import heed
from ...runs.dependencies import EXPERIMENT, content_hash, source_of_verdicts
from ...runs.golden_run import Golden, kept_epochs
from ...seam.measure import Measure
from .conditions import Conditions
from .experiment import Laboratory, run_experiment
from .plan import Plan
from .result import Result
from .walk import Walk

# A word for those who have seen a replay's golden run.
WHY_ANOTHER = "on CPUs each job computes with one thread, and the bits of a run depend on the number of threads"


@dataclasses.dataclass(frozen=True)
class Task:
    """What all tasks of a campaign need to know.

    Attributes:
      plan: the campaign's.
      cache: folder of golden runs, the same for all jobs; None is `environment.cache_folder()`.
      data_dir: where the dataset is; None lets its reader look.
      matrix_precision: key of `environment.MATRIX_PRECISIONS`.
      name: of its states in the golden run's folder; by default no other task's.
    """

    plan: Plan
    cache: pathlib.Path | None = None
    data_dir: pathlib.Path | None = None
    matrix_precision: str = "float32"
    name: str = dataclasses.field(default_factory=lambda: uuid.uuid4().hex)

    def reductions(self) -> frozenset[str]:
        """What the steps of its program report beside what every step does."""
        return frozenset()


@dataclasses.dataclass(frozen=True)
class Ready:
    """What the driver learns when the golden run has been made.

    Attributes:
      plan_key: content hash of all that a verdict depends on.
      golden_key: of the golden run, which every job must come to as well.
      walks: folder of the states that experiments fork from.
      conditions: what the early verdict depends on.
      measure: what the loss head measures.
    """

    plan_key: str
    golden_key: str
    walks: pathlib.Path
    conditions: Conditions
    measure: Measure


def laboratory(task: Task) -> Laboratory:
    """What the experiments of a campaign share in this process; it is set up once, and nothing runs yet."""
    heed()  # a task that was handed out before the signal
    # On CPUs one thread per job.  Whoever started the job chose the processor that it is bound to, if any.
    environment.prepare(1, task.matrix_precision, bind=False)
    return _laboratory(task)


@functools.lru_cache(maxsize=1)
def _laboratory(task: Task) -> Laboratory:
    plan = task.plan
    telling = {"reductions": reductions} if (reductions := task.reductions()) else {}
    program = plan.workload.program(plan.supported, devices=1, data_dir=task.data_dir, **telling)
    golden = Golden(plan.workload, program, task.cache, kept_epochs(program, plan.golden_epochs, plan.epochs))
    return Laboratory(plan, golden, Conditions(), golden.folder / "walks" / task.name)


def make_golden(task: Task) -> Ready:
    """Make the golden run, and its twins, as far as the plan's experiments go."""
    lab = laboratory(task)
    plan, golden = task.plan, lab.golden
    megabytes = disk_bytes(plan, golden) / 1e6
    say(f"{golden.folder}: up to {megabytes:.0f} MB, with the states that experiments fork from")
    if golden.recorded() < plan.golden_epochs:
        say(f"making a golden run of this campaign's own: {WHY_ANOTHER}")
    for run in (golden, *map(golden.twin_run, range(1, plan.twins + 1))):
        run.make(plan.golden_epochs)
    return Ready(plan_key(lab), golden.key, lab.walks, lab.conditions, golden.program.measure())


def disk_bytes(plan: Plan, golden: Golden) -> int:
    """The most disk that a campaign's golden runs take, with the states that experiments fork from."""
    states = 2 * (plan.steps_per_epoch + 1) * golden.program.state.bytes  # within two epochs at a time
    runs = (golden, *map(golden.twin_run, range(1, plan.twins + 1)))
    return states + sum(run.disk_bytes(plan.golden_epochs) for run in runs)


def plan_key(lab: Laboratory) -> str:
    """Content hash of all that verdicts depend on: the golden run, the plan, and the code that strikes and judges."""
    return content_hash([lab.golden.key, lab.plan.identity(), source_of_verdicts(EXPERIMENT)])


def walk(task: Task, golden_key: str, epoch: int, steps: tuple[int, ...]) -> tuple[int, float]:
    """Walk through an epoch for the experiments at `steps`; returns steps computed and seconds."""
    begun = time.perf_counter()
    states = {at for step in steps for at in (step, step + 1)}  # after it too, to be compared with
    lab = alike(task, golden_key)
    return Walk(lab.golden, lab.walks, epoch).go(states), time.perf_counter() - begun


def experiment(task: Task, golden_key: str, number: int) -> tuple[Result, dict[str, Any]]:
    """One experiment to its verdict, and where it was made."""
    lab = alike(task, golden_key)
    return run_experiment(lab, number), described(lab.golden)


def alike(task: Task, golden_key: str) -> Laboratory:
    """The laboratory; raises InputError where this machine does not compute the golden run's bits."""
    lab = laboratory(task)
    if lab.golden.key != golden_key:
        differs = "; ".join(difference for _, difference in lab.golden.elsewhere()) or "another cache, data or code"
        raise InputError(f"the golden run was made where bits are others than on {platform.node()}: {differs}")
    return lab


def described(golden: Golden) -> dict[str, Any]:
    """The environment of a result: arithmetic, libraries, host."""
    return {**golden.determined_by["arithmetic"], **_here()}


@functools.cache
def _here() -> dict[str, Any]:
    return {**environment.describe(), "host": platform.node()}
