"""A job: a process that computes, until the driver tells it to end or is no more."""

import multiprocessing
import os
import signal
import threading

from tqdm import tqdm

from ..machine.termination import raise_at

END_SIGNAL = signal.SIGUSR1  # tells a job to end


def begin(processor: int | None = None, device: dict[str, str] | None = None) -> None:
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
