"""Signals that end this process as an exception, and never in the middle of a file."""

import contextlib
import os
import signal
import sys
import threading
import types
from collections.abc import Iterator
from typing import NoReturn

AGAIN = 0.02  # seconds until an exception that Python has dropped is raised again
ENDING = (signal.SIGINT, signal.SIGTERM)

_files = 0  # contexts of `unbroken` that the main thread is in
_ending: type[BaseException] | None = None  # of the first signal that has come
_dropped = False  # whether Python has dropped it since it was raised


class Terminated(KeyboardInterrupt):
    """This process was asked to end, by SIGTERM: as schedulers and containers do before they kill."""


def answer_termination() -> None:
    """From now on SIGINT raises `KeyboardInterrupt` here, and SIGTERM `Terminated`: the first of them, once.

    A second one is ignored: who cannot wait kills.  A process that was started without ears for SIGINT, as shells
    start one in the background, does not hear it.
    """
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        raise_at(signal.SIGINT, KeyboardInterrupt)
    raise_at(signal.SIGTERM, Terminated)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)  # this process may have begun under `hold_back`


def hold_back() -> None:
    """From now on signals that end this process wait, also for the program that takes its place and answers them."""
    signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)


def raise_at(number: signal.Signals, ending: type[BaseException]) -> None:
    """From now on the signal raises `ending` in the main thread, once: at once, or where `heed` or `unbroken` say.

    Python drops what is raised in a finalizer, in a callback of a weak reference or of the garbage collector, and
    so it would drop the signal.  What it has dropped is raised again.
    """

    def handle(_number: int, _frame: types.FrameType | None) -> None:
        global _ending
        if _ending is None:
            _ending = ending
            if not _files:
                raise ending

    sys.unraisablehook = _raise_again
    signal.signal(number, handle)


def _raise_again(unraisable: "sys.UnraisableHookArgs") -> None:
    """Take notice of what Python drops: the ending is raised again a moment later, anything else is shown."""
    global _dropped
    if _ending is None or unraisable.exc_type is not _ending:
        sys.__unraisablehook__(unraisable)
        return
    _dropped = True
    signal.signal(signal.SIGALRM, lambda *_: _heed_dropped())
    signal.setitimer(signal.ITIMER_REAL, AGAIN)


def _heed_dropped() -> None:
    if _dropped and not _files:
        heed()


def heed() -> None:
    """Raise what a signal could not raise when it came.  Whoever begins another piece of work asks here."""
    global _dropped
    if _ending is not None:
        _dropped = False
        raise _ending


@contextlib.contextmanager
def unbroken() -> Iterator[None]:
    """Inside this context no signal raises; one that came meanwhile raises at its end."""
    global _files
    if threading.current_thread() is not threading.main_thread():  # no signal raises in another thread
        yield
        return
    _files += 1
    before = _ending
    try:
        yield
    finally:
        _files -= 1
        if not _files and (_ending is not before or _dropped):
            heed()


def leave(code: int) -> NoReturn:
    """End this process; no signal changes its code any more.

    One of several that compute together and failed does not wait for the others, which may be gone.
    """
    for number in ENDING:
        signal.signal(number, signal.SIG_IGN)
    if code and "jax" in sys.modules and sys.modules["jax"].distributed.is_initialized():
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)
