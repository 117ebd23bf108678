"""What a campaign's processes do: functions of a plan and a number, run by any `concurrent.futures` executor.

A job is a process that computes.  Each sets itself up once and keeps what experiments share;
all that it is told is picklable, and a task that an engine runs twice gives the same twice.
"""

import dataclasses
import functools
import multiprocessing
import os
import pathlib
import platform
import signal
import threading
import time
import uuid
from typing import Any

from tqdm import tqdm

from ..machine import environment
from ..machine.errors import InputError
from ..machine.processes import say
from ..runs.golden_run import KEEP_ALL_BELOW, Golden, content_hash
from ..training.session import Session
from .conditions import Conditions
from .experiment import Laboratory, Result
from .plan import Plan
from .walk import Walk

# What a verdict depends on besides the golden run.
SOURCES = (
    "fault_injection/campaign/conditions.py",
    "fault_injection/campaign/experiment.py",
    "fault_injection/campaign/sampling.py",
    "fault_injection/faults/fault_models.py",
    "fault_injection/runs/outcome.py",
)


@dataclasses.dataclass(frozen=True)
class Task:
    """What all tasks of a campaign need to know.

    Attributes:
      plan: the campaign's.
      cache: folder of golden runs, the same for all jobs; None is `environment.cache_folder()`.
      data_dir: where the dataset is; None lets its reader look.
      precision: key of `environment.PRECISIONS`.
      name: of its states in the golden run's folder; by default no other task's.
    """

    plan: Plan
    cache: pathlib.Path | None = None
    data_dir: pathlib.Path | None = None
    precision: str = "float32"
    name: str = dataclasses.field(default_factory=lambda: uuid.uuid4().hex)


@dataclasses.dataclass(frozen=True)
class Ready:
    """What the driver learns when the golden run has been made.

    Attributes:
      plan_key: content hash of all that a verdict depends on.
      golden_key: of the golden run, which every job must come to as well.
      walks: folder of the states that experiments fork from.
      conditions: what the early verdict depends on.
    """

    plan_key: str
    golden_key: str
    walks: pathlib.Path
    conditions: Conditions


def begin(processor: int | None = None, device: dict[str, str] | None = None) -> None:
    """Set up a process of this machine for jobs: one processor, or one accelerator; it ends when its parent does."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the driver's business
    tqdm.set_lock(threading.RLock())  # its own is a semaphore of the system, which a killed process would leave
    os.environ |= device or {}
    if processor is not None and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {processor})
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent():
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


@functools.lru_cache(maxsize=1)
def laboratory(task: Task) -> Laboratory:
    """What experiments of a campaign share in this process."""
    # On CPUs one thread a job; to which processor it is bound, if to one, is whoever started the job's choice.
    environment.prepare(1, task.precision, bind=False)
    session = Session(task.plan.workload, devices=1, data_dir=task.data_dir)
    golden = Golden(session, task.cache)
    if golden.disk_bytes(task.plan.golden_epochs) > KEEP_ALL_BELOW:
        golden.keep = set(task.plan.epochs)
    return Laboratory(task.plan, session, golden, Conditions(), golden.folder / "walks" / task.name)


def make_golden(task: Task) -> Ready:
    """Make the golden run, and its twins, as far as the plan's experiments go."""
    lab = laboratory(task)
    plan, epochs = task.plan, task.plan.golden_epochs
    states = (plan.steps_per_epoch + 1) * lab.golden.disk_bytes(1)  # of two epochs, each as large as a checkpoint
    megabytes = (lab.golden.disk_bytes(epochs) + states) / 1e6
    say(f"{lab.golden.folder}: up to {megabytes:.0f} MB, with the states that experiments fork from")
    lab.golden.ensure(epochs)
    for twin in range(1, plan.twins + 1):
        workload = dataclasses.replace(plan.workload, twin=twin)
        Golden(Session(workload, devices=1, data_dir=task.data_dir), task.cache, keep=()).ensure(epochs)
    return Ready(plan_key(lab), lab.golden.key, lab.walks, lab.conditions)


def plan_key(lab: Laboratory) -> str:
    """Content hash of all that verdicts depend on: the golden run, the plan, and the code that strikes and judges."""
    return content_hash([lab.golden.key, lab.plan.identity(), environment.source_hash(SOURCES)])


def walk(task: Task, golden_key: str, epoch: int, steps: tuple[int, ...]) -> tuple[int, float]:
    """Walk through an epoch for the experiments at `steps`; returns steps computed and seconds."""
    begun = time.perf_counter()
    states = {at for step in steps for at in (step, step + 1)}  # after it too, to be held against
    lab = _alike(task, golden_key)
    return Walk(lab.golden, lab.walks, epoch).go(states), time.perf_counter() - begun


def experiment(task: Task, golden_key: str, number: int) -> tuple[Result, dict[str, Any]]:
    """One experiment to its verdict, and where it was made."""
    lab = _alike(task, golden_key)
    return lab.run(number), described(lab.session)


def _alike(task: Task, golden_key: str) -> Laboratory:
    """The laboratory; raises InputError where this machine does not compute the golden run's bits."""
    lab = laboratory(task)
    if lab.golden.key != golden_key:
        differs = "; ".join(difference for _, difference in lab.golden.elsewhere()) or "another cache, data or code"
        raise InputError(f"the golden run was made where bits are others than on {platform.node()}: {differs}")
    return lab


def described(session: Session) -> dict[str, Any]:
    """The environment of a result: arithmetic, libraries, host."""
    return {**session.arithmetic, **_here()}


@functools.cache
def _here():
    return {**environment.describe(), "host": platform.node()}
