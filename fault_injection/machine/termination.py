"""Signals that end this process as an exception, and never in the middle of a file."""

import contextlib
import gc
import signal
import threading
import types
from collections.abc import Iterator

_files = 0  # contexts of `unbroken` that the main thread is in
_ending: type[BaseException] | None = None  # of the signal that has come


class Terminated(KeyboardInterrupt):
    """This process was asked to end, by SIGTERM: as schedulers and containers do before they kill."""


def answer_termination() -> None:
    """From now on SIGTERM raises `Terminated` here, once, so that a command ends as when it is interrupted.

    A second one is ignored: who cannot wait kills.
    """
    raise_at(signal.SIGTERM, Terminated)


def raise_at(number: signal.Signals, ending: type[BaseException]) -> None:
    """From now on the signal raises `ending` in the main thread, once: at once, or where `heed` or `unbroken` say."""

    def handle(_number: int, frame: types.FrameType | None) -> None:
        global _ending
        signal.signal(number, signal.SIG_IGN)
        _ending = ending
        if not _files and not _dropped(frame):
            raise ending

    signal.signal(number, handle)


def _dropped(frame: types.FrameType | None) -> bool:
    """Whether Python would drop an exception here: in a finalizer, or in a callback of the garbage collector."""
    callbacks = [getattr(callback, "__code__", None) for callback in gc.callbacks]
    while frame is not None:
        if frame.f_code.co_name == "__del__" or frame.f_code in callbacks:
            return True
        frame = frame.f_back
    return False


def heed() -> None:
    """Raise what a signal could not raise when it came.  Whoever begins another piece of work asks here."""
    if _ending is not None:
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
        if not _files and _ending is not before:
            heed()
