"""The driver of a campaign: hands out walks and experiments, keeps the store, and outlives its processes."""

import collections
import contextlib
import dataclasses
import functools
import itertools
import pathlib
import shutil
from collections.abc import Callable, Iterable
from typing import Any, NoReturn

from ...campaign.dispatcher import ATTEMPTS, Dispatcher, Errand, JobLost
from ...campaign.executors import Slot
from ...machine.errors import InputError
from ...machine.files import only_writer
from ...machine.processes import say
from ...runs.dependencies import content_hash
from . import jobs
from .sampling import Experiment, draw
from .standing import LOCK
from .store import Store
from .terminal import Display
from .walk import walk_folder


def campaign(
    task: jobs.Task,
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

    def taken() -> NoReturn:
        raise InputError("another process is running a campaign in this folder", out)

    task = dataclasses.replace(task, name=content_hash(str(out.absolute())))
    new = not out.exists()
    with executors as slots, only_writer(out / LOCK, taken), Store(out, write=True) as store:
        store.expect(task.plan)
        lost = store.mend()
        if lost:
            say(f"{store.path}: damaged rows are removed, and what is missing is run again: {lost}")
        done, wanted = store.done(), set(range(task.plan.experiments))
        if done - wanted:
            raise InputError(f"{len(done)} experiments are here, up to number {max(done)}: a plan can only grow", out)
        if done == wanted and not lost:
            say(f"all {task.plan.experiments} experiments are done; python -m fault_injection report {out}")
            return
        store.event("started")
        try:
            Driver(task, store, slots, plan_file).run()
        except BaseException as error:
            with contextlib.suppress(InputError):
                store.event(f"stopped: {type(error).__name__} {error}".strip()[:300])
                if new and store.plan() is None:
                    shutil.rmtree(out, ignore_errors=True)
            raise
        store.event("finished")


class Driver(Dispatcher):
    """Hands out walks and experiments, and keeps the store; see `campaign`."""

    def __init__(self, task: jobs.Task, store: Any, slots: list[Slot], plan_file: str | None = None):
        super().__init__(task, slots, store.event)
        self.store, self.plan_file = store, plan_file
        self.walks: dict[int, list[Experiment]] = {}  # experiments of the epochs not walked through, in their order
        self.walking = False
        self.left: collections.Counter[int] = collections.Counter()  # experiments without a verdict, by epoch

    def run(self) -> None:
        """All that is missing."""
        plan = self.task.plan
        self.ready.append(Errand("the golden run", jobs.make_golden, (), self._begin))
        self.work(lambda: None)
        done = self.store.done()
        missing = [draw(plan, number) for number in self._wanted() if number not in done]
        missing.sort(key=lambda e: (e.epoch, e.step, e.number))
        self.walks = {epoch: list(group) for epoch, group in itertools.groupby(missing, key=lambda e: e.epoch)}
        self.left.update(e.epoch for e in missing)
        with self._display() as table:
            self.work(table.show, more=lambda: bool(self.walks), supply=self._walk_ahead)
        shutil.rmtree(self.golden.walks, ignore_errors=True)
        if self.given_up:
            named = f"{len(self.given_up)} experiments lost their process {ATTEMPTS} times and have no verdict"
            raise JobLost(
                f"{named}: {', '.join(self.given_up)}"[:300] + "; out of memory? The same command tries again"
            )

    @property
    def _experiment(self) -> Callable[..., Any]:
        """What is done for each experiment: a function of the task, the golden run's key and a number."""
        return jobs.experiment

    def _wanted(self) -> Iterable[int]:
        """Numbers of the experiments."""
        return range(self.task.plan.experiments)

    def _forked_from(self, experiments: Iterable[Experiment]) -> set[int]:
        """Steps of their epoch before which these experiments need the golden state."""
        return {e.step for e in experiments}

    def _display(self) -> Display:
        return Display(self.store, self.task.plan)

    def _begin(self, golden: jobs.Ready) -> None:
        self.golden = golden
        known = {
            "conditions": dataclasses.asdict(golden.conditions),
            "measure": golden.measure._asdict(),
            "plan_file": self.plan_file,
            "jobs": sum(slot.jobs() for slot in self.slots),
        }
        self.store.begin(golden.plan_key, self.task.plan, **known)

    def _walk_ahead(self) -> None:
        """One walk at a time, and just ahead of its experiments."""
        if self.walks and not self.walking and len(self.ready) < self.room:
            self._walk()

    def _walk(self) -> None:
        """Hand out the walk through the next epoch, before any experiment."""
        epoch = next(iter(self.walks))
        experiments = self.walks.pop(epoch)
        take = functools.partial(self._walked, epoch, experiments)
        arguments = (self.golden.golden_key, epoch, tuple(sorted(self._forked_from(experiments))))
        self.ready.appendleft(Errand(f"the walk through epoch {epoch}", jobs.walk, arguments, take))
        self.walking = True

    def _walked(self, epoch: int, experiments: list[Experiment], value: tuple[int, float]) -> None:
        self.walking = False
        self.store.walked(epoch, *value)
        for e in experiments:
            arguments = (self.golden.golden_key, e.number)
            self.ready.append(Errand(f"experiment {e.number}", self._experiment, arguments, self._keep, alone=True))

    def _keep(self, value: tuple[Any, dict[str, Any]]) -> None:
        result, environment = value
        self.store.add([result], environment, self.golden.plan_key)
        self.left[result.epoch] -= 1
        if not self.left[result.epoch]:  # nothing forks from these states any more
            shutil.rmtree(walk_folder(self.golden.walks, result.epoch), ignore_errors=True)
