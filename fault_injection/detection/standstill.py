"""What people saw in their logs and no detector of values says: a loss that stands still, and values that are missing.

- A loss stays exactly the same, for longer than chance allows: with r of n steps without a change before, the next
  steps without one have the probability (r + 1)/(n + 2) each, and an alarm needs less than 1e-9 for all of them.
- A loss, or the norm of a gradient, falls to exactly zero in one step.
- A tensor stops appearing while others go on.
- The trainer's mean hides a NaN: the norm of the gradient is not finite where the loss is, or a column counts NaNs.

The numbers are ours.  Values that were rounded to a few units of their last digit are no evidence, and raise nothing.
"""

import math
from collections.abc import Collection, Iterator
from typing import NamedTuple

import numpy as np

from ..logs.choice import is_loss, is_norm, words
from ..logs.log import Log, lineage

CHANCE = 1e-9
SHORTEST = 10  # steps without a change
UNITS = 20  # of the last digit: below, a value is too coarse for its repetitions to say anything
SEEN = 5  # values of a tensor that is missed
GAPS, USUAL_GAPS = 3, 10  # of the largest gap, and of the usual one: longer is missing


class Symptom(NamedTuple):
    """One finding.

    Attributes:
      step: where it begins.
      tensor: its name.
      value: what stays, NaN where nothing is there.
      why: a sentence without its subject, such as `falls to exactly zero`.
    """

    step: int
    tensor: str
    value: float
    why: str


def symptoms(log: Log, watched: Collection[str], kind: str, skipped: Collection[int]) -> list[Symptom]:
    """What is to be said of a log beside the detector's alarms, in the order of the steps.

    Args:
      log: all of it.
      watched: tensors that the detector looks at.
      kind: what they are, as `signals.KINDS` calls it; names say what the others are.
      skipped: steps whose values need not be finite.
    """
    log = log.rows(~lineage(log).superseded)
    last = int(log.steps.max(initial=0 if log.column else log.last))
    found: list[Symptom] = []
    for name in log.tensors:
        loss = is_loss(name) or (kind == "loss" and name in watched and not is_norm(name))
        norm = is_norm(name) or (kind == "gradient_norm" and name in watched and not loss)
        if not loss and not norm and name not in watched:
            continue
        one = log.of([name])
        order = np.argsort(one.steps, kind="stable")
        steps, values = one.steps[order], one.values[order]
        if loss:
            found += _still(name, steps, values)
        if loss or norm:
            found += _zero(name, steps, values)
        found += _missing(name, steps, last)
    found += _hidden(log, watched, set(skipped))
    return sorted(found, key=lambda each: each.step)


def _runs(values: np.ndarray) -> Iterator[tuple[int, int]]:
    """First and length of each run of equal finite values."""
    starts = np.concatenate([[0], np.flatnonzero(values[1:] != values[:-1]) + 1])
    lengths = np.diff(np.append(starts, len(values)))
    yield from zip(starts.tolist(), lengths.tolist(), strict=True)


def _unit(values: np.ndarray) -> float:
    """The least difference of two values, which is that of the last digit where they are rounded; 0 without one."""
    different = np.unique(values[np.isfinite(values)])
    return float(np.diff(different).min()) if len(different) > 1 else 0.0


def _still(name: str, steps: np.ndarray, values: np.ndarray) -> list[Symptom]:
    found = []
    for start, length in _runs(values) if len(values) else ():
        if length < SHORTEST or not math.isfinite(values[start]) or values[start] == 0:
            continue
        before = values[: start + 1]
        unchanged = int(np.sum(before[1:] == before[:-1]))
        chance = (unchanged + 1) / (len(before) + 1)
        needed = max(SHORTEST, math.ceil(math.log(CHANCE) / math.log(chance)) + 1)
        if length >= needed and abs(values[start]) > UNITS * _unit(values[values != 0]):
            why = f"stays exactly {values[start]:.6g} for {length} values, from step {steps[start]} on"
            found.append(Symptom(int(steps[start + needed - 1]), name, float(values[start]), why))
    return found


def _zero(name: str, steps: np.ndarray, values: np.ndarray) -> list[Symptom]:
    """The first time that it falls to zero from a distance; before its first step a trainer may write zeros, too."""
    first = next(iter(np.flatnonzero(values != 0).tolist()), 0)
    at = next(iter(np.flatnonzero(values[first:] == 0).tolist()), 0) + first
    before = values[first:at][np.isfinite(values[first:at])]
    if len(before) < SEEN or before[-1] <= UNITS * _unit(before):
        return []
    return [Symptom(int(steps[at]), name, 0.0, f"falls from {before[-1]:.6g} to exactly zero")]


def _missing(name: str, steps: np.ndarray, last: int) -> list[Symptom]:
    gaps = np.diff(np.unique(steps))
    if len(gaps) < SEEN - 1 or last - steps[-1] <= max(GAPS * gaps.max(), USUAL_GAPS * np.median(gaps)):
        return []
    end = int(steps[-1])
    return [Symptom(end + 1, name, math.nan, f"is missing after step {end}; the log goes on to step {last}")]


def _hidden(log: Log, watched: Collection[str], skipped: set[int]) -> list[Symptom]:
    finite: set[int] = set()
    for name in (name for name in log.tensors if is_loss(name)):
        one = log.of([name])
        finite |= set(one.steps[np.isfinite(one.values)].tolist())
    found = []
    for name in log.tensors:
        one = log.of([name])
        if "nan" in words(name):
            at, why = one.values > 0, "counts a NaN, which the mean of the loss does not show"
        elif is_norm(name) and name not in watched:
            at = ~np.isfinite(one.values) & np.isin(one.steps, list(finite))
            why = "is not finite where the loss is: a mean may hide a NaN"
        else:
            continue
        rows = [row for row in np.flatnonzero(at).tolist() if int(one.steps[row]) not in skipped]
        if rows:
            often = f", at {len(rows)} steps" if len(rows) > 1 else ""
            found.append(Symptom(int(one.steps[rows[0]]), name, float(one.values[rows[0]]), why + often))
    return found
