"""Logs of watched runs for detectors of other frameworks: all that a detector may see, and nothing of what came of it.

Each experiment and each fault-free run is a CSV file of its own, with one row per step from the first of the training
on and one column per signal, as `detect` reads it.  Runs have names that say neither what they are nor in which order
they were drawn.  `manifest.json` lists them.
"""

import contextlib
import csv
import dataclasses
import functools
import io
import json
import pathlib
from typing import Any

import numpy as np

from ...campaign.dispatcher import Dispatcher, Errand
from ...campaign.executors import Slot
from ...campaign.task import Ready, Task
from ...detection.registry import kinds_of
from ...detection.signals import PROFILED, SignalReader, reductions_of
from ...machine.errors import InputError
from ...machine.files import only_writer, read_text, write_json, write_text
from ...models.bits import signed
from ...runs.dependencies import WATCHING, content_hash, source_of_alarms
from ...runs.follow import follow
from ...runs.golden_run import Repeats, nudged
from ...runs.steps import Address, Observer, addresses, numbered
from ...seam.leaves import State
from ...seam.program import Program
from ...seam.report import StepReport
from ..outcomes import jobs
from ..outcomes.plan import Plan
from ..outcomes.sampling import Experiment, choose, draw_experiment
from ..outcomes.standing import LOCK
from ..outcomes.store import Store
from ..outcomes.walks import work_by_epochs
from .board import VERDICTS, require_same
from .settings import Settings
from .tasks import program_of, watched_steps

MANIFEST = "manifest.json"
RULES = (
    "Look at each run by itself, from its first row on: what is said of a row follows from it and the rows above.",
    "Use no other run, and none of a training without a fault that you know to be the same one.",
    "Choose thresholds before you look at these runs.",
    "Give back a CSV file with the columns run,step,level,tensor: a row per alarm, its level 1 where it stops the run "
    "and 2 where it warns, its tensor a column of the run or empty. A run without an alarm has one row, with an empty "
    "step and level.",
)


@dataclasses.dataclass(frozen=True)
class LogTask(Task[Plan]):
    """As a campaign's, with the kinds of signals that are written and how many steps after the fault."""

    kinds: tuple[str, ...] = ()
    window: int = 1

    def reductions(self) -> frozenset[str]:
        """What the signals are made of."""
        return reductions_of(self.kinds)


class SignalRows(Observer):
    """Keeps the signals of each step.

    Attributes:
      names: of the signals, N of them.
      values: float64 [N] of each step.
    """

    def __init__(self, program: Program, task: LogTask):
        self._reader = SignalReader(program, task.kinds)
        self.names: list[str] = []
        self.values: list[np.ndarray] = []

    def after_step(self, at: Address, state: State, report: StepReport) -> None:
        signals = self._reader.named(report)  # an array that two kinds have stands there once
        self.names = list(signals)
        self.values.append(np.array(list(signals.values())))


def run_name(key: str, kind: str, number: int) -> str:
    """What a run is called in the logs of the campaign of this key, whoever exports them."""
    return f"run_{content_hash([key, kind, number])}"


# ---- What jobs do ----


@functools.lru_cache(maxsize=1)
def _golden_rows(task: LogTask, golden_key: str) -> SignalRows:
    """The signals of the golden run, which is made again for them and compared with its record."""
    lab = jobs.alike(task, golden_key)
    program, rows = lab.golden.program, SignalRows(lab.golden.program, task)
    last = Address(lab.plan.golden_epochs - 1, program.steps_per_epoch - 1)
    steps = addresses(Address(0, 0), last, program.steps_per_epoch)
    follow(program, lab.golden.fetch_state_before(0), steps, observers=[Repeats(lab.golden), rows])
    return rows


def log_of_fault_free(task: LogTask, golden_key: str, kind: str, number: int) -> tuple[list[str], np.ndarray]:
    """Names of the signals and their values [steps, N] in a fault-free run, see `tasks.fault_free`."""
    lab = jobs.alike(task, golden_key)
    program = program_of(task, lab.golden.program, kind, number)
    start, rows = program.place(nudged(program, number if kind == "twin" else 0)), SignalRows(program, task)
    follow(program, start, addresses(Address(0, 0), task.plan.end, program.steps_per_epoch), observers=[rows])
    return rows.names, np.array(rows.values)


def log_of_experiment(task: LogTask, golden_key: str, number: int) -> tuple[list[str], np.ndarray, dict[str, Any]]:
    """The same of an experiment, with the fault-free steps before; and what tells that it is the judged run."""
    lab, before = jobs.alike(task, golden_key), _golden_rows(task, golden_key)
    choice = choose(lab.plan, draw_experiment(lab.plan, number))
    at, rows = choice.at, SignalRows(lab.golden.program, task)
    course = lab.course(choice, at)
    last = course.later(watched_steps(lab.plan, task.window, at) - 1)
    course.take(lab.state_before(at.epoch, at.step), at, last, [rows], past_nonfinite=True)
    loss = [float(x) for x in course.recorder.run.column("loss")[at.step :]]
    found = {"old": signed(course.struck.old[0]), "new": signed(course.struck.new[0]), "loss": loss}
    fault_free = before.values[: numbered(at, lab.plan.steps_per_epoch)]
    return before.names, np.array([*fault_free, *rows.values]), found


# ---- What the driver does ----


def export_logs(
    task: Task[Plan],
    settings: Settings,
    out: pathlib.Path,
    folder: pathlib.Path,
    executors: contextlib.AbstractContextManager[list[Slot]],
) -> int:
    """Write the logs of all runs that a scoreboard watches, but for those that are there.

    Args:
      task: with the campaign's plan.
      out: the campaign's folder, with its verdicts.
      folder: of the logs.

    Returns:
      How many runs there are.

    Raises:
      InputError: another process works in the campaign's folder, or `folder` holds something else.
      As the campaign's driver.
    """
    plan = task.plan
    if folder.exists() and not folder.is_dir():
        raise InputError("--export-logs is a file, expected a folder", folder)
    reasons = kinds_of(plan.workload.program(frozenset(), devices=1, data_dir=task.data_dir))
    kinds = tuple(kind for kind, why in reasons.items() if not why)
    named = content_hash([str(out.absolute()), "logs"])
    task = LogTask(plan, task.cache, task.data_dir, task.matrix_precision, named, kinds, settings.window)
    with only_writer(out / LOCK, refuse="another process is at work in this folder"), executors as slots:
        with Store(out) as campaign:
            judged: dict[int, Any] = {row["number"]: row for row in campaign.query(f"{VERDICTS} ORDER BY number")}
            key = campaign.about()["plan_key"]
        runs = [("experiment", number) for number in settings.watched(judged)] + settings.fault_free(plan)
        names = {run_name(key, *run): run for run in runs}
        made_of = content_hash([key, settings.window, kinds, source_of_alarms(WATCHING)])
        _require_ours(folder, names, made_of)
        folder.mkdir(parents=True, exist_ok=True)
        if not (folder / MANIFEST).exists():
            write_json(folder / MANIFEST, {"key": made_of})  # what the logs are made of, before there is one
        _write_missing(task, folder, key, runs, judged, Dispatcher(task, slots, lambda what: None))
    rows = {name: len((folder / f"{name}.csv").read_text(encoding="utf-8").splitlines()) - 1 for name in sorted(names)}
    manifest = {
        "key": made_of,
        "workload": plan.workload.title,
        "details": plan.workload.details,
        "rules": RULES,
        "signals": kinds,
        "left_out": {**{kind: why for kind, why in reasons.items() if why}, **dict.fromkeys(PROFILED, "of a profile")},
        "runs": [{"run": name, "file": f"{name}.csv", "steps": steps} for name, steps in rows.items()],
    }
    write_json(folder / MANIFEST, manifest)
    return len(names)


def _require_ours(folder: pathlib.Path, names: dict[str, Any], key: str) -> None:
    """Refuse a folder with files that are not of this export: nobody could tell what they are.

    Args:
      key: of what the logs are made of; logs of another window or code would stay as they are.
    """
    here = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    others = [name for name in here if name != MANIFEST and not name.startswith(".") and name[:-4] not in names]
    if others:
        raise InputError(f"holds {others[0][:60]!r}, which is no log of this campaign; choose an empty folder", folder)
    if here and _key(folder / MANIFEST) != key:
        raise InputError("holds logs of another window, or by other code; choose an empty folder", folder)


def _key(manifest: pathlib.Path) -> Any:
    """What the logs beside a manifest are made of; None where it does not say."""
    try:
        found = json.loads(read_text(manifest))
    except (OSError, ValueError):
        return None
    return found.get("key") if isinstance(found, dict) else None


def _write_missing(
    task: LogTask,
    folder: pathlib.Path,
    key: str,
    runs: list[tuple[str, int]],
    judged: dict[int, Any],
    dispatcher: Dispatcher,
) -> None:
    missing = [run for run in runs if not (folder / f"{run_name(key, *run)}.csv").exists()]
    if not missing:
        return
    golden: Ready = dispatcher.call("the golden run", jobs.make_golden)

    def write(kind: str, number: int, value: tuple[list[str], np.ndarray]) -> None:
        write_text(folder / f"{run_name(key, kind, number)}.csv", as_csv(*value))

    def keep(e: Experiment, value: tuple[list[str], np.ndarray, dict[str, Any]]) -> None:
        whole = watched_steps(task.plan, task.window, Address(e.epoch, e.step))
        require_same(e.number, value[2], judged[e.number], whole)
        write("experiment", e.number, value[:2])

    for kind, number in missing:
        if kind != "experiment":
            arguments, take = (golden.golden_key, kind, number), functools.partial(write, kind, number)
            errand = Errand(f"the fault-free run {kind} {number}", log_of_fault_free, arguments, take)
            dispatcher.ready.append(errand)
    experiments = [draw_experiment(task.plan, number) for kind, number in missing if kind == "experiment"]

    def lines(seconds: float) -> list[str]:
        return [f"{sum(1 for _ in folder.glob('run_*.csv')) if folder.is_dir() else 0} of {len(runs)} logs written"]

    work_by_epochs(dispatcher, golden, experiments, log_of_experiment, keep, lines)
    dispatcher.settle("experiments")


def as_csv(names: list[str], values: np.ndarray) -> str:
    """A log: `step` and one column per signal; numbers that read back as the same bits of float64.

    >>> print(as_csv(["loss", "a,b"], np.array([[0.1, np.nan]])), end="")
    step,loss,"a,b"
    0,0.1,nan
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["step", *names])
    writer.writerows([step, *(repr(float(x)) for x in row)] for step, row in enumerate(values))
    return text.getvalue()
