"""A replay, from its file to its verdict, with real processes and real files."""

import dataclasses
import json
import os
import re
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from fault_injection.runs.faulty_run import FaultNotApplied, check_struck, same_bits

from fault_injection.faults.injection import Injection, write_injection
from fault_injection.runs.golden_run import Golden, NotRepeated
from fault_injection.runs.outcome import IMMEDIATE, MASKED, UNDECIDED
from fault_injection.runs.replay_run import prepare, replay
from fault_injection.training.workloads import make_workload

WORKLOAD = make_workload("resnet18", dataset="digits", width=2, batch_size=128, workers=4, epochs=3)
MILD = Injection(WORKLOAD, "bkwd_inject", "RD", 2, "basicblock_3_basic_0_conv1_grad_in", 1, 4, ((5, 2, 1, 3),), (0.05,))
NAN = dataclasses.replace(MILD, values=(float("nan"),))
UNSEEN = dataclasses.replace(MILD, layer="conv1_grad_in", positions=((5, 2, 1, 2),), values=(1e18,))
SHORT = dataclasses.replace(MILD, horizon=9)


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


def run(injection, folder, cache):
    return replay(injection, "example", folder, cache=cache)


def test_what_a_replay_writes(cache, tmp_path):
    result = run(MILD, tmp_path, cache)
    written = {path.name for path in tmp_path.iterdir()}
    assert written == {"replay_example.txt", "record.npz", "outcome.json", "provenance.json", "curves.png"}

    outcome = json.loads((tmp_path / "outcome.json").read_text())
    assert outcome["outcome"] == result.outcome.outcome
    for run_name in ("golden", "faulty"):
        watched = outcome["largest_from_the_faulty_step_on"][run_name]
        assert {name: len(values) for name, values in watched.items()} == {
            "history_m": 3,
            "history_v": 3,
            "running_variance": 3,
        }

    provenance = json.loads((tmp_path / "provenance.json").read_text())
    old, new = (int(provenance["struck"][f"{when}_bits"][0], 16) for when in ("old", "new"))
    assert np.uint32(new).view(np.float32) == np.float32(0.05)
    differing = [bit for bit in range(31, -1, -1) if (old ^ new) >> bit & 1]
    assert f"bits {', '.join(map(str, differing))} differ" in provenance["fault"]
    assert repr(float(np.uint32(old).view(np.float32))) in provenance["fault"]
    assert provenance["arithmetic"]["data_sha256"] == Golden(prepare(MILD, cache)[0]).session.images.sha256
    assert {"jax", "jaxlib", "device_kind", "threads", "matrix_precision"} <= provenance["arithmetic"].keys()

    with np.load(tmp_path / "record.npz") as record:
        assert len(record["golden/steps/loss"]) == 3 * 11
        assert len(record["faulty/steps/loss"]) == 2 * 11  # from the fault's epoch on
        before = 4  # steps of that epoch before the fault
        np.testing.assert_array_equal(
            record["faulty/steps/loss"][:before], record["golden/steps/loss"][11 : 11 + before]
        )
        assert list(record["faulty/epochs/epoch"]) == [1, 2]
        assert {f"faulty/steps/largest_{what}" for what in ("gradients", "history_m", "running_variance")} <= {*record}


def test_the_log_has_the_published_lines(cache, tmp_path):
    run(MILD, tmp_path, cache)
    lines = (tmp_path / "replay_example.txt").read_text().splitlines()
    number, place = r"-?\d+\.\d{5}", r"Epoch: {}/3, step: {}/11, "
    assert lines[:2] == ["Inject to epoch: 1", "Inject to step: 4"]
    assert lines[2].startswith("Load weights from ")
    at = lines.index("Inject worker: 2")
    assert at == 3 + 4
    assert lines[at + 1] == "Inject layer: basicblock_3_basic_0_conv1_grad_in"
    assert lines[at + 2] == "Shape for target layer is (32, 8, 8, 4)"
    assert re.fullmatch(r"Position is \(5, 2, 1, 3\), Golden data is \S+, inject data is 0.05", lines[at + 3])
    assert re.fullmatch(place.format(1, 4) + f"loss: {number}, accuracy: {number}", lines[at + 4])
    ends = [line for line in lines if line.startswith("End of epoch")]
    assert [line.split(",")[0] for line in ends] == ["End of epoch: 1/3", "End of epoch: 2/3"]
    names = "train loss", "train accuracy", "valid loss", "valid accuracy"
    assert re.fullmatch(r"End of epoch: 1/3, " + ", ".join(f"{name}: {number}" for name in names), ends[0])
    assert len(lines) == 3 + 22 + 4 + 2


def test_a_nan_ends_the_run_at_once(cache, tmp_path):
    result = run(NAN, tmp_path, cache)
    assert (result.outcome.outcome, result.outcome.first_nonfinite) == (IMMEDIATE, 0)
    assert (tmp_path / "replay_example.txt").read_text().endswith("Encounter NaN! Terminate training!\n")
    assert json.loads((tmp_path / "provenance.json").read_text())["struck"]["new"] == ["NaN"]
    assert len(result.faulty.column("loss")) == 5


def test_masking_is_proved_on_the_bits(cache, tmp_path):
    result = run(UNSEEN, tmp_path, cache)
    assert (result.outcome.outcome, result.outcome.exactly_masked_after) == (MASKED, 0)
    golden, faulty = result.golden.column("loss")[11:], result.faulty.column("loss")
    np.testing.assert_array_equal(golden, faulty)
    assert result.struck.operand_changed == 1


def test_a_run_cut_at_the_horizon_is_undecided(cache, tmp_path):
    result = run(SHORT, tmp_path, cache)
    assert result.outcome.outcome == UNDECIDED
    assert len(result.faulty.column("loss")) == 4 + 1 + 9
    assert "cut 9 step(s) after the fault" in result.outcome.rule


def test_the_twins_are_compared_over_as_many_epochs_as_the_verdict_is_a_mean_of(cache, tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr("fault_injection.runs.replay_run.noise_floor", lambda *arguments: asked.append(arguments[1:]))
    run(MILD, tmp_path / "two", cache)  # epochs ended after the fault, of three at most
    run(NAN, tmp_path / "none", cache)
    assert asked == [(3, 2), (3, 3)]


def test_a_step_before_the_fault_that_differs_from_the_golden_run_stops_the_replay(cache, tmp_path):
    _, golden = prepare(MILD, tmp_path)
    golden.ensure(3)
    record = golden.record(1)
    record["digest"][2, 0] ^= 1
    golden.store.write_record(1, record)
    with pytest.raises(NotRepeated, match="epoch 1, step 2"):
        run(MILD, tmp_path / "out", tmp_path)
    assert not (tmp_path / "out").exists()


def test_a_control_that_differs_from_the_golden_run_stops_the_replay(cache, tmp_path):
    _, golden = prepare(MILD, tmp_path)
    golden.ensure(3)
    record = golden.record(1)
    record["digest"][MILD.step, 0] ^= 1
    golden.store.write_record(1, record)
    with pytest.raises(NotRepeated, match="epoch 1, step 4"):
        run(MILD, tmp_path / "out", tmp_path)


def test_observations_that_contradict_the_fault_are_refused(cache):
    session, golden = prepare(MILD, cache)
    golden.ensure(3)
    state = golden.state_before(1)
    other = dataclasses.replace(MILD, values=(0.06,))
    _, report = session.faulty_step(state, 1, 4, other.fault())
    assert check_struck(other.layer, other.fault(), report.struck) is report.struck
    with pytest.raises(FaultNotApplied, match="listed bits"):
        check_struck(MILD.layer, MILD.fault(), report.struck)
    changed_elsewhere = report.struck.replace(operand_changed=report.struck.operand_changed + 1)
    with pytest.raises(FaultNotApplied, match="elements of the operand changed"):
        check_struck(other.layer, other.fault(), changed_elsewhere)


def test_equal_numbers_of_different_bits_are_told_apart():
    assert same_bits({"a": np.float32([np.nan, 1])}, {"a": np.float32([np.nan, 1])})
    assert not same_bits({"a": np.float32([0.0])}, {"a": np.float32([-0.0])})


def test_killed_and_started_again_it_ends_with_the_same_verdict_and_numbers(cache, tmp_path, repository):
    longer = dataclasses.replace(MILD, workload=dataclasses.replace(WORKLOAD, epochs=12))
    file = tmp_path / "example.csv"
    write_injection(file, longer)
    undisturbed = run(longer, tmp_path / "undisturbed", cache)
    out = tmp_path / "killed"
    command = [sys.executable, "reproduce_injections.py", "--file", file, "--out", out, "--cache", cache]
    process = subprocess.Popen(command, cwd=repository, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    waiting = cache / "replays"
    deadline = time.monotonic() + 120
    while not list(waiting.glob("*/checkpoints/000[3-9].npz")) and time.monotonic() < deadline:
        assert process.poll() is None
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert not (out / "outcome.json").exists()
    done = subprocess.run(command, cwd=repository, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "going on with an interrupted replay" in done.stderr
    assert done.stdout.startswith(undisturbed.outcome.outcome)
    for name in ("replay_example.txt", "outcome.json"):
        assert (out / name).read_text() == (tmp_path / "undisturbed" / name).read_text()
    assert not list(waiting.iterdir())


@pytest.mark.slow
def test_of_two_replays_of_one_file_one_waits_for_the_other(cache, tmp_path, repository):
    write_injection(tmp_path / "example.csv", MILD)
    command = [sys.executable, "reproduce_injections.py", "--file", tmp_path / "example.csv", "--cache", cache, "--out"]
    both = [
        subprocess.Popen([*command, tmp_path / name], cwd=repository, stderr=subprocess.PIPE, text=True)
        for name in ("one", "two")
    ]
    said = "".join(process.communicate()[1] for process in both)
    assert [process.returncode for process in both] == [0, 0]
    waits = re.findall(r"another process is writing .*", said)
    assert len(waits) == len(set(waits))  # one waits for the golden run, or for the replay, or came later
    assert "going on with" not in said
    one, two = ((tmp_path / name / "outcome.json").read_text() for name in ("one", "two"))
    assert one == two


def test_images_that_are_not_at_hand_give_one_line(repository, tmp_path):
    file = repository / "injections" / "published" / "resnet18-masked.csv"
    command = [sys.executable, repository / "reproduce_injections.py", "--file", file, "--cache", tmp_path]
    home = {"HOME": str(tmp_path), "FAULT_INJECTION_CACHE": str(tmp_path), "FAULT_INJECTION_DATA": ""}
    offline = {"https_proxy": "http://127.0.0.1:9", "no_proxy": ""}  # on a machine with network too
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env=os.environ | home | offline)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert "cifar10" in done.stderr and "dataset,digits" in done.stderr
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]
