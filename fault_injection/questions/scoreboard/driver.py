"""The driver of a scoreboard: the walks of its campaign, with detectors beside the experiments."""

import contextlib
import dataclasses
import functools
import pathlib
from typing import Any

from ...campaign.dispatcher import Dispatcher, Errand
from ...campaign.executors import Slot
from ...campaign.task import Ready
from ...machine.files import only_writer
from ...runs.dependencies import content_hash
from ...runs.steps import Address
from ..outcomes import jobs
from ..outcomes.sampling import Experiment, draw_experiment
from ..outcomes.standing import LOCK
from ..outcomes.store import Store
from ..outcomes.walks import work_by_epochs
from . import tasks
from .board import VERDICTS, require_same
from .settings import remarks
from .store import EXPERIMENT, ScoreStore

PAIRS = 30  # rounds of the measurement of costs


def watch_campaign(
    task: tasks.ScoreTask, out: pathlib.Path, executors: contextlib.AbstractContextManager[list[Slot]]
) -> None:
    """Watch the experiments of a campaign whose verdicts are there, or those that are left.

    Args:
      task: with the campaign's plan.
      out: the campaign's folder.
      executors: where its jobs run.

    Raises:
      InputError: another process works in the folder, or what is there was made otherwise.
      As the campaign's driver.
    """
    task = dataclasses.replace(task, name=content_hash([str(out.absolute()), "score"]))
    taken = "another process is at work in this folder"
    with only_writer(out / LOCK, refuse=taken), ScoreStore(out, write=True) as store, executors as slots:
        with Store(out) as campaign:
            judged = {row["number"]: row for row in campaign.query(f"{VERDICTS} ORDER BY number")}
        _run(task, store, judged, Dispatcher(task, slots, store.event))


def _run(task: tasks.ScoreTask, store: ScoreStore, judged: dict[int, Any], dispatcher: Dispatcher) -> None:
    """All that is missing; `judged` is what the campaign says of its experiments, by their numbers in order."""
    golden: Ready = dispatcher.call("the golden run", jobs.make_golden)
    key = content_hash([golden.key, task.settings.determining()])
    store.begin(key, dataclasses.asdict(task.settings))

    here = {name for name, _ in store.all("fault_free")}
    for kind, number in task.settings.fault_free(task.plan):
        name, arguments = f"{kind} {number}", (golden.golden_key, kind, number)
        if name not in here:
            take = functools.partial(store.put, "fault_free", name)
            dispatcher.ready.append(Errand(f"the fault-free run {name}", tasks.fault_free, arguments, take))

    wanted, done = task.settings.watched(judged), store.done()
    missing = [draw_experiment(task.plan, number) for number in wanted if number not in done]

    def keep(e: Experiment, value: tuple[dict[str, Any], dict[str, Any]]) -> None:
        found, environment = value
        whole = tasks.watched_steps(task.plan, task.settings.window, Address(e.epoch, e.step))
        require_same(e.number, found, judged[e.number], whole)
        store.put(EXPERIMENT, str(e.number), found)
        store.put("about", "environment", environment)

    def lines(seconds: float) -> list[str]:
        runs = sum(1 for _ in store.all("fault_free"))
        return [f"{len(store.done())} of {len(wanted)} experiments watched, {runs} fault-free runs"]

    # A recovery goes back one step further.
    work_by_epochs(dispatcher, golden, missing, tasks.watch_experiment, keep, lines, back=1)
    dispatcher.settle("experiments")
    if store.get("cost", "all") is None:  # what the detectors cost is measured when nothing else runs
        cost = dispatcher.call("the measurement of costs", tasks.detector_costs, golden.golden_key, PAIRS)
        store.put("cost", "all", cost)


def plan_lines(task: tasks.ScoreTask) -> list[str]:
    """What a scoreboard does, one sentence per line."""
    s, plan = task.settings, task.plan
    watched = f"what was not masked of {plan.experiments} experiments, and at most {s.masked} others"
    steps = len(s.fault_free(plan)) * plan.workload.epochs * plan.steps_per_epoch
    return [
        plan.sentence(),
        f"{len(s.detectors)} detectors watch {watched}, for at most {s.window} steps: {', '.join(s.detectors)}.",
        *(f"{name} does not watch {why}." for name, why in s.cannot_watch),
        *remarks(s, plan.workload.program(frozenset(), devices=1, data_dir=task.data_dir)),
        f"False alarms are counted in the golden run, {plan.twins} twins and the runs of {s.fault_free_seeds} other "
        f"seeds: {steps} steps.",
    ]
