"""CSV exports of Weights & Biases: a run's history (`_step`, `_runtime`, `_timestamp`), and a panel's data.

A panel has the columns `Step`, `RUN - METRIC`, `RUN - METRIC__MIN` and `RUN - METRIC__MAX`; minimum and maximum, which
repeat the value or summarise it, are left out by name.  Reference: W&B's documentation, *Export data* and *Line plots*.
"""

from . import wide_csv
from .source import Source
from .table import LogTable

NAME = "Weights & Biases CSV"
BOUNDS = ("__min", "__max")


def fits(source: Source) -> bool:
    """Whether the header has W&B's own columns, or a panel's."""
    header = source.header
    return "_step" in header or any(name.endswith(BOUNDS) for name in header)


def read(source: Source) -> LogTable:
    """The table, without the columns of minimum and maximum."""
    table = wide_csv.read(source, NAME)
    kept = [i for i, name in enumerate(table.names) if not name.lower().endswith(BOUNDS)]
    if len(kept) == len(table.names):
        return table
    rows = [(line, [cells[i] for i in kept]) for line, cells in table.rows]
    note = f"{len(table.names) - len(kept)} column(s) of a panel's minimum and maximum are left out"
    names = tuple(table.names[i] for i in kept)
    return table._replace(names=names, rows=rows, notes=(*table.notes, note))
