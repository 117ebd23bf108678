"""A small campaign's store, made without running anything."""

import concurrent.futures
import contextlib
import dataclasses
import pathlib
from collections.abc import Callable

import numpy as np

from fault_injection.campaign.executors import Slot
from fault_injection.campaign.task import Task
from fault_injection.questions.outcomes import jobs
from fault_injection.questions.outcomes.conditions import CONDITIONS, Conditions
from fault_injection.questions.outcomes.driver import campaign
from fault_injection.questions.outcomes.plan import Plan
from fault_injection.questions.outcomes.plan_file import parse_plan
from fault_injection.questions.outcomes.result import END, Result
from fault_injection.questions.outcomes.store import Store
from fault_injection.runs.outcome import IMMEDIATE, MASKED, SLOW
from fault_injection.seam.measure import Measure

TOY = pathlib.Path(__file__).with_name("toy.py")
KEY = "a plan's key"
ENVIRONMENT = {"host": "here", "jax": "0.0"}


def toy_plan(experiments: int = 40) -> Plan:
    """A plan of the linear regression."""
    return parse_plan(
        f'workload = "{TOY}:linear"\n[faults]\nexperiments = {experiments}\n[faults.models]\nRD = 1\nINPUT = 1'
    )


def result(number: int, **changes: object) -> Result:
    """A result of the plan; every sixth is not masked."""
    outcome, ended, steps = (
        (MASKED, CONDITIONS, 3) if number % 6 else ((SLOW, END, 20), (IMMEDIATE, "nan", 1))[number % 12 // 6]
    )
    known = {
        "number": number,
        "epoch": number % 4,
        "step": number % 8,
        "worker": number % 2,
        "site": "fc",
        "stage": "forward",
        "operand": "output",
        "model": "RD",
        "value_source": "random_finite",
        "elements": 1,
        "bit": None,
        "first_position": number,
        "old_bits": 0x3F800000,
        "new_bits": number,
        "operand_changed": 1,
        "output_changed": 1,
        "outcome": outcome,
        "rule": f"the rule of {number}",
        "exit": ended,
        "steps": steps,
        "first_nonfinite": 0 if outcome == IMMEDIATE else None,
        "nonfinite_leaf": None,
        "nonfinite_leaf_after": None,
        "exactly_masked_after": None,
        "early_rule": "within the envelope" if ended == CONDITIONS else None,
        "early_after": 2 if ended == CONDITIONS else None,
        "early_outcome": MASKED if ended == CONDITIONS else None,
        "near": 0,
        "history_excess": 1.0 + number,
        "variance_excess": 1.0,
        "loss_gap": 0.25,
        "worse_train": 0.25 if outcome == SLOW else None,
        "worse_test": 0.5 if outcome == SLOW else None,
        "audit_outcome": None,
        "audit_rule": None,
        "audit_steps": 0,
        "seconds": 1.5,
        "outside_seconds": 0.1,
        "setup_seconds": 0.0,
        "curve": np.linspace([2.0, 0.1], [1.0 + number, 0.5], steps, dtype="<f4").tobytes(),
        "alterations": (),
        "comparison": None,
    }
    fields = {field.name for field in dataclasses.fields(Result)}
    assert fields == known.keys()
    return Result(**known | changes)


def fill(
    folder: pathlib.Path, plan: Plan, changes: Callable[[int], dict[str, object]] = lambda number: {}
) -> pathlib.Path:
    """A campaign's folder with all results of its plan, and with `changes` of each."""
    measure = dataclasses.asdict(Measure("loss", "lower", 5.0, 0.01))
    with Store(folder, write=True) as store:
        store.begin(
            KEY, plan, conditions=dataclasses.asdict(Conditions()), measure=measure, jobs=1, plan_file="mine.toml"
        )
        store.event("started")
        for epoch in range(4):
            store.walked(epoch, 8, 0.5)
        for number in range(plan.experiments):
            store.add(result(number, **changes(number)), ENVIRONMENT, KEY)
        store.event("finished")
    return folder


class Inline(concurrent.futures.Executor):
    """Runs what it is given in this process."""

    def submit(self, function, /, *arguments):
        future = concurrent.futures.Future()
        try:
            future.set_result(function(*arguments))
        except Exception as error:
            future.set_exception(error)
        return future


def run_inline(out, plan, monkeypatch, results, make_golden, fails=()):
    """A campaign whose experiments' results are there already, but for those over which a process dies.

    Returns the number of each experiment, in their order, with the rules that may end it.
    """
    made = []

    def experiment(task, golden_key, number, supported):
        made.append((number, supported))
        if number in fails:
            raise concurrent.futures.BrokenExecutor
        return results[number], {"host": "here"}

    monkeypatch.setattr(jobs, "make_golden", make_golden)
    monkeypatch.setattr(jobs, "walk", lambda *arguments: (0, 0.0))
    monkeypatch.setattr(jobs, "experiment", experiment)
    slot = Slot(Inline, lambda: 1, (concurrent.futures.BrokenExecutor,), Inline())
    campaign(Task(plan), out, contextlib.nullcontext([slot]))
    return made
