"""The text of Criteo's challenge: a label, 13 whole numbers and 26 hexadecimal ones a line, as numbers."""

import pathlib

import numpy as np

from ..machine.errors import InputError
from ..machine.reading import SHOWN

NUMBERS, CATEGORIES = 13, 26
COLUMNS = 1 + NUMBERS + CATEGORIES
TAB, NEWLINE, MINUS = b"\t\n-"
DIGITS, HEXADECIMAL = 9, 8  # of a number and of a category, at most
EXPECTED = f"expected {COLUMNS}: a label, {NUMBERS} whole numbers, {CATEGORIES} hexadecimal numbers, with tabs between"
# What each byte is worth as a digit; 255 where it is none.
WORTH = np.full(256, 255, np.uint8)
WORTH[np.frombuffer(b"0123456789abcdef", np.uint8)] = np.arange(16)
WORTH[np.frombuffer(b"ABCDEF", np.uint8)] = np.arange(10, 16)


def converted(lines: bytes, before: int, path: pathlib.Path) -> np.ndarray:
    """Whole lines, each with its newline, as int32 [n,40]: label, numbers, and the bits of the categories.

    What is missing is 0.  All fields are read at once, digit by digit: a million lines take seconds.

    Args:
      before: how many lines of the file come before, for messages.
      path: of the file, for messages.

    Raises:
      InputError: a line has another number of columns, or a column that is no such number.

    >>> line = b"1\\t7\\t-1" + 11 * b"\\t" + b"\\tff" + 25 * b"\\t" + b"\\n"
    >>> converted(line, 0, pathlib.Path("train.txt"))[0, :15].tolist()
    [1, 7, -1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255]
    """
    text = np.frombuffer(lines, np.uint8)
    at = np.flatnonzero((text == TAB) | (text == NEWLINE))
    last = np.arange(len(at)) % COLUMNS == COLUMNS - 1
    if len(at) % COLUMNS or ((text[at] == NEWLINE) != last).any():
        raise _mistake(lines, before, path)
    begins, ends = np.append(0, at[:-1] + 1).reshape(-1, COLUMNS), at.reshape(-1, COLUMNS)

    decimal, sixteen = slice(0, 1 + NUMBERS), slice(1 + NUMBERS, COLUMNS)
    negative = (text[begins[:, decimal]] == MINUS) & (begins[:, decimal] < ends[:, decimal])
    numbers, valid = _read(text, begins[:, decimal] + negative, ends[:, decimal], 10, DIGITS)
    valid &= ~negative | (begins[:, decimal] + 1 < ends[:, decimal])
    valid[:, 0] &= (begins[:, 0] + 1 == ends[:, 0]) & (numbers[:, 0] <= 1)
    categories, right = _read(text, begins[:, sixteen], ends[:, sixteen], 16, HEXADECIMAL)
    if not (valid.all() and right.all()):
        raise _mistake(lines, before, path)
    numbers = np.where(negative, -numbers, numbers)
    return np.concatenate([numbers.astype(np.int32), categories.astype(np.uint32).view(np.int32)], axis=1)


def _read(
    text: np.ndarray, begins: np.ndarray, ends: np.ndarray, base: int, most: int
) -> tuple[np.ndarray, np.ndarray]:
    """The numbers [n,k] that stand between `begins` and `ends` [n,k], 0 where nothing does; and which are numbers."""
    lengths = ends - begins
    value, valid = np.zeros(begins.shape, np.int64), lengths <= most
    for place in range(min(most, int(lengths.max(initial=0)))):
        here = place < lengths
        digit = WORTH[text[np.where(here, begins + place, 0)]]
        valid &= ~here | (digit < base)
        value = np.where(here, value * base + digit, value)
    return value, valid


def _mistake(lines: bytes, before: int, path: pathlib.Path) -> InputError:
    """What is wrong with the first line that is not as expected."""
    for number, line in enumerate(lines.removesuffix(b"\n").split(b"\n"), before + 1):
        fields = line.split(b"\t")
        if len(fields) != COLUMNS:
            return InputError(f"{len(fields)} columns; {EXPECTED}", path, number)
        for column, field in enumerate(fields):
            digits = field.removeprefix(b"-") if 0 < column <= NUMBERS else field
            found = f"column {column + 1}, {field[:SHOWN].decode(errors='replace')!r}"
            if column == 0:
                expected, right = "a label, 0 or 1", field in (b"0", b"1")
            elif column <= NUMBERS:
                expected = f"a whole number of at most {DIGITS} digits, or nothing"
                right = len(digits) <= DIGITS and (digits.isdigit() or not field)
            else:
                expected = f"at most {HEXADECIMAL} hexadecimal digits, or nothing"
                right = len(digits) <= HEXADECIMAL and all(WORTH[byte] < 16 for byte in digits)
            if not right:
                return InputError(f"{found}; expected {expected}", path, number)
    raise AssertionError("every line is as expected")
