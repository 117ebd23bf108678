"""A log, looked at by a detector: what is read, what counts, which alarms there are, and what is to be said."""

import collections
import math
import pathlib
from typing import Any, NamedTuple

import numpy as np

from ..logs.choice import chosen, is_largest, is_loss, is_norm, words
from ..logs.families import read_log
from ..logs.log import Lineage, Log, lineage, spans
from ..logs.skips import skipped
from ..logs.table import Columns
from ..machine.errors import InputError
from .detector import Alarm, Detector
from .log_reading import Reading, alarms_of, look, raised, whole_steps
from .standstill import Symptom, symptoms
from .value_based import Chosen
from .worker_names import of_any_worker, whose

SIGNED = ("loss", "")  # kinds of which values may be negative
LISTED = 6  # names in a note


class Material(NamedTuple):
    """A log as a detector gets it.

    Attributes:
      whole: everything that was read.
      log: the rows that the detector looks at: of the tensors chosen, without infinities of skipped steps.
      following: how those rows follow one another.
      kind: what the detector watches, as `signals.KINDS` calls it; empty for everything.
      skipped: steps that the trainer skipped.
      notes: what is to be said of the reading, one sentence each.
      blind: what the log cannot show; empty where nothing is known to be missing.
    """

    whole: Log
    log: Log
    following: Lineage
    kind: str
    skipped: frozenset[int]
    notes: tuple[str, ...]
    blind: str = ""


class Examined(NamedTuple):
    """What a detector says of a log.

    Attributes:
      alarms: of rows that count, each with the number of its row in `material.log`.
      superseded: alarms in steps that were trained again.
      symptoms: what no detector of values says.
      raised: the step at which something is raised, None where nothing is.
      seen: what the detector says of each row; None where it is switched off.
    """

    alarms: tuple[tuple[int, Alarm], ...]
    superseded: tuple[Alarm, ...]
    symptoms: tuple[Symptom, ...]
    raised: int | None
    seen: Reading | None


def kind_of(detector: Any) -> str:
    """What a detector watches, where that is one kind of signals; empty where it is several, or there is none."""
    signals: tuple[str, ...] = detector.signals if detector is not None else ()
    return signals[0] if len(signals) == 1 else ""


def material(path: pathlib.Path, columns: Columns, detector: Any) -> Material:
    """Read a log for a detector.

    Args:
      columns: those that the person names.
      detector: None where it is switched off.

    Raises:
      InputError: one line that says where, what was found and what was expected.
    """
    whole, kind = read_log(path, columns), kind_of(detector)
    names = chosen(whole, kind, columns.value, path)
    if detector is not None and detector.compares:
        names = _of_workers(names, path)
    log = whole.of(names)
    for name in names:
        if name in whole.wrong:
            line, text = whole.wrong[name]
            raise InputError(f"{name[:60]} {text!r}; expected a number, nan or inf", path, line or None)
    if kind not in SIGNED:
        for row in np.flatnonzero(np.isfinite(log.values) & (log.values < 0))[:1].tolist():
            what = f"value {log.values[row]:g} of {log.tensors[log.tensor[row]][:60]!r}"
            raise InputError(
                f"{what}; expected a norm or a largest absolute value, from 0", path, int(log.lines[row]) or None
            )
    skips = skipped(whole)
    excused = ~np.isfinite(log.values) & np.isin(log.steps, list(skips.steps))
    log = log.rows(~excused)
    following = lineage(log)
    notes = (*whole.notes, *_chosen(whole, names), *_gaps(whole, names), *_order(log, following), skips.note())
    if detector is not None and detector.compares:
        notes = (*notes, _compared(log, following, path))
    return Material(
        whole, log, following, kind, skips.steps, tuple(note for note in notes if note), _blind(whole, names)
    )


def _of_workers(names: tuple[str, ...], path: pathlib.Path) -> tuple[str, ...]:
    """Those of the tensors that all workers have; the others are named as not looked at."""
    workers = {whose(name) for name in names} - {""}
    if len(workers) < 2:
        what = "expected values of two workers or more, called such as rank0/grad_norm and rank1/grad_norm"
        raise InputError(f"{what}; found {_some(list(names))}", path)
    having: dict[str, set[str]] = collections.defaultdict(set)  # workers, by what their names have in common
    for name in names:
        having[of_any_worker(name)].add(whose(name))
    found = tuple(name for name in names if having[of_any_worker(name)] == workers)
    if not found:
        raise InputError(f"expected values that all workers have; found {_some(list(names))}", path)
    return found


def _compared(log: Log, following: Lineage, path: pathlib.Path) -> str:
    """What is to be said of steps without a value of every worker; empty where there are none.

    Raises:
      InputError: nothing can be compared, because the workers' values are always the same.
    """
    rows, missing = whole_steps(log, following)
    values = log.values[rows]
    if len(rows) and np.array_equal(values, np.broadcast_to(values[:, :1], values.shape), equal_nan=True):
        what = "all workers have the same value in every step, as norms after the sum over them are"
        raise InputError(f"{what}; expected each worker's own, before the sum", path)
    return f"{missing} step(s) have no value of some worker, and are passed over" if missing else ""


def _chosen(whole: Log, names: tuple[str, ...]) -> list[str]:
    """What was read, where it was not said: a person sees whether it was what they meant."""
    others = [name for name in dict.fromkeys((*whole.tensors, *whole.wrong)) if name not in names]
    if whole.as_given and not others:
        return []
    left = f"; not looked at: {_some(others)}" if others else ""
    return [f"read as {whole.family}: {_some(list(names))}{left}"]


def _some(names: list[str]) -> str:
    return ", ".join(names[:LISTED]) + (f" and {len(names) - LISTED} more" if len(names) > LISTED else "")


def _gaps(whole: Log, names: tuple[str, ...]) -> list[str]:
    return [
        f"{name} is empty at {count} step(s), first at {step}: pandas writes a NaN so"
        for name, (count, step) in whole.empty.items()
        if name in names or is_loss(name) or is_norm(name)
    ]


def _blind(whole: Log, names: tuple[str, ...]) -> str:
    shown = any(is_norm(name) or is_largest(name) or "nan" in words(name) for name in whole.tensors)
    if shown or not any(map(is_loss, names)):
        return ""
    return "no gradient norm is in the log: a NaN that the trainer left out of its mean loss cannot be seen"


def _order(log: Log, following: Lineage) -> list[str]:
    notes = []
    if following.restarts:
        said = ", ".join(f"step {after} after step {before}" for before, after in following.restarts[:3])
        more = f" and {len(following.restarts) - 3} more" if len(following.restarts) > 3 else ""
        notes.append(f"{len(following.restarts)} restart(s), {said}{more}: the later values count")
    if len(following.doubled):
        at = spans(log.steps[following.doubled].tolist())
        notes.append(f"{len(following.doubled)} value(s) of a step that was there already, all are looked at: {at}")
    return notes


def examine(given: Material, choice: Chosen) -> Examined:
    """Look at a log.

    Args:
      choice: the detector; without one nothing is looked at.
    """
    detector: Detector | None = choice.detector
    if detector is None:
        return Examined((), (), (), None, None)
    log, gone = given.log, given.following.superseded
    seen = look(detector, log, given.following)
    alarms = alarms_of(seen, log, ~gone)
    superseded = tuple(alarm for _, alarm in alarms_of(seen, log, gone))
    found = symptoms(given.whole, given.log.tensors, given.kind, given.skipped)
    steps = [each.step for each in found]
    if choice.raises and (step := raised(alarms, log, choice.strikes)) is not None:
        steps.append(step)
    return Examined(tuple(alarms), superseded, tuple(found), min(steps, default=None), seen)


def told_of(finding: Symptom) -> dict[str, Any]:
    """A finding as JSON has alarms, with one more key."""
    return {
        "step": finding.step,
        "tensor": finding.tensor,
        "value": None if math.isnan(finding.value) else finding.value,
        "level": 1,
        "threshold": None,
        "why": finding.why,
    }
