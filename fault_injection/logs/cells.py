"""Cells of a log as numbers and times: as trackers, spreadsheets and pandas write them."""

import datetime
import math
import re

from ..machine.reading import NUMBER

Cell = str | float | int | bool | None
NOT_FINITE = re.compile(r"[+-]?(nan|inf|infinity)", re.IGNORECASE)
EMPTY = {"", "none", "null", "n/a", "na", "-", "--"}
GROUPS = re.compile(r"[+-]?[0-9]{1,3}(,[0-9]{3})+\.[0-9]+")  # 1,234.5: the point says that commas are of thousands
COMMA = re.compile(r"[+-]?[0-9]*,[0-9]+([eE][+-]?[0-9]+)?")
THOUSANDS = re.compile(r"[+-]?[1-9][0-9]{0,2},[0-9]{3}")  # 1,234: of thousands, or a decimal comma
LARGEST_STEP = 10**15
UNITS = ((1e17, 1e-9), (1e14, 1e-6), (1e11, 1e-3))  # seconds since 1970 are below 1e11 until the year 5138


def is_empty(cell: Cell) -> bool:
    """Whether nothing stands in a cell.

    >>> is_empty(" "), is_empty("None"), is_empty("nan"), is_empty(0)
    (True, True, False, False)
    """
    return cell is None or (isinstance(cell, str) and cell.strip().lower() in EMPTY)


def number(cell: Cell, decimal_comma: bool = False) -> float:
    """A cell as a number; raises ValueError where it is none.

    Args:
      decimal_comma: whether `1,234` is a number between 1 and 2; else it is refused, because it may be 1234.

    >>> number("2,3104", decimal_comma=True), number("1e-3"), number("-Infinity"), number(True)
    (2.3104, 0.001, -inf, 1.0)
    """
    if isinstance(cell, bool | int | float):
        try:
            return float(cell)
        except OverflowError:  # a whole number of JSON beyond float64
            return math.inf if cell > 0 else -math.inf
    text = (cell or "").strip()
    if NUMBER.fullmatch(text) or NOT_FINITE.fullmatch(text):
        return float(text)
    if GROUPS.fullmatch(text):
        return float(text.replace(",", ""))
    if COMMA.fullmatch(text) and (decimal_comma or not THOUSANDS.fullmatch(text)):
        return float(text.replace(",", "."))
    raise ValueError


def whole(cell: Cell, decimal_comma: bool = False) -> int:
    """A cell as a step: a whole number from 0, perhaps written as 12.0 or 1e3; raises ValueError where it is none.

    >>> whole("12.0"), whole("1e3")
    (12, 1000)
    """
    found = number(cell, decimal_comma)
    if not 0 <= found < LARGEST_STEP or not found.is_integer() or math.copysign(1, found) < 0:
        raise ValueError
    return int(found)


def seconds(cell: Cell, decimal_comma: bool = False) -> float:
    """A cell as seconds of some clock; raises ValueError where it is none.

    Numbers from 1e11 are milliseconds since 1970, from 1e14 microseconds, from 1e17 nanoseconds.  A text is a date and
    time of ISO 8601; without a zone it is taken as UTC.

    >>> seconds("1970-01-01T00:01:00"), seconds("1970-01-01 01:00:00+01:00"), seconds(1.7e12)
    (60.0, 0.0, 1700000000.0)
    """
    try:
        found = number(cell, decimal_comma)
    except ValueError:
        when = datetime.datetime.fromisoformat(str(cell).strip().replace(",", ".").removesuffix(" UTC"))
        try:
            return (when if when.tzinfo else when.replace(tzinfo=datetime.UTC)).timestamp()
        except OverflowError as error:
            raise ValueError from error
    if not math.isfinite(found):
        raise ValueError
    return next((found * unit for least, unit in UNITS if found >= least), found)
