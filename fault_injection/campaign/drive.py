"""The driver of a campaign: hands out walks and experiments, keeps the store, and outlives its processes."""

import collections
import concurrent.futures
import contextlib
import dataclasses
import itertools
import pathlib
import shutil
from collections.abc import Iterator
from typing import Any

from ..errors import InputError, Untrustworthy
from ..files import only_writer
from ..processes import say
from . import jobs
from .executors import Slot
from .live import Table
from .sampling import draw
from .store import Store

ATTEMPTS = 5  # times that an experiment may lose its process before the campaign stops over it


class JobLost(Untrustworthy):
    """One and the same task has lost its process several times."""


def campaign(task: jobs.Task, out: pathlib.Path, executors: contextlib.AbstractContextManager[list[Slot]]) -> None:
    """Run a campaign, or what is left of it, to its end.

    Args:
      task: its plan, and where things are.
      out: its folder.
      executors: where its jobs run.

    Raises:
      InputError: another campaign is in `out`, or runs there.
      NotRepeated, FaultNotApplied: a result was not to be trusted; what was done before is kept.
      JobLost: the process of one experiment died again and again.
    """

    def taken():
        raise InputError("another process is running a campaign in this folder", out)

    out.mkdir(parents=True, exist_ok=True)
    with only_writer(out / "lock", taken), contextlib.closing(Store(out, write=True)) as store:
        store.expect(task.plan)
        if len(store.done()) >= task.plan.experiments:
            say(f"all {task.plan.experiments} experiments are done; python -m fault_injection report {out}")
            return
        with executors as slots:
            store.event("started")
            try:
                Driver(task, store, slots).run()
            except BaseException as error:
                with contextlib.suppress(InputError):
                    store.event(f"stopped: {type(error).__name__} {error}"[:300])
                raise
            store.event("finished")


@dataclasses.dataclass(frozen=True)
class Walking:
    """A walk handed out."""

    epoch: int


GOLDEN = Walking(-1)


class Driver:
    """Hands out tasks and takes in results; see `campaign`."""

    def __init__(self, task: jobs.Task, store: Store, slots: list[Slot]):
        self.task, self.store, self.slots = task, store, slots
        self.running: dict[concurrent.futures.Future, tuple[Slot, concurrent.futures.Executor, int | Walking]] = {}
        self.attempts: collections.Counter[int | Walking] = collections.Counter()
        self.ready: collections.deque[int] = collections.deque()  # experiments whose walk is done
        self.walks: collections.deque[int] = collections.deque()  # epochs to be walked through
        self.left: dict[int, set[int]] = {}  # experiments without a verdict, by epoch

    def run(self) -> None:
        """All that is missing."""
        self.golden = self._make_golden()
        plan = self.task.plan
        self.store.begin(self.golden.plan_key, plan)
        self.store.note(experiments=plan.experiments, steps_per_epoch=self.golden.steps_per_epoch)
        self.store.note(half_width=plan.half_width, confidence=plan.confidence, noise=self.golden.noise)
        self.store.note(conditions=dataclasses.asdict(self.task.conditions), jobs=len(self.slots))
        done = self.store.done()
        missing = [draw(plan, number) for number in range(plan.experiments) if number not in done]
        missing.sort(key=lambda e: (e.epoch, e.step, e.number))
        epochs = {epoch: list(group) for epoch, group in itertools.groupby(missing, key=lambda e: e.epoch)}
        self.left = {epoch: {e.number for e in group} for epoch, group in epochs.items()}
        self.walks.extend(epochs)
        with Table(self.store, plan, len(missing)) as table:
            while self.walks or self.ready or self.running:
                for slot in self._free():
                    walking = any(isinstance(what, Walking) for *_, what in self.running.values())
                    if self.walks and not walking and len(self.ready) < 2 * len(self.slots):
                        epoch = self.walks.popleft()
                        steps = tuple(sorted({e.step for e in epochs[epoch]}))
                        self._submit(slot, Walking(epoch), jobs.walk, self.golden.golden_key, epoch, steps)
                    elif self.ready:
                        number = self.ready.popleft()
                        self._submit(slot, number, jobs.experiment, self.golden.golden_key, number)
                for what, value in self._finished(timeout=1.0):
                    if isinstance(what, Walking):
                        self.store.walked(what.epoch, *value)
                        self.ready.extend(e.number for e in epochs[what.epoch])
                    else:
                        self._keep(what, *value)
                        table.done += 1
                table.show()

    def _keep(self, number, result, environment):
        self.store.add([result], environment, self.golden.plan_key)
        self.left[result.epoch].discard(number)
        if not self.left[result.epoch]:  # nothing forks from these states any more
            shutil.rmtree(self.golden.folder / "walks" / f"{result.epoch:04d}", ignore_errors=True)

    def _make_golden(self) -> jobs.Ready:
        slot = self.slots[0]
        self._submit(slot, GOLDEN, jobs.make_golden)
        while True:
            for _, ready in self._finished(timeout=1.0):
                return ready
            if not self.running:
                self._submit(slot, GOLDEN, jobs.make_golden)

    def _free(self) -> Iterator[Slot]:
        """A slot for each task that may be handed out now, the idle ones first."""
        load = collections.Counter(id(slot) for slot, *_ in self.running.values())
        for tasks in range(max(slot.capacity for slot in self.slots)):
            yield from (slot for slot in self.slots if load[id(slot)] <= tasks < slot.capacity)

    def _submit(self, slot: Slot, what: int | Walking, function: Any, *arguments: Any) -> None:
        try:
            future = slot.executor.submit(function, self.task, *arguments)
        except slot.lost:
            slot.renew(slot.executor)
            future = slot.executor.submit(function, self.task, *arguments)
        self.running[future] = slot, slot.executor, what

    def _finished(self, timeout: float) -> Iterator[tuple[int | Walking, Any]]:
        """What has ended, and its value; what lost its process is put back."""
        ended = concurrent.futures.wait(self.running, timeout, concurrent.futures.FIRST_COMPLETED).done
        for future in ended:
            slot, executor, what = self.running.pop(future)
            try:
                value = future.result()
            except slot.lost as error:
                slot.renew(executor)
                self._lost(what, error)
            else:
                yield what, value

    def _lost(self, what: int | Walking, error: Exception) -> None:
        """A process died: its task is handed out again."""
        named = f"experiment {what}" if isinstance(what, int) else f"the walk through epoch {what.epoch}"
        if isinstance(what, Walking) and what.epoch == GOLDEN.epoch:
            named = "the golden run"
        self.attempts[what] += 1
        self.store.event(f"a process died during {named}, attempt {self.attempts[what]}: {error}"[:300])
        if self.attempts[what] == ATTEMPTS:
            raise JobLost(f"{named} has lost its process {ATTEMPTS} times; out of memory? the last: {error}")
        if isinstance(what, int):
            self.ready.appendleft(what)
        elif what != GOLDEN:
            self.walks.appendleft(what.epoch)
