"""The driver of a scoreboard: the campaign's, with detectors beside the experiments."""

import contextlib
import dataclasses
import functools
import pathlib
import sqlite3
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NoReturn, Self

from ...campaign.dispatcher import Errand
from ...campaign.executors import Slot
from ...machine.errors import InputError
from ...machine.files import only_writer
from ...runs.dependencies import content_hash
from ...runs.outcome import MASKED, UNDECIDED
from ..outcomes import jobs
from ..outcomes.driver import Driver
from ..outcomes.sampling import Experiment
from ..outcomes.standing import LOCK
from ..outcomes.store import Store
from . import tasks
from .board import VERDICTS, require_same
from .store import ScoreStore

EVERY = 10.0  # seconds between two lines about the progress
PAIRS = 30  # rounds of the measurement of costs
GROWING = ("fault_free_seeds", "masked")  # settings that add rows, and change none


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

    def taken() -> NoReturn:
        raise InputError("another process is at work in this folder", out)

    task = dataclasses.replace(task, name=content_hash([str(out.absolute()), "score"]))
    with executors as slots, only_writer(out / LOCK, taken), ScoreStore(out, write=True) as store:
        driver = ScoreDriver(task, store, slots)
        driver.run()
        driver.measure()


class ScoreDriver(Driver):
    """Hands out the watching of experiments and of fault-free runs."""

    task: tasks.ScoreTask

    @property
    def _experiment(self) -> Callable[..., Any]:
        return tasks.experiment

    def _wanted(self) -> list[int]:
        """All experiments that were not masked, and the first of those that were."""
        masked = [number for number, row in self._judged.items() if row["outcome"] == MASKED]
        others = [number for number, row in self._judged.items() if row["outcome"] not in (MASKED, UNDECIDED)]
        return sorted([*masked[: self.task.settings.masked], *others])

    @functools.cached_property
    def _judged(self) -> dict[int, sqlite3.Row]:
        """What the campaign says of its experiments, by their numbers in order."""
        with Store(self.store.path.parent) as campaign:
            return {row["number"]: row for row in campaign.query(f"{VERDICTS} ORDER BY number")}

    def _keep(self, value: tuple[Any, dict[str, Any]]) -> None:
        scored, _ = value
        require_same(scored.number, scored.found, self._judged[scored.number])
        super()._keep(value)

    def _begin(self, golden: jobs.Ready) -> None:
        settings = dataclasses.asdict(self.task.settings)
        key = content_hash([golden.plan_key, {k: v for k, v in settings.items() if k not in GROWING}])
        super()._begin(dataclasses.replace(golden, plan_key=key))
        self.store.put("about", "settings", settings)
        here = {name for name, _ in self.store.all("fault_free")}
        wanted = [("golden", 0), *(("twin", n) for n in range(1, self.task.plan.twins + 1))]
        wanted += [("seed", self._seed(n)) for n in range(self.task.settings.fault_free_seeds)]
        for kind, number in wanted:
            name = f"{kind} {number}"
            if name not in here:
                arguments = (self.golden.golden_key, kind, number)
                take = functools.partial(self.store.put, "fault_free", name)
                self.ready.append(Errand(f"the fault-free run {name}", tasks.fault_free, arguments, take))

    def _seed(self, number: int) -> int:
        """A seed that is not the plan's."""
        first: int = self.task.plan.workload.seed + 1
        return (first + number) % 2**31

    def _forked_from(self, experiments: Iterable[Experiment]) -> set[int]:
        """A recovery goes back one step further."""
        steps = super()._forked_from(experiments)
        return steps | {step - 1 for step in steps if step}

    def measure(self) -> None:
        """Measure what the detectors cost, when nothing else runs."""
        if self.store.get("cost", "all") is None:
            take = functools.partial(self.store.put, "cost", "all")
            self.ready.append(Errand("the measurement of costs", tasks.cost, (self.golden.golden_key, PAIRS), take))
            self.work(lambda: None)

    def _display(self) -> Any:
        return _Lines(self.store, len(self._wanted()))


class _Lines:
    """Says on standard error how far it is; a context that says it a last time."""

    def __init__(self, store: ScoreStore, experiments: int):
        self._store, self._experiments = store, experiments
        self._shown = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._say()

    def show(self) -> None:
        """Say it, if it is time."""
        if time.monotonic() - self._shown >= EVERY:
            self._say()

    def _say(self) -> None:
        self._shown = time.monotonic()
        runs = sum(1 for _ in self._store.all("fault_free"))
        watched = f"{len(self._store.done())} of {self._experiments} experiments watched"
        print(f"{watched}, {runs} fault-free runs", file=sys.stderr, flush=True)


def plan_tasks(task: tasks.ScoreTask) -> Iterator[str]:
    """What a scoreboard does, one sentence per line."""
    s, plan = task.settings, task.plan
    watched = f"what was not masked of {plan.experiments} experiments, and at most {s.masked} others"
    yield f"{len(s.detectors)} detectors watch {watched}, for at most {s.window} steps: {', '.join(s.detectors)}."
    yield (
        f"False alarms are counted in the golden run, {plan.twins} twins and the runs of {s.fault_free_seeds} other "
        f"seeds: {(1 + plan.twins + s.fault_free_seeds) * (numbered_steps(task))} steps."
    )


def numbered_steps(task: tasks.ScoreTask) -> int:
    """Steps of one fault-free run."""
    return task.plan.workload.epochs * task.plan.steps_per_epoch
