"""Alarms of a detector in another framework, read back for the logs of `exported` and entered on the scoreboard."""

import csv
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ...detection.detector import STOP, WARN, Alarm
from ...machine.errors import InputError
from ...machine.files import read_text
from ...machine.reading import SHOWN
from ...runs.dependencies import content_hash
from ...runs.steps import Address, numbered
from ..outcomes.plan import Plan
from ..outcomes.sampling import draw_experiment
from .exported import run_name
from .store import ALARMS, EXPERIMENT, ScoreStore
from .tasks import SWEPT

COLUMNS = ["run", "step", "level", "tensor"]
PEAK = 1.0001  # an alarm's excess, which nobody has told: more than 1, and less than the next number of `SWEPT`
DIGITS = 18  # of a step's number
FIRST = 3  # alarms of a fault-free run that are kept


class Read(NamedTuple):
    """One alarm of the file: its line, step, level and tensor."""

    line: int
    step: int
    level: int
    tensor: str


def read_alarms(path: pathlib.Path, steps: Mapping[str, int]) -> dict[str, list[Read]]:
    """The alarms of each run, in the order of its steps.

    Args:
      path: CSV with the columns `COLUMNS`.
      steps: of each run, by its name.

    Raises:
      InputError: one line: a run is missing or unknown, a step is outside of its run, a row stands there twice, or the
        file is none of this form.
    """
    try:
        rows = list(csv.reader(read_text(path).splitlines()))
    except csv.Error as error:
        raise InputError(f"no CSV: {error}; expected the columns {','.join(COLUMNS)}", path) from None
    if not rows or rows[0] != COLUMNS:
        begins = ",".join(rows[0])[:SHOWN] if rows else "nothing"
        raise InputError(f"begins with {begins!r}; expected the columns {','.join(COLUMNS)}", path, 1)
    found: dict[str, list[Read]] = {}
    seen: set[tuple[Any, ...]] = set()
    for line, row in enumerate(rows[1:], 2):
        if not row:
            continue
        if len(row) != len(COLUMNS):
            raise InputError(f"{len(row)} cells; expected {len(COLUMNS)}: {','.join(COLUMNS)}", path, line)
        name, step, level, tensor = (cell.strip() for cell in row)
        if name not in steps:
            raise InputError(f"run {name[:SHOWN]!r} is none of the {len(steps)} exported runs", path, line)
        if name in found and (not found[name] or step == ""):
            raise InputError(f"{name} has a row without an alarm, and another row", path, line)
        alarms = found.setdefault(name, [])
        if step == level == "":
            if tensor:
                raise InputError("a tensor without a step; a run without an alarm has an empty step", path, line)
            continue
        if not (step.isascii() and step.isdecimal() and len(step) <= DIGITS and int(step) < steps[name]):
            expected = f"expected a whole number from 0 to {steps[name] - 1}, as the run has {steps[name]} rows"
            raise InputError(f"step {step[:SHOWN]!r} of {name}; {expected}", path, line)
        if level not in (str(STOP), str(WARN)):
            raise InputError(f"level {level[:SHOWN]!r}; expected {STOP} (stops) or {WARN} (warns)", path, line)
        if (same := (name, int(step), level, tensor)) in seen:
            raise InputError(f"this alarm of {name} stands here twice", path, line)
        seen.add(same)
        alarms.append(Read(line, int(step), int(level), tensor))
    if missing := [name for name in steps if name not in found]:
        what = "a run without an alarm has one row, with an empty step and level"
        raise InputError(f"{len(missing)} of {len(steps)} runs are missing, such as {missing[0]}; {what}", path)
    return {name: sorted(alarms, key=lambda one: one.step) for name, alarms in found.items()}


def enter_alarms(store: ScoreStore, plan: Plan, key: str, path: pathlib.Path, name: str) -> None:
    """Put the alarms of a detector on the scoreboard whose runs all others have watched.

    The fault-free steps of an experiment are those of the golden run.  So alarms in them are those of the golden run,
    where alarms follow from the rows above; else they are refused.

    Args:
      store: with all experiments and fault-free runs.
      key: of the campaign.
      path, name: of the alarms, and of the detector.

    Raises:
      InputError: as `read_alarms`, or alarms do not follow from the rows above.
    """
    experiments = {int(number): value for number, value in store.all(EXPERIMENT)}
    fault_free = {run: next(iter(value.values()))["steps"] for run, value in store.all("fault_free")}
    at = {number: _struck(plan, number) for number in experiments}
    names = {number: run_name(key, EXPERIMENT, number) for number in experiments}
    free = {run: run_name(key, kind, int(number)) for run in fault_free for kind, number in [run.split()]}
    steps = {names[number]: at[number] + len(value["loss"]) for number, value in experiments.items()}
    alarms = read_alarms(path, steps | {free[run]: count for run, count in fault_free.items()})
    golden = alarms[free["golden 0"]]
    for number, run in names.items():
        _require_causal(alarms[run], golden, at[number], (run, free["golden 0"]), path)
    entered = {
        "experiments": {str(number): _seen(alarms[run], at[number]) for number, run in names.items()},
        "fault_free": {run: _counted(alarms[free[run]], count) for run, count in fault_free.items()},
        "digest": content_hash(read_text(path)),
    }
    store.put(ALARMS, name, entered)


def _struck(plan: Plan, number: int) -> int:
    drawn = draw_experiment(plan, number)
    return numbered(Address(drawn.epoch, drawn.step), plan.steps_per_epoch)


def _require_causal(
    alarms: Sequence[Read], golden: Sequence[Read], before: int, runs: tuple[str, str], path: pathlib.Path
) -> None:
    """See that both say the same of steps that are the same."""
    one, other = ({each[1:]: each.line for each in some if each.step < before} for some in (alarms, golden))
    if differing := one.keys() ^ other.keys():
        step, line = min(differing)[0], (one | other)[min(differing)]
        what = f"runs {runs[0]} and {runs[1]} have the same rows up to step {step}, but other alarms"
        raise InputError(f"{what}; expected alarms that follow from a row and the rows above it", path, line)


def _seen(alarms: Sequence[Read], struck: int) -> dict[str, Any]:
    """As `tasks.watched` has it of a detector."""
    after = [one for one in alarms if one.step >= struck]
    stop, warn = (next((one for one in after if one.level == level), None) for level in (STOP, WARN))
    first = stop or warn
    return {
        "stop": None if stop is None else stop.step - struck,
        "warn": None if warn is None else warn.step - struck,
        "tensor": None if first is None else first.tensor or None,
        "peaks": [PEAK if stop is not None else 0.0],
    }


def _counted(alarms: Sequence[Read], steps: int) -> dict[str, Any]:
    """As `tasks.fault_free` has it of a detector."""
    stop, warn = (len({one.step for one in alarms if one.level == level}) for level in (STOP, WARN))
    first = [Alarm(a.step, a.tensor, float("nan"), a.level, float("nan")) for a in alarms if a.level == STOP]
    beyond = [stop if x < PEAK else 0 for x in SWEPT]
    told = [one._asdict() for one in first[:FIRST]]
    return {"steps": steps, "stop": stop, "warn": warn, "beyond": beyond, "first": told}
