"""Mistakes of the person at the keyboard, answered in one line."""

import difflib
from collections.abc import Iterable

LONGEST = 2000  # characters of a message
COMPARED = 100  # characters of a name that is compared with valid ones


def printable(text: str) -> str:
    """The text with everything that a terminal would act on, or cannot show, as escapes.

    >>> print(printable("a file named " + chr(27) + "[2J"))
    a file named \\x1b[2J
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


class InputError(Exception):
    """Unusable input.  The message is one line: where, what was found, what was expected.

    Args:
      message: what is wrong and what to do.
      path: the file at fault, if any.
      line: its line, counted from 1.

    >>> print(InputError("epoch -1, expected a whole number from 0", "example.csv", 5))
    example.csv:5: epoch -1, expected a whole number from 0
    """

    def __init__(self, message: str, path: object = None, line: int | None = None) -> None:
        place = "" if path is None else f"{path}: " if line is None else f"{path}:{line}: "
        line_of_text = printable(" ".join(f"{place}{message}".split()))
        super().__init__(line_of_text if len(line_of_text) <= LONGEST else f"{line_of_text[:LONGEST]}…")


class Untrustworthy(Exception):
    """The computation contradicts itself or its own description, so its results would mean nothing.

    The message is one line.
    """


def did_you_mean(found: str, valid: Iterable[str]) -> str:
    """A hint that ends a message: the nearest valid name, or the valid names where none is near.

    >>> did_you_mean("resnet19", ["resnet18", "densenet"])
    "; did you mean 'resnet18'?"
    >>> did_you_mean("transformer", ["resnet18", "densenet"])
    '; expected one of resnet18, densenet'
    """
    valid = list(valid)
    near = difflib.get_close_matches(found[:COMPARED], valid, n=1, cutoff=0.6)
    if near:
        return f"; did you mean '{near[0]}'?"
    return f"; expected one of {', '.join(valid)}" if len(valid) <= 20 else ""
