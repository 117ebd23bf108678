"""From a table of cells to a log: which columns count steps, hold the clock, name tensors and have values."""

import pathlib
from collections.abc import Iterator

import numpy as np

from ..machine.errors import InputError, did_you_mean
from ..machine.reading import SHOWN
from .cells import Cell, is_empty, number, seconds, whole
from .log import Log
from .table import Columns, LogTable, first

DENSE = 0.9  # share of rows that have a value where an empty cell is worth a word


def log_of(table: LogTable, columns: Columns, path: pathlib.Path) -> Log:
    """The log of a table.

    Args:
      columns: those that the person names, in place of the table's own.

    Raises:
      InputError: a column is not there, a cell is not what its column holds, or there is no value.
    """
    table = _named(table, columns, path)
    steps, kept, notes = _steps(table, path)
    times, said = _times(table, columns, kept, path)
    long = table.tensor is not None
    found = _long(table, kept, path) if long else _wide(table, kept)
    names, tensor, rows, values, empty, wrong = found
    if not len(values):
        raise InputError(f"read as {table.family}: no values" + _without(table, wrong), path)
    log = Log(
        table.family,
        steps[rows],
        names,
        tensor,
        values,
        None if times is None else times[rows],
        np.array([table.rows[i][0] for i in kept], np.int64)[rows],
        int(steps.max() if long else steps[-1]),
        table.as_given,
        table.value or "",
        {name: (len(at), int(steps[at[0]])) for name, at in empty.items()},
        wrong,
        (*table.notes, *notes, *said, *(_beside(table) if long else ())),
    )
    return _clock(_in_order(log), path)


def _without(table: LogTable, wrong: dict[str, tuple[int, str]]) -> str:
    if not table.rows:
        return ": there is nothing but the header"
    for name, (line, cell) in wrong.items():
        return f": {name[:SHOWN]} has {cell!r} in line {line}, which is no number"
    return ""


def _beside(table: LogTable) -> list[str]:
    """What is to be said of the columns beside those of a table with one value per row."""
    others = [name for name in table.names if name not in (table.step, table.time, table.tensor, table.value)]
    return [f"columns that are not looked at: {', '.join(map(repr, others))[:SHOWN]}"] if others else []


def _named(table: LogTable, columns: Columns, path: pathlib.Path) -> LogTable:
    """The table with the columns that the person names."""
    for option in ("step", "time", "tensor"):
        name = getattr(columns, option)
        if name is not None:
            if name not in table.names:
                raise InputError(f"--{option} {name[:SHOWN]!r}: no such column{did_you_mean(name, table.names)}", path)
            table = table._replace(**{option: name})
    if table.tensor is not None:
        said = [name for name in columns.value if name in table.names and name not in (table.tensor, table.step)]
        by_name = first(table.names, ("value",))
        value = said[0] if len(said) == 1 else table.value or by_name
        if value is None:
            raise InputError("--tensor names a column of names; --value has to name the one column of values", path)
        table = table._replace(value=value)
    return table


def _steps(table: LogTable, path: pathlib.Path) -> tuple[np.ndarray, list[int], list[str]]:
    """The steps, the rows that have one, and what is to be said of both."""
    if table.step is None:
        note = "no column of steps is known: rows are counted from 0 (--step names one)"
        return np.arange(len(table.rows)), list(range(len(table.rows))), [note]
    at = table.names.index(table.step)
    epoch_name = first(table.names, ("epoch",))
    epoch_at = table.names.index(epoch_name) if epoch_name and epoch_name != table.step and not table.tensor else None
    steps, kept, notes = [], [], []
    offset, last, epoch, begun = 0, -1, -1.0, 0
    offsets: dict[float, int] = {}  # of each epoch, once it has begun
    for row, (line, cells) in enumerate(table.rows):
        if is_empty(cells[at]) and table.tensor is None:
            continue
        try:
            step = whole(cells[at], table.decimal_comma)
        except ValueError:
            what = f"{table.step} {_shown(cells[at])}; expected a whole number from 0"
            what += "" if table.as_given else " (--step names another column)"
            raise InputError(what, path, line or None) from None
        # Steps that begin anew with each epoch are no restarts: they are counted on.
        if epoch_at is not None:
            now = _epoch(cells[epoch_at], epoch)
            if now < epoch:  # a restart
                offset = offsets.get(now, offset)
            elif step + offset <= last and step < last - offset and now > epoch >= 0:
                offset, begun = offsets.get(now, last + 1), begun + (now not in offsets)
            offsets.setdefault(now, offset)
            epoch = now
        last = step + offset
        steps.append(last)
        kept.append(row)
    if begun:
        notes.append(f"{table.step} begins anew in {begun} epoch(s): steps are counted on")
    if len(kept) < len(table.rows):
        notes.append(f"{len(table.rows) - len(kept)} row(s) without {table.step} are left out")
    return np.array(steps, np.int64), kept, notes


def _epoch(cell: Cell, before: float) -> float:
    try:
        return number(cell)
    except ValueError:
        return before


def _shown(cell: Cell) -> str:
    return repr("" if cell is None else str(cell)[:SHOWN])


def _times(
    table: LogTable, columns: Columns, kept: list[int], path: pathlib.Path
) -> tuple[np.ndarray | None, tuple[str, ...]]:
    """The clock; a column that the person did not name may hold something else, which is said."""
    if table.time is None:
        return None, ()
    at, times = table.names.index(table.time), []
    for row in kept:
        line, cells = table.rows[row]
        try:
            times.append(seconds(cells[at], table.decimal_comma))
        except ValueError:
            wrong = f"{table.time} {_shown(cells[at])}; expected seconds, or a date and time of ISO 8601"
            if columns.time is not None or table.as_given:
                raise InputError(wrong, path, line or None) from None
            return None, (f"no clock: {wrong}",)
    return np.array(times), ()


Found = tuple[
    tuple[str, ...], np.ndarray, np.ndarray, np.ndarray, dict[str, list[int]], dict[str, tuple[int, str]]
]  # names, tensor, place among kept rows, values, places of empty cells, wrong cells


def _long(table: LogTable, kept: list[int], path: pathlib.Path) -> Found:
    if table.tensor is None or table.value is None:
        raise InputError("no column of tensors, or none of values", path)
    name_at, value_at = table.names.index(table.tensor), table.names.index(table.value)
    numbers: dict[str, int] = {}
    tensor, rows, values = [], [], []
    empty: dict[str, list[int]] = {}
    for place, row in enumerate(kept):
        line, cells = table.rows[row]
        name = str("" if cells[name_at] is None else cells[name_at]).strip()
        if not name:
            raise InputError(f"no {table.tensor}; expected a name", path, line or None)
        if is_empty(cells[value_at]):
            empty.setdefault(name, []).append(place)
            continue
        try:
            values.append(number(cells[value_at], table.decimal_comma))
        except ValueError:
            what = f"{table.value} {_shown(cells[value_at])}; expected a number, nan or inf"
            raise InputError(what, path, line or None) from None
        tensor.append(numbers.setdefault(name, len(numbers)))
        rows.append(place)
    return tuple(numbers), np.array(tensor, np.int64), np.array(rows, np.int64), np.array(values, float), empty, {}


def _wide(table: LogTable, kept: list[int]) -> Found:
    """The columns whose cells are numbers for the most part, and their values in the order of the rows."""
    names: list[str] = []
    parts: list[tuple[np.ndarray, np.ndarray]] = []
    empty: dict[str, list[int]] = {}
    wrong: dict[str, tuple[int, str]] = {}
    for at, name in enumerate(table.names):
        if name in (table.step, table.time):
            continue
        rows, values, blank, bad = [], [], [], 0
        for place, (line, cell) in enumerate(_column(table, kept, at)):
            if is_empty(cell):
                blank.append(place)
                continue
            try:
                values.append(number(cell, table.decimal_comma))
                rows.append(place)
            except ValueError:
                bad += 1
                wrong.setdefault(name, (line, str(cell)[:SHOWN]))
        if bad >= max(1, len(values)) or not values:
            continue
        if blank and len(values) >= DENSE * (len(values) + len(blank)):
            empty[name] = blank
        names.append(name)
        parts.append((np.array(rows, np.int64), np.array(values, float)))
    if not parts:
        return (), *(np.zeros(0, np.int64),) * 2, np.zeros(0), empty, wrong
    tensor = np.repeat(np.arange(len(parts)), [len(rows) for rows, _ in parts])
    places = np.concatenate([rows for rows, _ in parts])
    order = np.argsort(places, kind="stable")
    values_of_all = np.concatenate([each for _, each in parts])
    return tuple(names), tensor[order], places[order], values_of_all[order], empty, wrong


def _column(table: LogTable, kept: list[int], at: int) -> Iterator[tuple[int, Cell]]:
    return ((table.rows[row][0], table.rows[row][1][at]) for row in kept)


def _in_order(log: Log) -> Log:
    """The log from its first step on, where it was written with the last one first."""
    falling = rising = 0
    for i in range(len(log.tensors)):
        changes = np.diff(log.steps[log.tensor == i])
        falling, rising = falling + int(np.sum(changes < 0)), rising + int(np.sum(changes > 0))
    if rising or falling < 2:
        return log
    order = np.arange(len(log.steps))[::-1]
    times = None if log.times is None else log.times[order]
    parts = {name: getattr(log, name)[order] for name in ("steps", "tensor", "values", "lines")}
    return log._replace(**parts, times=times, notes=(*log.notes, "the last step comes first: read from the end"))


def _clock(log: Log, path: pathlib.Path) -> Log:
    """The log with a clock that does not fall; one that begins anew at a restart is counted on.

    Raises:
      InputError: the clock of a tensor falls where its steps do not.
    """
    if log.times is None:
        return log
    times, notes = log.times.copy(), log.notes
    for i, name in enumerate(log.tensors):
        rows = np.flatnonzero(log.tensor == i)
        falls = np.flatnonzero(np.diff(log.times[rows]) < 0)
        for at in falls.tolist():
            before, after = rows[at], rows[at + 1]
            if log.steps[after] >= log.steps[before]:
                what = f"time {log.times[after]:g} of {name[:SHOWN]!r} after {log.times[before]:g}"
                if log.as_given:
                    raise InputError(f"{what}; expected the rows in order", path, int(log.lines[after]) or None)
                return log._replace(times=None, notes=(*notes, f"no clock: {what}"))
            times[rows[at + 1 :]] += log.times[before] - log.times[after]
    if not np.array_equal(times, log.times):
        notes = (*notes, "the clock begins anew at a restart: it is counted on")
    return log._replace(times=times, notes=notes)
