"""A user's own log of values, and what a detector says of it."""

import csv
import io
import math
import pathlib
import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ..machine.errors import InputError
from ..machine.files import read_bounded
from ..machine.reading import NUMBER, SHOWN
from .detector import STOP, Alarm, Detector
from .strikes import Counted, Strikes

COLUMNS, TIME = ("step", "tensor", "value"), "time"
NOT_FINITE = re.compile(r"[+-]?(nan|inf|infinity)", re.IGNORECASE)
LARGEST = 2**31  # bytes of a log


class Log(NamedTuple):
    """A log, one element per row.

    Attributes:
      steps: int64 [rows].
      tensors: names of the tensors, in the order in which they appear.
      tensor: int64 [rows], position in `tensors`.
      values: float64 [rows].
      times: float64 [rows], in seconds; None where the log has none.
    """

    steps: np.ndarray
    tensors: tuple[str, ...]
    tensor: np.ndarray
    values: np.ndarray
    times: np.ndarray | None


def read_values(path: pathlib.Path, signed: bool = False) -> Log:
    """Read a log: CSV with the columns `step,tensor,value` and perhaps `time`, in any order, one line of header.

    Steps are whole numbers that do not fall from row to row of a tensor; times are seconds, and do not fall.

    Args:
      signed: whether a value may be negative; norms and largest absolute values may not.

    Raises:
      InputError: one line that says where, what was found and what was expected.
    """
    try:
        text = read_bounded(path, LARGEST).decode("utf-8-sig")
    except OSError as error:
        raise InputError(error.strerror or str(error), path) from None
    except UnicodeDecodeError:
        raise InputError("not UTF-8 text; expected CSV with the columns step,tensor,value[,time]", path) from None
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    header: dict[str, int] = {}
    steps: list[int] = []
    places: list[int] = []
    values: list[float] = []
    times: list[float] = []
    numbers: dict[str, int] = {}
    last: dict[str, int] = {}
    try:
        for row in reader:
            line = reader.line_num
            if not row or (len(row) == 1 and not row[0].strip()):
                continue
            cells = [cell.strip() for cell in row]
            if not header:
                header = _header(cells, path, line)
                continue
            if len(cells) != len(header):
                raise InputError(f"{len(cells)} cells; expected {len(header)}: {','.join(header)}", path, line)
            step, name = cells[header["step"]], cells[header["tensor"]]
            if not re.fullmatch(r"[0-9]{1,15}", step, re.ASCII):
                raise InputError(f"step {step[:SHOWN]!r}; expected a whole number from 0", path, line)
            if not name:
                raise InputError("no tensor; expected a name", path, line)
            if int(step) < last.get(name, 0):
                raise InputError(
                    f"step {step} of {name[:SHOWN]!r} after step {last[name]}; expected the steps in order", path, line
                )
            last[name] = int(step)
            steps.append(int(step))
            places.append(numbers.setdefault(name, len(numbers)))
            values.append(_value(cells[header["value"]], signed, path, line))
            if TIME in header:
                time = cells[header[TIME]]
                if not NUMBER.fullmatch(time) or not math.isfinite(float(time)):
                    raise InputError(f"time {time[:SHOWN]!r}; expected seconds", path, line)
                if times and float(time) < times[-1]:
                    raise InputError(f"time {time[:SHOWN]} after {times[-1]:g}; expected the rows in order", path, line)
                times.append(float(time))
    except csv.Error as error:
        raise InputError(f"not a row of comma-separated values: {error}", path, reader.line_num) from None
    if not header:
        raise InputError("empty; expected a header with the columns step,tensor,value[,time]", path)
    if not steps:
        raise InputError("no values: there is nothing but the header", path)
    clock = np.array(times) if TIME in header else None
    return Log(np.array(steps, np.int64), tuple(numbers), np.array(places, np.int64), np.array(values), clock)


def _header(cells: Sequence[str], path: pathlib.Path, line: int) -> dict[str, int]:
    known = {*COLUMNS, TIME}
    if set(cells) - known or len(set(cells)) < len(cells) or not set(COLUMNS) <= set(cells):
        found = ",".join(cells)[:SHOWN]
        raise InputError(f"header {found!r}; expected the columns step,tensor,value, and perhaps time", path, line)
    return {name: i for i, name in enumerate(cells)}


def _value(text: str, signed: bool, path: pathlib.Path, line: int) -> float:
    if not NUMBER.fullmatch(text) and not NOT_FINITE.fullmatch(text):
        raise InputError(f"value {text[:SHOWN]!r}; expected a number, nan or inf", path, line)
    value = float(text)
    if not signed and math.isfinite(value) and value < 0:
        raise InputError(f"value {text[:SHOWN]}; expected a norm or a largest absolute value, from 0", path, line)
    return value


def detect(detector: Detector, log: Log) -> list[tuple[int, Alarm]]:
    """The alarms that a detector raises on a log, each with the number of its row, in the order of the rows.

    Each tensor has a memory of its own, as if its rows were all that there is.
    """
    # The k-th values of all tensors are one step: the tensors with the most values come first.
    order = np.argsort(log.tensor, kind="stable")
    counts = np.bincount(log.tensor, minlength=len(log.tensors))
    longest = np.argsort(-counts, kind="stable")
    starts = (np.cumsum(counts) - counts)[longest]
    names = tuple(log.tensors[i] for i in longest)
    memory, found = detector.init(names), []
    going_on = len(names)
    with np.errstate(all="ignore"):  # overflows and invalid operations are what it is about
        for k in range(int(counts.max())):
            while counts[longest[going_on - 1]] <= k:
                going_on -= 1
            rows = order[starts[:going_on] + k]
            memory = type(memory)(*(part[:going_on] for part in memory)) if memory else memory
            memory, alarms = detector.update(memory, log.values[rows])
            for at in np.flatnonzero(alarms.level).tolist():
                row = int(rows[at])
                threshold, level = float(alarms.threshold[at]), int(alarms.level[at])
                found.append((row, Alarm(int(log.steps[row]), names[at], float(log.values[row]), level, threshold)))
    return sorted(found, key=lambda pair: pair[0])


def raised(found: Sequence[tuple[int, Alarm]], log: Log, strikes: Strikes | None) -> int | None:
    """The step at which alarms are raised: the first that stops, or the last of so many strikes.

    Args:
      found: what `detect` gave.
      strikes: how alarms are counted on the log's clock; None raises the first.

    Returns:
      None where none is raised, and where strikes have no clock.
    """
    stops = [(row, alarm) for row, alarm in found if alarm.level == STOP]
    if strikes is None:
        return stops[0][1].step if stops else None
    struck, up = Counted(), False
    if log.times is not None:
        for row, alarm in stops:
            struck, up = strikes.update(struck, float(log.times[row]))
            if up:
                return alarm.step
    return None
