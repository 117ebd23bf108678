"""`peers` decides as sums written out one by one do, keeps its bound on false alarms, and names the worker."""

import json
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fault_injection.commands.main import main
from fault_injection.detection.localization import located
from fault_injection.detection.peers import SHARES, Peers, peers
from fault_injection.detection.registry import beside_a_run, of_one_device
from fault_injection.machine.errors import InputError
from fault_injection.workloads.registry import make_workload

VALUES = st.one_of(st.floats(0.5, 2.0), st.sampled_from([0.0, 1.0, 1e30, math.nan, math.inf]))
SMALL = {"width": 8, "context": 8, "batch_size": 8, "workers": 4, "blocks": 1}


def names(workers, parameters):
    """Of a report: worker after worker."""
    return [f"norm/local_gradients/worker_{w}/{p}" for w in range(workers) for p in parameters]


def scalar(rows, parameters, workers, steps):
    """Who raises an alarm in each step: (worker, parameter), by sums without logarithms."""
    sums, found = {}, []
    limit = 2 * workers * len(parameters) * steps
    for row in rows:
        value = {(w, p): row[w * len(parameters) + i] for w in range(workers) for i, p in enumerate(parameters)}
        raised = {key for key, each in value.items() if not math.isfinite(each)}
        for p in parameters:
            of_all = [value[w, p] for w in range(workers)]
            if not all(map(math.isfinite, of_all)):
                continue
            for w in range(workers):
                others = of_all[:w] + of_all[w + 1 :]
                for side, outermost in (("+", of_all[w] > max(others)), ("-", of_all[w] < min(others))):
                    for q in SHARES:
                        likelihood = q * workers if outermost else (1 - q) / (1 - 1 / workers)
                        sums[w, p, side, q] = (1 + sums.get((w, p, side, q), 0.0)) * likelihood
                    if sum(sums[w, p, side, q] for q in SHARES) / len(SHARES) > limit:
                        raised.add((w, p))
                        sums.update({(w, p, side, q): 0.0 for q in SHARES})
        found.append(raised)
    return found


def decisions(detector, rows, parameters, workers, xp=np):
    """The same of the detector, given the rows one by one."""
    keys = [(w, p) for w in range(workers) for p in parameters]
    memory, found = detector.init(names(workers, parameters)), []
    step = jax.jit(detector.update) if xp is jnp else detector.update
    with np.errstate(all="ignore"):
        for row in rows:
            memory, alarms = step(memory, xp.asarray(row))
            assert np.array_equal(np.asarray(alarms.excess) > 1, np.asarray(alarms.level) == 1)
            found.append({keys[i] for i in np.flatnonzero(alarms.level)})
    return found


@st.composite
def sequences(draw):
    """Workers, parameters, and rows of which the last have worker 0 ahead of all others, so that its sums grow."""
    workers, parameters = draw(st.integers(2, 5)), draw(st.sampled_from([["a"], ["a", "b/c"]]))
    size = workers * len(parameters)
    rows = draw(st.lists(st.lists(VALUES, min_size=size, max_size=size), max_size=30))
    ahead = [[9.0, *(1.0 + (step + i) % 3 for i in range(1, size))] for step in range(draw(st.integers(0, 30)))]
    return workers, parameters, rows + ahead


@settings(max_examples=60, deadline=None)
@given(sequences())
def test_it_decides_as_sums_written_out_one_by_one(sequence):
    workers, parameters, rows = sequence
    assert decisions(Peers(steps=50.0), rows, parameters, workers) == scalar(rows, parameters, workers, 50.0)


def test_traced_arrays_decide_alike():
    random = np.random.default_rng(7)
    rows = random.lognormal(size=(60, 8)) * np.array([1.0, 9.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0])
    rows[20, 3] = math.nan
    found = decisions(Peers(steps=50.0), rows, ["a", "b"], 4)
    assert decisions(Peers(steps=50.0), rows, ["a", "b"], 4, jnp) == found and any(found)


@pytest.mark.parametrize("workers", [2, 4, 16])
def test_false_alarms_keep_their_bound_however_the_values_are_distributed(workers):
    """Values as wild as can be, but of all workers alike: an alarm in n steps has a chance of n / A at most."""
    random, steps, trials, alarms = np.random.default_rng(workers), 30, 400, 0
    for _ in range(trials):
        rows = np.exp(
            random.standard_cauchy((steps, 1)).clip(-50, 50) + random.standard_cauchy((steps, workers)).clip(-50, 50)
        )
        alarms += any(decisions(Peers(steps=300.0), rows, ["a"], workers))
    # 400 trials of at most 10 %: more than 60 alarms would have a chance of 1e-3.
    assert alarms <= 60


@pytest.mark.parametrize(("workers", "within"), [(2, 45), (4, 20), (16, 9)])
@pytest.mark.parametrize("factor", [0.2, 5.0])
def test_a_worker_that_errs_is_named(workers, within, factor):
    random = np.random.default_rng(3)
    rows = random.uniform(0.9, 1.1, (200 + within, workers))
    rows[200:, 1] *= factor
    found = decisions(Peers(), rows, ["fc/kernel"], workers)
    assert not any(found[:200]) and (1, "fc/kernel") in set().union(*found[200:])
    assert {worker for worker, _ in set().union(*found)} <= ({1} if workers > 2 else {0, 1})


def test_a_parameter_that_some_workers_do_not_report_is_left_out():
    memory = Peers().init([*names(3, ["a", "b"]), "norm/local_gradients/worker_0/c"])
    assert memory.order.tolist() == [[0, 2, 4], [1, 3, 5]] and memory.place[-1] == 6


def test_it_needs_workers_of_their_own():
    program = make_workload("transformer", **SMALL).program(frozenset(), devices=1)
    with pytest.raises(InputError, match="here one gradient is of all workers together"):
        beside_a_run("peers", program, {})
    assert "of all workers together" in of_one_device(program, {})["peers"]
    with pytest.raises(InputError, match="expected copies"):
        Peers().init(["norm/local_gradients/workers_0_to_7/a"])
    apart = make_workload("transformer", strategy="local 2", **SMALL).program(frozenset(), devices=1)
    with pytest.raises(InputError, match="lets them differ"):
        peers(apart)
    own = make_workload("transformer", strategy="ddp", **SMALL).program(frozenset(), devices=1)
    assert peers(own) == Peers() and not of_one_device(own, {})["peers"]


# A device that stays defective, beside seven that do not.
DEFECTIVE = """model,transformer
profile,anatomy,2
schedule,permanent
target_worker,2
target_layer,layers_0_mlp_up_proj
target_epoch,0
target_step,3
learning_rate,0.003
seed,5
dataset,shakespeare
width,16
blocks,1
context,8
batch_size,16
workers,8
epochs,1
steps_per_epoch,40
strategy,ddp
"""


def test_a_replay_names_the_worker_of_a_defective_device(tmp_path, capsys):
    (tmp_path / "device.csv").write_text(DEFECTIVE)
    words = ["--detector", "peers", "--out", str(tmp_path / "out"), "--cache", str(tmp_path / "cache"), "--json"]
    assert main(["replay", str(tmp_path / "device.csv"), *words]) == 0
    found = json.loads(capsys.readouterr().out.strip().splitlines()[-1])["detection"]
    alarm = found["alarms"][0]
    assert located(alarm["tensor"]).workers == (2,) and alarm["step"] > 3 and not found["alarms_before_the_fault"]
