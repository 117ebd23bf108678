"""What a campaign's terminal shows: how far it is, and what has come of it so far."""

import contextlib
import sys
import time
from collections.abc import Callable, Iterator, Sequence

EVERY = {True: 2.0, False: 60.0}  # seconds between two pictures, on a terminal and in a log
UP, CLEAR = "\x1b[{}A", "\x1b[J"


@contextlib.contextmanager
def display(lines: Callable[[float], Sequence[str]]) -> Iterator[Callable[[], None]]:
    """Lines on standard error, redrawn in place on a terminal, and shown a last time at the end of the context.

    Args:
      lines: what is shown, given the seconds since the context began.

    Returns:
      A function that shows them, if it is time.
    """
    begun, shown, height = time.monotonic(), 0.0, 0

    def show(last: bool = False) -> None:
        nonlocal shown, height
        now, terminal = time.monotonic(), sys.stderr.isatty()
        if last or now - shown >= EVERY[terminal]:
            text, back = lines(now - begun), UP.format(height) + CLEAR if terminal and height else ""
            print(back + "\n".join(text), file=sys.stderr, flush=True)
            shown, height = now, len(text)

    try:
        yield show
    finally:
        show(last=True)


def clock(seconds: float) -> str:
    """A time in the unit that reads best.

    >>> clock(42.3), clock(200), clock(8000)
    ('42 s', '3 min', '2 h 13 min')
    """
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes // 60} h {minutes % 60} min" if minutes >= 60 else f"{minutes} min"
