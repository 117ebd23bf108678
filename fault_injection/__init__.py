"""What one wrong number does to a training run.

From a fault to a verdict, without a file:

>>> import pathlib, tempfile
>>> from fault_injection.faults.injection import Injection
>>> from fault_injection.runs.replay_run import golden_for, replay
>>> from fault_injection.workloads.registry import make_workload
>>> small = {"width": 2, "blocks": (1, 1, 1, 1), "batch_size": 128, "workers": 4, "learning_rate": 0.03, "epochs": 1}
>>> workload = make_workload("resnet18", dataset="digits", **small)
>>> place = {"stage": "fwrd_inject", "fmodel": "RD", "layer": "fc", "worker": 1, "epoch": 0, "step": 2}
>>> injection = Injection(workload, **place, positions=((3, 7),), values=(float("nan"),))
>>> with tempfile.TemporaryDirectory() as cache:
...     result = replay(injection, golden_for(injection, cache=pathlib.Path(cache)))
>>> result.outcome.outcome
'Immediate INFs/NaNs'

A step of one's own is struck as it is, see `Training` and `instrument` (docs/any_step.md).
"""

import importlib
from typing import Any

__version__ = "0.2.0"

# Imported when they are first asked for: commands that compute nothing do without JAX.
LAZY = {
    "Training": "fault_injection.any_step.training",
    "Measure": "fault_injection.seam.measure",
    "instrument": "fault_injection.any_step.instrument",
}


def __getattr__(name: str) -> Any:
    if name in LAZY:
        return getattr(importlib.import_module(LAZY[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
