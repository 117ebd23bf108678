"""Our own form, and others of one value per row: the columns `step,tensor,value`, and perhaps `time`.

Other names of the columns are `tag`, `metric`, `name`, `key` or `variable` for `tensor`, and those of `table.STEPS`.
"""

from .source import Source
from .table import STEPS, TENSORS, TIMES, LogTable, first, long_columns

NAME = "CSV with one value per row"


def fits(source: Source) -> bool:
    """Whether the header has a tensor's name, its value and a step."""
    header = source.header
    return first(header, STEPS) is not None and None not in long_columns(header)


def read(source: Source) -> LogTable:
    """The table, of any separator."""
    names, rows, notes = source.cells()
    columns = first(names, STEPS), first(names, TIMES), first(names, TENSORS), first(names, ("value",))
    return LogTable(NAME, names, rows, *columns, source.separator != ",", as_given=True, notes=notes)
