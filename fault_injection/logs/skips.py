"""Steps that a trainer skipped: an overflow under a loss scale is how mixed precision works, and no fault."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from . import megatron
from .choice import is_largest, is_loss, is_norm, words
from .log import Log, lineage, spans

COUNTERS = (("skipped",), ("skip",), ("skips",), ("found", "inf"), ("overflow",), ("overflows",))
SCALES = (("loss", "scale"), ("grad", "scale"), ("loss", "scaler"), ("scaler",), ("lossscale",), ("amp", "scale"))
HALF = 0.5
MOST = 40  # steps skipped one after the other: no scale can be halved more often


class Skips(NamedTuple):
    """The steps that were skipped.

    Attributes:
      steps: of the log, each once.
      how: why they are taken as skipped.
    """

    steps: frozenset[int]
    how: str

    def note(self) -> str:
        """What is to be said of the steps; empty where there is none."""
        if not self.steps:
            return ""
        return f"{len(self.steps)} skipped step(s), whose infinities are no alarms: {spans(self.steps)} ({self.how})"


def skipped(log: Log) -> Skips:
    """The steps that a log says were skipped, by a column that counts them, or by a loss scale.

    Where a scale is in the log, a step with a value that is not finite was skipped if the next scale is at most half.

    >>> steps = np.array([0, 0, 1, 1, 2, 2])
    >>> values = np.array([8.0, 1.0, 8.0, np.inf, 4.0, 1.0])
    >>> log = Log("", steps, ("loss_scale", "grad_norm"), np.array([0, 1] * 3), values, None, steps, 2)
    >>> sorted(skipped(log).steps)
    [1]
    """
    found: set[int] = set()
    how = []
    for name in _called(log, COUNTERS):
        steps = _counted(log.of([name]), log.family == megatron.NAME)
        how += [f"by {name}"] if steps else []
        found |= steps
    for name in _called(log, SCALES):
        one, not_finite = log.of([name]), set(log.steps[~np.isfinite(log.values)].tolist())
        before, after = one.values[:-1], one.values[1:]
        halved = np.isfinite(before) & (after > 0) & (after <= HALF * before)
        # The scale of a step holds up to the next row of the scale.
        starts, ends = one.steps[:-1][halved], one.steps[1:][halved]
        steps = {s for s in not_finite if np.any((starts <= s) & (s < ends))} if len(starts) else set()
        how += [f"{name} is halved after them"] if steps else []
        found |= steps
    return Skips(frozenset(found), ", ".join(how))


def _called(log: Log, known: Sequence[tuple[str, ...]]) -> list[str]:
    """The tensors called so, in words that follow one another; a layer's gradient may be called so, too."""
    found = []
    for name in log.tensors:
        told = words(name)
        pairs = {told[i : i + n] for n in (1, 2) for i in range(len(told))}
        if pairs & set(known) and not (is_norm(name) or is_largest(name) or is_loss(name)):
            found.append(name)
    return found


def _counted(one: Log, since_the_line_before: bool) -> set[int]:
    """The steps at which a counter says that something was skipped.

    What counts since the beginning says so where it rises.  What tells of its own row falls as often; there each row
    counts, unless more of them follow one another than can be.
    """
    values = one.values
    if not np.all(values == np.floor(values)) or np.any(values < 0):  # NaN is no count, either
        return set()
    if since_the_line_before:
        return set(one.steps[values > 0].tolist())
    parent = lineage(one).parent
    follows = parent == np.arange(len(values)) - 1  # else a restart, after which some counters begin anew
    before = np.where(parent >= 0, values[parent], 0.0)
    said, changes = values > before, ~follows | (values != before)
    not_over = said[np.flatnonzero(changes)[-1:]].sum()  # a count that has risen, at the end
    falls = np.sum(follows & (values < before))
    if 0 < falls >= np.sum(said) - not_over:
        runs = np.cumsum(changes)
        said |= (values > 0) & (np.bincount(runs)[runs] <= MOST)
    return set(one.steps[said].tolist())
