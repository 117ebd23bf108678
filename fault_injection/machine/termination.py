"""Signals that end this process as an exception, and never in the middle of a file."""

import contextlib
import os
import signal
import sys
import threading
import types
from collections.abc import Iterator
from typing import NamedTuple, NoReturn

AGAIN = 0.02  # seconds until an exception that Python has dropped is raised again
_files = 0  # contexts of `unbroken` that the main thread is in
_ending: type[BaseException] | None = None  # of the first signal that has come
_dropped = False  # whether Python has dropped it since it was raised
_finished = False  # whether all work is done, so that a signal comes too late


class Terminated(KeyboardInterrupt):
    """This process was asked to end, by SIGTERM: as schedulers and containers do before they kill."""


class Ending(NamedTuple):
    """How a signal ends a command: by what is raised, with what exit code, and what the person is told."""

    exception: type[KeyboardInterrupt]
    code: int
    line: str


ENDINGS = {
    signal.SIGINT: Ending(KeyboardInterrupt, 130, "interrupted; the same command goes on where it stopped"),
    signal.SIGTERM: Ending(Terminated, 143, "terminated; the same command goes on where it stopped"),
}


def answer_termination() -> None:
    """From now on SIGINT raises `KeyboardInterrupt` here, and SIGTERM `Terminated`: the first of them, once.

    A second one is ignored: who cannot wait kills.
    """
    global _finished
    _finished = False
    for number in _heard():
        raise_at(number, ENDINGS[number].exception)


def leave_at_once() -> None:
    """From now on, until `answer_termination`, SIGINT and SIGTERM end this process where it stands.

    Nothing has begun that would need an end.  Nothing is raised, because JAX is being imported: its C++ code calls
    Python, and an exception there aborts the process.
    """

    def handle(number: int, _frame: types.FrameType | None) -> None:
        ending = ENDINGS[signal.Signals(number)]
        os.write(2, f"{ending.line}\n".encode())
        os._exit(ending.code)

    for number in _heard():
        signal.signal(number, handle)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDINGS)  # this process may have begun under `hold_back`


def _heard() -> list[signal.Signals]:
    """The signals that end this process.  Shells start a process in the background without ears for SIGINT."""
    return [number for number in ENDINGS if signal.getsignal(number) is not signal.SIG_IGN]


def hold_back() -> None:
    """From now on signals that end this process wait, also for the program that takes its place and answers them."""
    signal.pthread_sigmask(signal.SIG_BLOCK, ENDINGS)


def raise_at(number: signal.Signals, ending: type[BaseException]) -> None:
    """From now on the signal raises `ending` in the main thread, once: at once, or where `heed` or `unbroken` say.

    Python drops what is raised in a finalizer, in a callback of a weak reference or of the garbage collector, and
    so it would drop the signal.  What it has dropped is raised again.
    """

    def handle(_number: int, _frame: types.FrameType | None) -> None:
        global _ending
        if _ending is None and not _finished:
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


def too_late() -> None:
    """From now on no signal raises: a command calls this when its work is done, before it forgets how to go on."""
    global _finished, _ending, _dropped
    _finished, _ending, _dropped = True, None, False


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
    for number in ENDINGS:
        signal.signal(number, signal.SIG_IGN)
    if code and "jax" in sys.modules and sys.modules["jax"].distributed.is_initialized():
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)
