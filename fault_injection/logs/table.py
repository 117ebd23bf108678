"""A table of cells, as every family reads its files, and the columns that a person names."""

from typing import NamedTuple

from .cells import Cell
from .choice import is_loss, is_norm


class Columns(NamedTuple):
    """Columns that a person names, in place of those that the family has.

    Attributes:
      value: columns of values, or names of tensors; empty for the family's own choice.
      step, time, tensor: None for the family's own choice.
    """

    value: tuple[str, ...] = ()
    step: str | None = None
    time: str | None = None
    tensor: str | None = None


class LogTable(NamedTuple):
    """Rows of cells under names.

    Attributes:
      family: what wrote it.
      names: of the columns, all different.
      rows: line, counted from 1 (0 where the format has none), and cells, as many as names.
      step, time: names of columns; None where there is none that the family knows.
      tensor, value: names of the two columns of a long table, one value per row; None for a wide one, whose columns
        are the tensors.
      decimal_comma: see `cells.number`.
      as_given: see `Log`.
      notes: see `Log`.
    """

    family: str
    names: tuple[str, ...]
    rows: list[tuple[int, list[Cell]]]
    step: str | None = None
    time: str | None = None
    tensor: str | None = None
    value: str | None = None
    decimal_comma: bool = False
    as_given: bool = False
    notes: tuple[str, ...] = ()


# How columns are called that count steps and that hold a clock, the first that is there being taken.
STEPS = (
    *("step", "global_step", "_step", "trainer/global_step", "train/global_step", "iteration", "iter", "it", "steps"),
    *("iterations", "num_steps", "update", "updates", "num_updates", "batch", "epoch"),
)
TIMES = (
    *("time", "wall_time", "walltime", "timestamp", "_timestamp", "datetime", "date", "created_at", "_runtime"),
    *("elapsed", "elapsed_time", "seconds", "train_runtime"),
)
TENSORS = ("tensor", "tag", "metric", "name", "key", "variable")


def plain(name: str) -> str:
    """A column's name without case and spaces.

    >>> plain(" Wall time")
    'wall_time'
    """
    return "_".join(name.lower().split())


def first(names: tuple[str, ...], known: tuple[str, ...]) -> str | None:
    """The column that stands first in a list of known names."""
    by_name = {plain(name): name for name in reversed(names)}
    return next((by_name[name] for name in known if name in by_name), None)


def long_columns(names: tuple[str, ...]) -> tuple[str | None, str | None]:
    """The columns of tensors' names and of values, of a table with one value per row; None, None of another.

    Where a column beside them is called as a loss or as a gradient's norm, `value` is one tensor of several.

    >>> long_columns(("step", "tag", "value")), long_columns(("step", "name", "loss", "value"))
    (('tag', 'value'), (None, None))
    """
    tensor, value = first(names, TENSORS), first(names, ("value",))
    several = any(is_loss(name) or is_norm(name) for name in names)
    return (None, None) if tensor is None or value is None or several else (tensor, value)


def records(family: str, found: list[tuple[int, dict[str, Cell]]], notes: tuple[str, ...] = ()) -> LogTable:
    """A table of records that need not have the same keys; a long one where they hold `value` and a tensor's name."""
    names = tuple(dict.fromkeys(key for _, record in found for key in record))
    rows = [(line, [record.get(name) for name in names]) for line, record in found]
    tensor, value = long_columns(names)
    return LogTable(
        family,
        names,
        rows,
        first(names, STEPS),
        first(names, TIMES),
        tensor,
        value,
        as_given=tensor is not None,
        notes=notes,
    )
