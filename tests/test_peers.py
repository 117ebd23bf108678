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


def ranks(path, factor=1.5, begins=60, missing=(), restart=None):
    """A log of four ranks, of which rank 2 errs from a step on; some steps have no value of rank 1."""
    random = np.random.default_rng(5)
    rows = np.exp(random.normal(0, 0.3, (100, 1)) + random.normal(0, 0.05, (100, 4)))
    rows[begins:, 2] *= factor
    steps = [*range(100)] if restart is None else [*range(begins + 30), *range(restart, 100)]
    cells = np.array([[f"{value:.17g}" for value in row] for row in rows], dtype=object)
    for at in missing:
        cells[at] = ""
    lines = [f"{step},{2 - step / 100}," + ",".join(cells[step]) for step in steps]
    header = "step,loss," + ",".join(f"rank{rank}/grad_norm" for rank in range(4))
    path.write_text("\n".join([header, *lines]) + "\n")
    return rows


def detected(capsys, *words):
    assert main(["detect", *map(str, words), "--json"]) == 0
    said = capsys.readouterr()
    return json.loads(said.out), said.err


def test_a_log_with_a_norm_of_each_rank_names_the_rank(tmp_path, capsys):
    rows = ranks(tmp_path / "log.csv")
    found, _ = detected(capsys, tmp_path / "log.csv", "--detector", "peers")
    by_hand = [step for step, who in enumerate(scalar(rows.tolist(), ["a"], 4, 1e8)) if who]
    assert [alarm["step"] for alarm in found["alarms"]] == by_hand and 60 < found["raised"] < 85
    assert {alarm["tensor"] for alarm in found["alarms"]} == {"rank2/grad_norm"}


def test_steps_without_a_value_of_every_rank_are_passed_over_and_said(tmp_path, capsys):
    rows = ranks(tmp_path / "log.csv", missing={(3, 1), (64, 1), (66, 0)})
    found, err = detected(capsys, tmp_path / "log.csv", "--detector", "peers")
    kept = [step for step in range(100) if step not in (3, 64, 66)]
    by_hand = [kept[i] for i, who in enumerate(scalar(rows[kept].tolist(), ["a"], 4, 1e8)) if who]
    assert [alarm["step"] for alarm in found["alarms"]] == by_hand
    assert "3 step(s) have no value of some worker, and are passed over" in err


def test_what_was_trained_again_counts_as_it_was_the_last_time(tmp_path, capsys):
    ranks(tmp_path / "log.csv", restart=50)
    again, _ = detected(capsys, tmp_path / "log.csv", "--detector", "peers")
    ranks(tmp_path / "plain.csv")
    assert again["alarms"] == detected(capsys, tmp_path / "plain.csv", "--detector", "peers")[0]["alarms"]


def test_norms_after_the_sum_over_all_workers_are_refused(tmp_path, capsys):
    """Every rank logs the same number then, and none could ever stand out."""
    (tmp_path / "log.csv").write_text("step,rank0/grad_norm,rank1/grad_norm\n0,1.5,1.5\n1,1.25,1.25\n")
    assert main(["detect", str(tmp_path / "log.csv"), "--detector", "peers"]) == 2
    assert "expected each worker's own, before the sum" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--value", "rank0/grad_norm"], "expected values of two workers or more, called such as rank0/grad_norm"),
        (["--value", "loss"], "found loss"),
        (["--calibrate", "log.csv"], "Peers has no threshold that could be calibrated"),
    ],
)
def test_a_log_without_workers_gets_one_line(tmp_path, monkeypatch, capsys, words, said):
    monkeypatch.chdir(tmp_path)
    ranks(tmp_path / "log.csv")
    assert main(["detect", "log.csv", "--detector", "peers", *words]) == 2
    assert said in capsys.readouterr().err.strip().splitlines()[-1]
