"""What one wrong number does to a training run.

From a fault to a verdict, without a file:

>>> import pathlib, tempfile
>>> import fault_injection
>>> small = {"width": 2, "blocks": (1, 1, 1, 1), "batch_size": 128, "workers": 4, "learning_rate": 0.03, "epochs": 1}
>>> workload = fault_injection.make_workload("resnet18", dataset="digits", **small)
>>> place = {"stage": "fwrd_inject", "fmodel": "RD", "layer": "fc", "worker": 1, "epoch": 0, "step": 2}
>>> injection = fault_injection.Injection(workload, **place, positions=((3, 7),), values=(float("nan"),))
>>> with tempfile.TemporaryDirectory() as cache:
...     golden = fault_injection.golden_for(injection, cache=pathlib.Path(cache))
...     result = fault_injection.replay(injection, golden)
>>> result.outcome.outcome
'Immediate INFs/NaNs'

A step of one's own is struck as it is, see `Training` and `instrument` (docs/any_step.md).  What `__init__.pyi` lists
is public: it stays as it is between minor versions.  Other modules may change.
"""

import importlib

from .version import __version__  # noqa: F401

# Imported when they are first asked for: `import fault_injection` loads no JAX.
_HOMES = {
    "ActivationRange": "detection.activation_range",
    "Asd": "detection.asd",
    "AsdV1": "detection.asd_v1",
    "AsdV3": "detection.asd_v3",
    "Checksum": "detection.checksum",
    "DrDna": "detection.dr_dna",
    "DrDnaPublished": "detection.dr_dna",
    "Fault": "models.fault",
    "GradientNorm": "detection.spike",
    "HistoryBound": "detection.history_bound",
    "Injection": "faults.injection",
    "InputError": "machine.errors",
    "LossSpike": "detection.spike",
    "Measure": "seam.measure",
    "NonFinite": "detection.nonfinite",
    "Operand": "models.fault",
    "Training": "any_step.training",
    "UnconfirmedChecksum": "detection.checksum",
    "VarianceChecksum": "detection.checksum",
    "alarms": "detection.transformation",
    "golden_for": "runs.replay_run",
    "inactive_fault": "models.fault",
    "instrument": "any_step.instrument",
    "make_fault": "models.site",
    "make_workload": "workloads.registry",
    "replay": "runs.replay_run",
    "watch": "detection.transformation",
}
__all__ = list(_HOMES)


def __getattr__(name: str) -> object:
    if name in _HOMES:
        return getattr(importlib.import_module(f".{_HOMES[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
