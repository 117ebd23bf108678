"""Handing out errands to processes that may die, and taking in what they bring."""

import collections
import concurrent.futures
import dataclasses
import time
from collections.abc import Callable, Iterator
from typing import Any

from ..machine.errors import Untrustworthy
from ..machine.processes import broke_off
from ..machine.termination import heed
from .executors import Slot

ATTEMPTS = 5  # times that an errand may lose its process before the campaign stops over it


class JobLost(Untrustworthy):
    """Processes died over the same errands again and again."""


@dataclasses.dataclass(frozen=True)
class Errand:
    """A function of `jobs` for one of the campaign's processes; handed out again if the process dies over it.

    Attributes:
      name: for people, and to count the processes lost.
      function, arguments: what to call; the task is its first argument.
      take: called with what it returned.
      alone: no other errand depends on it: where it loses its process again and again, the others go on.
    """

    name: str
    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    take: Callable[[Any], None]
    alone: bool = False


class Dispatcher:
    """Hands out errands and takes in results.

    Args:
      task: the first argument of every errand's function.
      slots: where they run.
      event: called with a sentence about a process that died.

    Attributes:
      ready: errands that wait, the first to be handed out first.
      given_up: names of errands that lost their process too often.
    """

    def __init__(self, task: Any, slots: list[Slot], event: Callable[[str], None]):
        self.task, self.slots, self.event = task, slots, event
        self.ready: collections.deque[Errand] = collections.deque()
        self.given_up: list[str] = []
        self._running: dict[concurrent.futures.Future[Any], tuple[Slot, concurrent.futures.Executor, Errand]] = {}
        self._lost_over: collections.Counter[str] = collections.Counter()

    @property
    def room(self) -> int:
        """Errands that can be handed out at once."""
        return sum(slot.capacity for slot in self.slots)

    def work(
        self,
        supply: Callable[[], bool] = lambda: False,
        meanwhile: Callable[[], None] = lambda: None,
    ) -> None:
        """Until nothing is left to hand out or to wait for.

        Args:
          supply: makes errands ready, where it is time; says whether there will be more that are not ready yet.
          meanwhile: called now and then.
        """
        while supply() or self.ready or self._running:
            heed()
            for slot in self._free():
                if self.ready:
                    self._submit(slot, self.ready.popleft())
            for errand, value in self._finished(timeout=1.0):
                errand.take(value)
            meanwhile()

    def call(self, name: str, function: Callable[..., Any], *arguments: Any) -> Any:
        """What a job returns for one errand that all others wait for."""
        values: list[Any] = []
        self.ready.append(Errand(name, function, arguments, values.append))
        self.work()
        return values[0]

    def settle(self, what: str) -> None:
        """Raise JobLost where errands were given up; `what` they are called together."""
        if self.given_up:
            named = f"{len(self.given_up)} {what} lost their process {ATTEMPTS} times and have no verdict"
            raise JobLost(
                f"{named}: {', '.join(self.given_up)}"[:300] + "; out of memory? The same command tries again"
            )

    def _free(self) -> Iterator[Slot]:
        """A slot for each errand that may be handed out now, the idle ones first."""
        load = collections.Counter(id(slot) for slot, *_ in self._running.values())
        for tasks in range(max(slot.capacity for slot in self.slots)):
            yield from (slot for slot in self.slots if load[id(slot)] <= tasks < slot.capacity)

    def _submit(self, slot: Slot, errand: Errand) -> None:
        try:
            future = slot.executor.submit(errand.function, self.task, *errand.arguments)
        except slot.lost:
            slot.renew(slot.executor)
            future = slot.executor.submit(errand.function, self.task, *errand.arguments)
        self._running[future] = slot, slot.executor, errand

    def _finished(self, timeout: float) -> Iterator[tuple[Errand, Any]]:
        """What has ended, and its value; what lost its process is ready again."""
        if not self._running:  # an engine has lost all its workers, and may get others
            time.sleep(timeout)
        ended = concurrent.futures.wait(self._running, timeout, concurrent.futures.FIRST_COMPLETED).done
        broken = set()
        for future in [future for future in self._running if future in ended]:  # in the order of their submission
            slot, executor, errand = self._running.pop(future)
            try:
                value = future.result()
            except slot.lost as error:
                slot.renew(executor)
                if executor in broken:  # waited behind the one that lost the process
                    self.ready.appendleft(errand)
                else:
                    broken.add(executor)
                    self._lost(errand, error)
            except Exception as error:
                if not broke_off(error):
                    raise
                self._lost(errand, error)  # out of memory, or the device is gone
            else:
                yield errand, value

    def _lost(self, errand: Errand, error: Exception) -> None:
        """The errand again, but not for ever."""
        self._lost_over[errand.name] += 1
        self.event(f"a process died during {errand.name}, attempt {self._lost_over[errand.name]}: {error}"[:300])
        if self._lost_over[errand.name] < ATTEMPTS:
            self.ready.appendleft(errand)
        elif errand.alone:
            self.given_up.append(errand.name)
        else:
            raise JobLost(f"{errand.name} has lost its process {ATTEMPTS} times; out of memory? the last: {error}")
