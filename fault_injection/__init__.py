"""What one wrong number does to a training run.

From a fault to a verdict, without a file:

>>> import pathlib, tempfile
>>> from fault_injection.faults.injection import Injection
>>> from fault_injection.runs.replay_run import golden_for, replay
>>> from fault_injection.training.workloads import make_workload
>>> small = {"width": 2, "blocks": (1, 1, 1, 1), "batch_size": 128, "workers": 4, "learning_rate": 0.03, "epochs": 1}
>>> workload = make_workload("resnet18", dataset="digits", **small)
>>> place = {"stage": "fwrd_inject", "fmodel": "RD", "layer": "fc", "worker": 1, "epoch": 0, "step": 2}
>>> injection = Injection(workload, **place, positions=((3, 7),), values=(float("nan"),))
>>> with tempfile.TemporaryDirectory() as cache:
...     result = replay(injection, golden_for(injection, cache=pathlib.Path(cache)))
>>> result.outcome.outcome
'Immediate INFs/NaNs'
"""
