"""A plain CSV with one column per tensor, one row per step, such as `step,loss,grad_norm`."""

from .source import Source
from .table import STEPS, TIMES, LogTable, first

NAME = "CSV with one column per tensor"
LONGEST = 200  # characters of a name


def fits(source: Source) -> bool:
    """Whether the file begins with names, of which none is a sentence or a number."""
    header = source.header
    return bool(header) and all(_is_name(name) for name in header) and len(source.beginning) > 0


def _is_name(name: str) -> bool:
    return not name or (len(name) <= LONGEST and name.isprintable() and name[0] not in "{[<-+.0123456789")


def read(source: Source, family: str = NAME, step: str | None = None) -> LogTable:
    """The table, of any separator.

    Args:
      family: under whose name it was recognised.
      step: the column of steps, if the family has one of its own.
    """
    names, rows, notes = source.cells()
    chosen = first(names, (step, *STEPS) if step else STEPS)
    return LogTable(
        family, names, rows, chosen, first(names, TIMES), decimal_comma=source.separator != ",", notes=notes
    )
