"""How far something is: a bar on a terminal, and a line now and then in a file."""

import sys
from typing import Any

from tqdm import tqdm

EVERY = 60.0  # seconds between two lines in a file
LINE = "{desc}: {n_fmt}/{total_fmt} [{elapsed}<{remaining}, {rate_fmt}{postfix}]"


class _LineByLine:
    """A file for `tqdm`: what it draws over each other on one line are lines of standard error."""

    def write(self, drawn: str) -> None:
        if line := drawn.strip("\r\n "):
            print(line, file=sys.stderr)

    def flush(self) -> None:
        sys.stderr.flush()


def progress_bar(**options: Any) -> "tqdm[Any]":
    """A bar of `tqdm` with these options, on standard error.

    >>> with progress_bar(total=3, unit="step", disable=True) as bar:
    ...     _ = bar.update(2)
    """
    if sys.stderr.isatty():
        return tqdm(**options)
    return tqdm(**{**options, "file": _LineByLine(), "mininterval": EVERY, "maxinterval": EVERY, "bar_format": LINE})
