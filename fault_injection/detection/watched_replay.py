"""A replay with a detector beside it, and a second one in which a recovery acts on the detector's alarms."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from ..faults.injection import Injection
from ..machine.processes import say
from ..runs.follow import follow
from ..runs.golden_run import Golden, Repeats
from ..runs.replay_run import Replay, complete_golden, last_step, replay
from ..runs.steps import Address, addresses, numbered
from ..seam.stages import CHECKPOINT
from .detector import STOP, AnyDetector, Memory
from .recovery import RECOVERIES, undoing
from .registry import watcher
from .watch import Watcher

MOST = 100  # alarms that are listed


@dataclasses.dataclass(frozen=True)
class Watched:
    """What a detector saw of an injection, and what a recovery did.

    Attributes:
      replay: the run that nothing interferes with.
      watch: the detector beside it.
      recovered: the run that recovers; None without a recovery, or where nothing was to be done.
      recovering: the detector beside that run.
    """

    replay: Replay
    watch: Watcher
    recovered: Replay | None = None
    recovering: Watcher | None = None


def watched_replay(
    injection: Injection,
    golden: Golden,
    detector: AnyDetector,
    recovery: str | None = None,
) -> Watched:
    """Replay an injection with a detector beside it and, where it stops the run, once more with a recovery.

    The detector has seen the fault-free run up to the fault.  It never sees the golden run beside
    the faulty one.

    Args:
      golden: by a program that reports what the detector watches, and the recovery needs.
      recovery: key of `RECOVERIES`.

    Raises:
      As `replay`.
    """
    program = golden.program
    complete_golden(golden, injection.epoch + 1, last_step(injection).epoch + 1)
    memory = memory_before(golden, detector, injection.epoch)

    watch = watcher(program, detector, memory)
    result = Watched(replay(injection, golden, watching=[watch]), watch)
    if recovery is not None and any(alarm.level == STOP for alarm in watch.alarms):
        back, undo = RECOVERIES[recovery], undoing(recovery, program)
        again = watcher(program, detector, memory, back)
        recovered = replay(injection, golden, watching=[again], keep=back.steps, undo=undo)
        result = dataclasses.replace(result, recovered=recovered, recovering=again)
    return result


def memory_before(golden: Golden, detector: AnyDetector, epoch: int) -> Memory:
    """The memory of a detector that has watched the golden run up to, but not including, an epoch.

    The run is made again for it, because its record does not hold what detectors look at; each step
    is compared with the record.

    Args:
      golden: made as far as that, by a program that reports what the detector watches.

    Returns:
      None where the run has no step before, and for a detector that remembers nothing.

    Raises:
      NotRepeated: a step differs from the record.
    """
    if epoch == golden.first or not detector.remembers:
        return None
    program, first = golden.program, Address(golden.first, 0)
    say(f"the detector watches the golden run up to epoch {epoch - 1}, which is made again for it")
    watch = watcher(program, detector)
    steps = addresses(first, Address(epoch, -1), program.steps_per_epoch)
    follow(program, golden.fetch_state_before(golden.first), steps, observers=[Repeats(golden), watch])
    return watch.memory


def detection_summary(watched: Watched, detector: str, recovery: str | None) -> dict[str, Any]:
    """What was detected, when, what was done, and what came of it."""
    injection, steps_per_epoch = watched.replay.injection, watched.replay.source.program.steps_per_epoch
    struck = injection.epoch * steps_per_epoch + injection.step
    alarms = [alarm for alarm in watched.watch.alarms if alarm.step >= struck]
    stops = [alarm for alarm in alarms if alarm.level == STOP]
    first = max((alarm for alarm in stops if alarm.step == stops[0].step), key=lambda alarm: alarm.rank, default=None)
    found: dict[str, Any] = {
        "detector": detector,
        "detected": bool(stops),
        "first_that_stops": None if first is None else first._asdict(),
        "steps_from_fault_to_alarm": stops[0].step - struck if stops else None,
        "alarms": [alarm._asdict() for alarm in alarms[:MOST]],
        "alarms_in_all": len(alarms),
        "alarms_before_the_fault": len(watched.watch.alarms) - len(alarms),
        "outcome": watched.replay.outcome.outcome,
        "recovery": recovery,
    }
    if watched.recovered is not None and watched.recovering is not None:
        loads = {(one.epoch, one.step) for one in injection.every if one.stage == CHECKPOINT}
        found["actions"] = []
        for a in watched.recovering.actions:
            undone = numbered(a.step, steps_per_epoch) - numbered(a.first, steps_per_epoch) + 1
            stopped = recovery is not None and undone < RECOVERIES[recovery].steps and a.first in loads
            known = {"at": list(a.step), "steps_undone": undone, "executed_again": a.again}
            found["actions"].append({**known, "stopped_at_the_load": stopped})
        found["after_recovery"] = dataclasses.asdict(watched.recovered.outcome)
    return found


def sentences(found: Mapping[str, Any]) -> list[str]:
    """A summary in words.

    >>> alarm = {"tensor": "rms/adam_steps/norm/scale", "value": 0.00154, "threshold": 0.00169}
    >>> sentences({"detector": "rt_jump", "detected": True, "first_that_stops": alarm, "steps_from_fault_to_alarm": 0})
    ['rt_jump: detected in the faulty step: rms/adam_steps/norm/scale is 0.00154, below its threshold 0.00169']
    """
    if not found["detected"]:
        return [f"{found['detector']}: not detected"]
    first, after = found["first_that_stops"], found["steps_from_fault_to_alarm"]
    when = "in the faulty step" if after == 0 else f"{after} step(s) after the fault"
    value, threshold = first["value"], first["threshold"]
    side = "below " if value < threshold else "above " if value > threshold else ""  # a jump may be one down
    what = f"is {value:.4g}, {side}its threshold {threshold:.4g}"
    if math.isnan(threshold):
        what = "differs from what it is compared with"
    told = [f"{found['detector']}: detected {when}: {first['tensor']} {what}"]
    if "after_recovery" in found:
        undone = sum(action["steps_undone"] for action in found["actions"])
        outcome = found["after_recovery"]
        what = f"{len(found['actions'])} action(s), {undone} step(s) undone"
        if any(action["stopped_at_the_load"] for action in found["actions"]):
            what += ", none before the load of the checkpoint"
        told.append(f"{found['recovery']}: {what}; then {outcome['outcome']}: {outcome['rule']}")
    return told
