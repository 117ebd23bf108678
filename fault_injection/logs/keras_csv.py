"""What Keras's callback CSVLogger writes: `epoch` first, then the metrics, of training and `val_` of validation."""

from . import wide_csv
from .source import Source
from .table import STEPS, LogTable

NAME = "Keras CSVLogger"


def fits(source: Source) -> bool:
    """Whether the first column counts epochs and no column counts steps."""
    counted = set(source.header) & set(STEPS)
    return len(source.header) > 1 and source.header[0] == "epoch" and counted == {"epoch"}


def read(source: Source) -> LogTable:
    """The table; its steps are epochs."""
    return wide_csv.read(source, NAME, "epoch")
