"""Mistakes of the person at the keyboard, answered in one line."""

import difflib
from collections.abc import Iterable


class InputError(Exception):
    """Unusable input.  The message is one line: where, what was found, what was expected.

    Args:
      message: what is wrong and what to do.
      path: the file at fault, if any.
      line: its line, from 1.
    """

    def __init__(self, message: str, path: object = None, line: int | None = None):
        place = "" if path is None else f"{path}: " if line is None else f"{path}:{line}: "
        super().__init__(" ".join(f"{place}{message}".split()))


class Untrustworthy(Exception):
    """What was computed contradicts itself; nothing measured on it would mean anything.  The message is one line."""


def did_you_mean(found: str, valid: Iterable[str]) -> str:
    """`; did you mean 'x'?` with the nearest valid name, or the valid names where none is near."""
    valid = list(valid)
    near = difflib.get_close_matches(found, valid, n=1, cutoff=0.6)
    if near:
        return f"; did you mean '{near[0]}'?"
    return f"; expected one of {', '.join(valid)}" if len(valid) <= 20 else ""
