"""`metrics.csv` of PyTorch Lightning's CSVLogger: `epoch`, `step`, with empty cells where nothing was logged."""

from . import wide_csv
from .source import Source
from .table import LogTable

NAME = "Lightning metrics.csv"


def fits(source: Source) -> bool:
    """Whether the header has Lightning's two columns."""
    return {"epoch", "step"} < set(source.header)


def read(source: Source) -> LogTable:
    """The table."""
    return wide_csv.read(source, NAME, "step")
