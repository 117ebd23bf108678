"""What cached results depend on, in one place: their keys are hashes of this.

A golden run is filed under the workload, the data, the machine's arithmetic and the code that
computes its bits.  A verdict depends, besides, on the code that strikes and judges.  Code is
found by its imports: from a workload's class, or from the files named here, staying inside the
rooms named here.  What is imported counts, whether or not this workload uses it.
"""

import functools
import hashlib
import json
import pathlib
from typing import Any

from ..machine.sources import closure, source_hash
from ..seam.workload import Workload

COMPUTING = tuple(f"fault_injection/{room}" for room in ("models", "seam", "explicit", "any_step", "workloads", "data"))
JUDGING = tuple(f"fault_injection/{room}" for room in ("faults", "seam", "runs"))

REPLAY = "fault_injection/runs/replay_run.py"
EXPERIMENT = "fault_injection/questions/outcomes/experiment.py"
GROUP = "fault_injection/questions/outcomes/group_run.py"
WATCHING = "fault_injection/questions/scoreboard/tasks.py"
TRIALS = "fault_injection/questions/vulnerability/tasks.py"


@functools.cache
def source_of_bits(workload: Workload) -> str:
    """Hash of the code that computes the bits of a workload's runs."""
    return source_hash(closure(workload.sources(), COMPUTING))


@functools.cache
def source_of_verdicts(root: str) -> str:
    """Hash of the code that strikes and judges, from a file of this project on: in its own room, and in `JUDGING`."""
    return source_hash(closure([root], (*JUDGING, pathlib.PurePosixPath(root).parent.as_posix())))


@functools.cache
def source_of_alarms(root: str) -> str:
    """Hash of the code of detectors and of what runs them, from a file of this project on."""
    rooms = ("fault_injection/detection", pathlib.PurePosixPath(root).parent.as_posix())
    return source_hash(closure([root], rooms))


def content_hash(value: Any) -> str:
    """Twelve hexadecimal digits of the hash of a JSON value.

    >>> content_hash({"a": 1, "b": 2}) == content_hash({"b": 2, "a": 1})
    True
    """
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:12]
