"""The families of logs: how each is recognised and read, and which comes first where two would fit."""

import pathlib
from collections.abc import Callable
from typing import NamedTuple

from ..machine.errors import InputError
from . import (
    event_files,
    json_lines,
    keras_csv,
    lightning,
    long_csv,
    megatron,
    mlflow,
    tensorboard_csv,
    torchtitan,
    trainer_state,
    wandb,
    wide_csv,
)
from .assemble import log_of
from .log import Log
from .source import Source
from .table import Columns, LogTable


class Family(NamedTuple):
    """One kind of logs.

    Attributes:
      name: for people.
      fits: whether a source is one of them, by its name, header or first lines.
      read: its table; raises InputError where it is damaged.
    """

    name: str
    fits: Callable[[Source], bool]
    read: Callable[[Source], LogTable]


MODULES = (
    *(event_files, mlflow, trainer_state, json_lines, tensorboard_csv, long_csv, wandb, lightning, keras_csv),
    *(megatron, torchtitan, wide_csv),
)
FAMILIES = tuple(Family(module.NAME, module.fits, module.read) for module in MODULES)


def read_log(path: pathlib.Path, columns: Columns | None = None) -> Log:
    """Read a log of any family, recognised by itself.

    Args:
      columns: those that the person names.

    Raises:
      InputError: one line that says where, what was found and what was expected.
    """
    source, columns = Source(path), columns or Columns()
    if not source.is_folder and not event_files.fits(source) and not source.text.strip():
        raise InputError(f"empty; expected a log: {', '.join(family.name for family in FAMILIES)}", path)
    family = next((family for family in FAMILIES if family.fits(source)), None)
    if family is None and columns.tensor is not None and not source.is_folder:
        family = Family(long_csv.NAME, long_csv.fits, long_csv.read)
    if family is None:
        found = "a folder without a log" if source.is_folder else f"begins with {source.beginning[0][:40]!r}"
        raise InputError(f"{found}; expected a log: {', '.join(each.name for each in FAMILIES)}", path)
    return log_of(family.read(source), columns, path)
