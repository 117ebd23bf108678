"""What cached results depend on, in one place: their keys are hashes of this.

A golden run is filed under the workload, the data, the machine's arithmetic and the code that
computes its bits.  A verdict depends, besides, on the code that strikes and judges.  Code is
found by its imports: from the files named here, staying inside the rooms named here.  So a new
workload, which no other imports, changes no other's key.
"""

import functools
import hashlib
import json
from typing import Any

from ..machine.environment import ROOT
from ..machine.sources import closure, source_hash
from ..seam.workload import Workload

COMPUTING = tuple(f"fault_injection/{room}" for room in ("models", "seam", "explicit", "any_step", "workloads", "data"))
STRIKING = ("fault_injection/faults", "fault_injection/seam/state_faults.py")
JUDGING = ("fault_injection/runs", "fault_injection/campaign")

REPLAY = "fault_injection/runs/replay_run.py"
EXPERIMENT = "fault_injection/campaign/experiment.py"


@functools.cache
def source_of_bits(workload: Workload) -> str:
    """Hash of the code that computes the bits of a workload's runs."""
    return source_hash(tuple(closure(workload.sources(), COMPUTING)))


@functools.cache
def source_of_verdicts(root: str) -> str:
    """Hash of the code that strikes and judges, from a file of this project on."""
    return source_hash(tuple(closure([ROOT / root], (*STRIKING, *JUDGING))))


def content_hash(value: Any) -> str:
    """Twelve hexadecimal digits of the hash of a JSON value.

    >>> content_hash({"a": 1, "b": 2}) == content_hash({"b": 2, "a": 1})
    True
    """
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:12]
