"""What a detector says of a log."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ..logs.log import Lineage, Log
from .detector import STOP, Alarm, Detector
from .strikes import Counted, Strikes
from .worker_names import whose


class Reading(NamedTuple):
    """What a detector says of each row of a log; arrays [rows] as `Alarms` has them."""

    level: np.ndarray
    threshold: np.ndarray
    excess: np.ndarray


def look(detector: Detector, log: Log, following: Lineage) -> Reading:
    """Run a detector over a log.

    Each tensor has a memory of its own, as if its rows were all that there is.  Where a step falls, the memory is that
    of the row which the new one follows.  A detector that compares tensors sees the steps that have all of them.

    Args:
      following: how the rows follow one another, `logs.log.lineage` of the log.
    """
    if detector.compares:
        return _look_at_steps(detector, log, following)
    count = len(log.values)
    level, threshold, excess = np.zeros(count, np.int32), np.full(count, np.inf), np.zeros(count)
    order = np.argsort(following.depth, kind="stable")
    ends = np.cumsum(np.bincount(following.depth)).tolist()
    place = np.zeros(count, np.int64)  # of a row among those of its depth
    memory, start = detector.init(log.tensors), 0
    with np.errstate(all="ignore"):  # overflows and invalid operations are what it is about
        for end in ends:
            # Rows with as many rows before them are one step, of all tensors and all restarts.
            rows = order[start:end]
            place[rows] = np.arange(len(rows))
            from_ = log.tensor[rows] if start == 0 else place[following.parent[rows]]
            memory = type(memory)(*(part[from_] for part in memory)) if memory else memory
            memory, alarms = detector.update(memory, log.values[rows])
            level[rows], threshold[rows], excess[rows] = alarms
            start = end
    return Reading(level, threshold, excess)


def whole_steps(log: Log, following: Lineage) -> tuple[np.ndarray, int]:
    """The steps that have a value of every tensor, and how many have not.

    Returns:
      int64 [steps, tensors], rows of the log in the order of the steps; of rows that were superseded none, and of
      several of one step the last.  And the number of other steps.

    >>> from fault_injection.logs.log import lineage
    >>> steps, tensor = np.array([0, 0, 1, 2, 2]), np.array([0, 1, 0, 1, 0])
    >>> log = Log("", steps, ("a", "b"), tensor, np.ones(5), None, np.zeros(5, int), 2)
    >>> whole_steps(log, lineage(log))[0].tolist(), whole_steps(log, lineage(log))[1]
    ([[0, 1], [4, 3]], 1)
    """
    numbers, of = np.unique(log.steps, return_inverse=True)
    found = np.full((len(numbers), len(log.tensors)), -1)
    rows = np.flatnonzero(~following.superseded)
    found[of[rows], log.tensor[rows]] = rows  # the last of several counts
    whole = (found >= 0).all(axis=1)
    return found[whole], int(np.sum((found >= 0).any(axis=1) & ~whole))


def _look_at_steps(detector: Detector, log: Log, following: Lineage) -> Reading:
    """What a detector says that compares the tensors of a step."""
    count = len(log.values)
    level, threshold, excess = np.zeros(count, np.int32), np.full(count, np.inf), np.zeros(count)
    memory = detector.init(log.tensors)
    with np.errstate(all="ignore"):
        for rows in whole_steps(log, following)[0]:
            memory, alarms = detector.update(memory, log.values[rows])
            level[rows], threshold[rows], excess[rows] = alarms
    return Reading(level, threshold, excess)


def alarms_of(seen: Reading, log: Log, counting: np.ndarray) -> list[tuple[int, Alarm]]:
    """The alarms of some rows, each with the number of its row, in the order of the steps.

    Args:
      counting: bool [rows].
    """
    rows = np.flatnonzero((seen.level > 0) & counting)
    rows = rows[np.argsort(log.steps[rows], kind="stable")]
    return [
        (
            row,
            Alarm(
                int(log.steps[row]),
                log.tensors[log.tensor[row]],
                float(log.values[row]),
                int(seen.level[row]),
                float(seen.threshold[row]),
                float(seen.excess[row]),
            ),
        )
        for row in rows.tolist()
    ]


def raised(found: Sequence[tuple[int, Alarm]], log: Log, strikes: Strikes | None) -> int | None:
    """The step at which alarms are raised: the first that stops, or the last of so many strikes.

    Args:
      found: what `alarms_of` gave.
      strikes: how alarms are counted on the log's clock; None raises the first.

    Returns:
      None where none is raised, and where strikes have no clock.
    """
    stops = [(row, alarm) for row, alarm in found if alarm.level == STOP]
    if strikes is None:
        return stops[0][1].step if stops else None
    struck: dict[str, Counted] = {}  # of each worker, or rank, by itself
    if log.times is not None:
        times = log.times
        for row, alarm in sorted(stops, key=lambda pair: float(times[pair[0]])):
            worker = whose(alarm.tensor)
            struck[worker], up = strikes.update(struck.get(worker, Counted()), float(times[row]))
            if up:
                return alarm.step
    return None
