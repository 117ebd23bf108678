"""What is scored: the table `[score]` of a plan."""

import dataclasses
import os
import pathlib

from ..campaign.plan import Plan
from ..campaign.plan_file import plan_tables, read_plan
from ..detection.detector import Detector
from ..detection.recovery import RECOVERIES
from ..detection.registry import DETECTORS, beside_a_run
from ..training.program import Program
from ..training.workload import Workload

KEYS = ("detectors", "window", "fault_free_seeds", "recoveries", "recovered", "replay_every")
RE_EXECUTION = "replay"


@dataclasses.dataclass(frozen=True)
class Settings:
    """What is scored.

    Attributes:
      detectors: names of those that watch.
      window: steps after the faulty one that they watch, at most.
      fault_free_seeds: seeds beside the plan's whose fault-free runs are watched for false alarms.
      recoveries: names of those that act on the alarms of each detector, in runs of their own.
      recovered: how many experiments have such runs, the first ones of the plan.
      replay_every: n of the detector `replay`.
    """

    detectors: tuple[str, ...]
    window: int = 20
    fault_free_seeds: int = 4
    recoveries: tuple[str, ...] = ("rewind",)
    recovered: int = 50
    replay_every: int = 10


def read_settings(path: pathlib.Path) -> tuple[Plan, Settings]:
    """A plan, and what is scored of it.

    Raises:
      InputError: one line that says where, what was found and what was expected.
    """
    plan = read_plan(path)
    document, read = plan_tables(path)
    table = read.table(document, "score")
    read.keys(table, KEYS, "score.")
    default = Settings(available(plan.workload))

    def names(key: str, known: tuple[str, ...], otherwise: tuple[str, ...]) -> tuple[str, ...]:
        found = read.list_of(table, f"score.{key}", list(otherwise), str, key) if table.get(key) != [] else []
        for name in found:
            read.one_of({key: name}, f"score.{key}", None, known)
        return tuple(dict.fromkeys(found))

    return plan, Settings(
        detectors=names("detectors", (*DETECTORS, RE_EXECUTION), default.detectors),
        window=read.whole(table, "score.window", default.window, 1, 10_000),
        fault_free_seeds=read.whole(table, "score.fault_free_seeds", default.fault_free_seeds, 0, 10_000),
        recoveries=names("recoveries", tuple(RECOVERIES), default.recoveries),
        recovered=read.whole(table, "score.recovered", default.recovered, 0, 10_000_000),
        replay_every=read.whole(table, "score.replay_every", default.replay_every, 1, 10**9),
    )


def available(workload: Workload) -> tuple[str, ...]:
    """Names of all detectors that can watch the workload on one device."""
    return (*DETECTORS, RE_EXECUTION)


def value_detectors(settings: Settings, program: Program) -> dict[str, Detector]:
    """The detectors that look at reports, by name."""
    found = {}
    for name in settings.detectors:
        if name != RE_EXECUTION:
            detector = beside_a_run(name, program, os.environ).detector
            if detector is not None:
                found[name] = detector
    return found
