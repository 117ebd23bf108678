"""Where a campaign's jobs run: processes of this machine, or an engine behind `concurrent.futures`.

A job is a process that computes, until the driver tells it to end or is no more.
"""

import concurrent.futures
import contextlib
import dataclasses
import functools
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

from tqdm import tqdm

from ..machine.errors import InputError
from ..machine.termination import raise_at

# What lets a process see one accelerator only.
ONE = {
    "gpu": {"CUDA_VISIBLE_DEVICES": "{}"},
    "tpu": {"TPU_VISIBLE_CHIPS": "{}", "TPU_PROCESS_BOUNDS": "1,1,1", "TPU_CHIPS_PER_PROCESS_BOUNDS": "1,1,1"},
}
# Cores of one TPU chip have its coordinates.
COUNT = (
    "import jax; chips = {str(getattr(d, 'coords', d.id)) for d in jax.local_devices()}; "
    "print(jax.default_backend(), len(chips))"
)

END_SIGNAL = signal.SIGUSR1  # tells a job to end
WAIT = 60  # seconds for a scheduler's first worker
PATIENCE = 5  # seconds for a job to end by itself, before it is killed


@dataclasses.dataclass
class Slot:
    """An executor, and how much it is given at a time.

    Attributes:
      make: makes the executor; called again when it is broken.
      jobs: says how many processes it has.
      lost: errors that say that a process died and its task with it, not that the task failed.
      executor: the one in use.
    """

    make: Callable[[], concurrent.futures.Executor]
    jobs: Callable[[], int]
    lost: tuple[type[Exception], ...]
    executor: concurrent.futures.Executor

    @property
    def capacity(self) -> int:
        """Tasks it is given: two a job, so that none need wait for the driver."""
        return 2 * self.jobs()

    def renew(self, broken: concurrent.futures.Executor) -> None:
        """A new executor in the place of a broken one, if it is still there: each of its tasks says that it broke."""
        if self.executor is broken:
            self.executor = self.make()
            if self.executor is not broken:
                broken.shutdown(wait=False, cancel_futures=True)


@contextlib.contextmanager
def on_this_machine(count: int | None) -> Iterator[list[Slot]]:
    """So many spawned processes, one accelerator or one processor each; by default as many as there are.

    Each is an executor of its own: a process that dies takes no other's experiment with it.

    Raises:
      InputError: more than one to an accelerator.
    """
    places = list(_places())
    if count and count > len(places) and "device" in places[0]:
        raise InputError(f"--jobs {count}: a job takes an accelerator, and there are {len(places)}")
    slots = []
    for number in range(count or len(places)):
        make = functools.partial(_process, places[number % len(places)])
        slots.append(Slot(make, lambda: 1, (concurrent.futures.BrokenExecutor,), make()))
    try:
        yield slots
    finally:
        processes = [p for slot in slots for p in (slot.executor._processes or {}).values()]  # type: ignore[attr-defined]
        for process in processes:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, END_SIGNAL)
        late = threading.Timer(PATIENCE, lambda: [process.kill() for process in processes])
        late.start()
        for slot in slots:
            slot.executor.shutdown(wait=True, cancel_futures=True)
        late.cancel()


def _process(place: dict[str, Any]) -> concurrent.futures.ProcessPoolExecutor:
    context = multiprocessing.get_context("spawn")
    begin = functools.partial(_begin, **place)
    return concurrent.futures.ProcessPoolExecutor(1, mp_context=context, initializer=begin)


def _begin(processor: int | None = None, device: dict[str, str] | None = None) -> None:
    """Set up a process of this machine for jobs: one processor, or one accelerator; it ends when its parent does."""
    for number in (signal.SIGINT, signal.SIGTERM):  # the driver's business
        signal.signal(number, signal.SIG_IGN)
    raise_at(END_SIGNAL, SystemExit)
    tqdm.set_lock(threading.RLock())  # its own is a semaphore of the system, which a killed process would leave
    os.environ |= device or {}
    if processor is not None and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {processor})
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _places() -> Iterator[dict[str, Any]]:
    """Accelerators of this machine, or else its processors; asked in another process, since asking takes them."""
    found = subprocess.run([sys.executable, "-c", COUNT], capture_output=True, text=True, check=False).stdout.split()
    kind, count = (found[0], int(found[1])) if len(found) == 2 else ("cpu", 1)
    if kind in ONE:
        given = os.environ.get(next(iter(ONE[kind])))  # those that this process may use
        names = given.split(",") if given else range(count)
        yield from ({"device": {k: v.format(name) for k, v in ONE[kind].items()}} for name in names)
    else:
        processors = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
        yield from ({"processor": processor} for processor in sorted(processors))


@contextlib.contextmanager
def on_a_scheduler(address: str) -> Iterator[list[Slot]]:
    """The workers of a Dask scheduler, each with one thread.

    Raises:
      InputError: Dask is not installed, the scheduler does not answer, or has no workers, or some with more threads.
    """
    try:
        import distributed
    except ImportError:
        raise InputError("--scheduler needs Dask: pip install 'fault-injection[cluster]'") from None
    try:
        client = distributed.Client(address, timeout=30)
    except (OSError, ValueError, TimeoutError) as error:
        raise InputError(f"--scheduler {address}: {str(error).splitlines()[0]}") from None
    with client:
        try:
            client.wait_for_workers(1, timeout=WAIT)
        except TimeoutError:
            what = f"it has had no workers for {WAIT} s; start them with --nthreads 1"
            raise InputError(f"--scheduler {address}: {what}") from None
        threads = client.nthreads()
        if set(threads.values()) != {1}:
            raise InputError(f"--scheduler {address}: experiments take a process each; start workers with --nthreads 1")
        executor = client.get_executor(pure=False)
        lost = (distributed.scheduler.KilledWorker, concurrent.futures.CancelledError)
        # It outlives its workers: what makes a new one gives the same.
        try:
            yield [Slot(lambda: executor, lambda: len(client.nthreads()), lost, executor)]
        except distributed.client.ClosedClientError as error:
            raise InputError(f"--scheduler {address}: {error}; the same command goes on where it stopped") from None
