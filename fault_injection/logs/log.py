"""The result of reading: a log, one element per row, and how its rows follow one another."""

import bisect
import itertools
from collections.abc import Collection, Mapping
from typing import NamedTuple

import numpy as np


class Log(NamedTuple):
    """A log, one element per row, in the order of the file.

    Attributes:
      family: by what name it was recognised.
      steps: int64 [rows].
      tensors: names of the tensors, in the order in which they appear.
      tensor: int64 [rows], position in `tensors`.
      values: float64 [rows].
      times: float64 [rows], in seconds; None where the log has none.
      lines: int64 [rows], counted from 1; 0 where the format has no lines.
      last: the step of the last row, perhaps one without values; of a log with one value per row, the largest.
      as_given: whether the file was made for a detector, so that all its tensors are meant.
      column: the column of values of a log with one value per row; empty elsewhere.
      empty: of tensors with empty cells among their values, how many and the first such step.
      wrong: of tensors with cells that are no numbers, the first: its line and text.
      notes: what is to be said of the reading, one sentence each.
    """

    family: str
    steps: np.ndarray
    tensors: tuple[str, ...]
    tensor: np.ndarray
    values: np.ndarray
    times: np.ndarray | None
    lines: np.ndarray
    last: int
    as_given: bool = False
    column: str = ""
    empty: Mapping[str, tuple[int, int]] = {}
    wrong: Mapping[str, tuple[int, str]] = {}
    notes: tuple[str, ...] = ()

    def rows(self, kept: np.ndarray) -> "Log":
        """The log of some rows, chosen by a Boolean array; all tensors keep their positions."""
        times = None if self.times is None else self.times[kept]
        parts = {name: getattr(self, name)[kept] for name in ("steps", "tensor", "values", "lines")}
        return self._replace(**parts, times=times)

    def of(self, names: Collection[str]) -> "Log":
        """The log of some tensors, in the log's order."""
        at = [i for i, name in enumerate(self.tensors) if name in names]
        place = np.full(len(self.tensors), -1)
        place[at] = np.arange(len(at))
        kept = self.rows(place[self.tensor] >= 0)
        return kept._replace(tensors=tuple(self.tensors[i] for i in at), tensor=place[kept.tensor])


class Lineage(NamedTuple):
    """How the rows of a log follow one another.

    A step that falls begins a segment: the training went on from before it.  Its first row follows the last row of a
    smaller step, and the rows in between are superseded, also those of tensors that are not in every row.

    Attributes:
      parent: int64 [rows], the row before of the same tensor; -1 where there is none.
      depth: int64 [rows], how many rows come before.
      superseded: bool [rows], whether a later row took the place.
      restarts: last step and next step of each fall, in the order of the file.
      doubled: int64 [rows], rows whose step is that of the row before.
    """

    parent: np.ndarray
    depth: np.ndarray
    superseded: np.ndarray
    restarts: tuple[tuple[int, int], ...]
    doubled: np.ndarray


def lineage(log: Log) -> Lineage:
    """How the rows of a log follow one another.

    >>> steps = np.array([0, 1, 2, 1, 2])
    >>> zeros = np.zeros(5, int)
    >>> found = lineage(Log("", steps, ("loss",), zeros, zeros * 1.0, None, zeros, 2))
    >>> found.parent.tolist(), found.superseded.tolist(), found.restarts
    ([-1, 0, 1, 0, 3], [False, True, True, False, False], ((2, 1),))
    """
    count = len(log.steps)
    parent, depth = np.full(count, -1), np.zeros(count, np.int64)
    superseded, doubled = np.zeros(count, bool), np.zeros(count, bool)
    restarts: dict[tuple[int, int], None] = {}
    steps, tensor = log.steps.tolist(), log.tensor.tolist()
    paths: list[list[int]] = [[] for _ in log.tensors]
    starts = np.flatnonzero(np.diff(log.steps, prepend=-1)).tolist()
    for start, end in itertools.pairwise([*starts, count]):
        step = steps[start]
        for path in (paths[tensor[row]] for row in range(start, end)):
            if path and steps[path[-1]] > step:
                restarts.setdefault((steps[path[-1]], step))
                first = path[bisect.bisect_left(path, step, key=steps.__getitem__)]
                while first and steps[first - 1] == steps[first]:  # other tensors of that step
                    first -= 1
                # Of a log with one value per row, tensors may follow one another: each has restarts of its own.
                for abandoned in [path] if log.column else paths:
                    while abandoned and abandoned[-1] >= first and steps[abandoned[-1]] >= step:
                        superseded[abandoned.pop()] = True
        for row in range(start, end):
            path = paths[tensor[row]]
            if path:
                parent[row], depth[row] = path[-1], depth[path[-1]] + 1
                doubled[row] = steps[path[-1]] == step
            path.append(row)
    return Lineage(parent, depth, superseded, tuple(restarts), np.flatnonzero(doubled))


def spans(steps: Collection[int], most: int = 6) -> str:
    """Steps as text, runs of them together.

    >>> spans([0, 1, 2, 7, 9, 10])
    '0-2, 7, 9-10'
    """
    runs: list[list[int]] = []
    for step in sorted(set(steps)):
        if runs and step == runs[-1][1] + 1:
            runs[-1][1] = step
        else:
            runs.append([step, step])
    shown = [f"{first}-{last}" if last > first else str(first) for first, last in runs[:most]]
    return ", ".join(shown) + (f" and {len(runs) - most} more" if len(runs) > most else "")
