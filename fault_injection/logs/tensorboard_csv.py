"""What TensorBoard's button CSV gives: one tag, with the columns `Wall time,Step,Value`."""

from .source import Source
from .table import LogTable, first

NAME = "TensorBoard CSV"


def fits(source: Source) -> bool:
    """Whether the header is TensorBoard's."""
    return set(source.header) == {"wall_time", "step", "value"}


def read(source: Source) -> LogTable:
    """The table; its tensor has the name of the file, which TensorBoard makes of run and tag."""
    names, rows, notes = source.cells()
    step, time, value = (first(names, (name,)) for name in ("step", "wall_time", "value"))
    name = source.path.stem
    wide = tuple(name if column == value and name not in names else column for column in names)
    return LogTable(NAME, wide, rows, step, time, decimal_comma=source.separator != ",", as_given=True, notes=notes)
