"""A replay, from its file to its verdict, with real processes and real files."""

import dataclasses
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

import jax
import numpy as np
import pytest
from small import SITE, UNREAD, small, striking_program
from whole import only_whole

from fault_injection.commands.main import main
from fault_injection.commands.out_folder import check_out, default_out
from fault_injection.faults.injection import Injection
from fault_injection.faults.injection_file import write_injection
from fault_injection.machine.errors import InputError
from fault_injection.runs.finished import find_finished
from fault_injection.runs.golden_run import Golden, NotRepeated
from fault_injection.runs.outcome import IMMEDIATE, MASKED, UNDECIDED
from fault_injection.runs.replay_files import write_replay
from fault_injection.runs.replay_run import golden_for, replay
from fault_injection.runs.witness import FaultNotApplied, check_struck
from fault_injection.seam.trees import same_bits

pytestmark = pytest.mark.usefixtures("compiled_quickly")

WORKLOAD = small(epochs=3)
MILD = Injection(WORKLOAD, "bkwd_inject", "RD", 2, SITE, 1, 4, ((5, 2, 1, 3),), (0.05,))
NAN = dataclasses.replace(MILD, values=(float("nan"),))
UNSEEN = dataclasses.replace(MILD, layer=UNREAD, positions=((5, 2, 1, 2),), values=(1e18,))
SHORT = dataclasses.replace(MILD, horizon=9)


def golden_of(cache, epochs=3):
    """The golden run in a cache, by the program that can strike both sites."""
    return Golden(small(epochs=epochs), striking_program(), cache)


def run(injection, folder, cache):
    """A replay and its files."""
    result = replay(injection, golden_of(cache, injection.workload.epochs))
    write_replay(result, "example", folder)
    return result


@pytest.fixture(scope="module")
def mild(cache, tmp_path_factory):
    """The replay of MILD, and the folder of its files."""
    folder = tmp_path_factory.mktemp("mild")
    return run(MILD, folder, cache), folder


@pytest.fixture(scope="module")
def nan(cache, tmp_path_factory):
    """The replay of NAN, and the folder of its files."""
    folder = tmp_path_factory.mktemp("nan")
    return run(NAN, folder, cache), folder


def test_what_a_replay_writes(mild):
    result, folder = mild
    written = {path.name for path in folder.iterdir()}
    assert written == {"replay_example.txt", "record.npz", "outcome.json", "provenance.json", "curves.png"}

    outcome = json.loads((folder / "outcome.json").read_text())
    assert outcome["outcome"] == result.outcome.outcome
    for run_name in ("golden", "faulty"):
        watched = outcome["largest_from_the_faulty_step_on"][run_name]
        assert {name: len(values) for name, values in watched.items()} == {
            "history_m": 3,
            "history_v": 3,
            "running_variance": 3,
        }

    provenance = json.loads((folder / "provenance.json").read_text())
    old, new = (int(provenance["struck"][f"{when}_bits"][0], 16) for when in ("old", "new"))
    assert np.uint32(new).view(np.float32) == np.float32(0.05)
    differing = [bit for bit in range(31, -1, -1) if (old ^ new) >> bit & 1]
    assert f"bits {', '.join(map(str, differing))} differ" in provenance["fault"]
    assert repr(float(np.uint32(old).view(np.float32))) in provenance["fault"]
    assert provenance["arithmetic"]["data_sha256"] == result.source.program.data()
    assert {"jax", "jaxlib", "device_kind", "threads", "matrix_precision"} <= provenance["arithmetic"].keys()

    with np.load(folder / "record.npz") as record:
        assert len(record["golden/steps/loss"]) == 3 * 11
        assert len(record["faulty/steps/loss"]) == 2 * 11  # from the fault's epoch on
        before = 4  # steps of that epoch before the fault
        np.testing.assert_array_equal(
            record["faulty/steps/loss"][:before], record["golden/steps/loss"][11 : 11 + before]
        )
        assert list(record["faulty/epochs/epoch"]) == [1, 2]
        assert {"golden/epochs/valid_accuracy", "faulty/steps/accuracy"} <= {*record}
        assert {f"faulty/steps/largest_{what}" for what in ("gradients", "history_m", "running_variance")} <= {*record}


def test_the_log_has_the_published_lines(mild):
    _, folder = mild
    lines = (folder / "replay_example.txt").read_text().splitlines()
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


def test_a_nan_in_a_gradient_ends_the_run_at_the_next_loss(nan):
    result, folder = nan
    assert (result.outcome.outcome, result.outcome.first_nonfinite) == (IMMEDIATE, 1)
    leaf = result.outcome.first_nonfinite_state
    assert leaf["leaf"].startswith("gradient/") and leaf["steps"] == 0
    assert (folder / "replay_example.txt").read_text().endswith("Encounter NaN! Terminate training!\n")
    assert json.loads((folder / "provenance.json").read_text())["struck"]["new"] == ["NaN"]
    assert len(result.faulty.column("loss")) == 6


def test_masking_is_proved_on_the_bits(cache, tmp_path):
    result = run(UNSEEN, tmp_path, cache)
    assert (result.outcome.outcome, result.outcome.exactly_masked_after) == (MASKED, 0)
    golden, faulty = result.golden.column("loss")[11:], result.faulty.column("loss")
    np.testing.assert_array_equal(golden, faulty)
    assert result.struck.operand_changed == 1


def test_the_golden_run_is_made_no_further_than_the_faulty_run_goes(mild, nan, tmp_path):
    made = []
    for injection, expected in ((NAN, nan[0]), (UNSEEN, None), (MILD, mild[0])):
        result = replay(injection, golden_of(tmp_path))
        made.append(golden_of(tmp_path).recorded())
        if expected is None:  # exactly masked: the rest is known
            assert len(result.faulty.column("loss")) == 11
            continue
        # Made epoch by epoch beside the faulty run, it has the bits that it has when it is made before.
        assert result.outcome == expected.outcome
        for name in ("loss", "digest", "magnitude"):
            np.testing.assert_array_equal(result.faulty.column(name), expected.faulty.column(name))
            golden = result.golden.column(name)
            np.testing.assert_array_equal(golden, expected.golden.column(name)[: len(golden)])
    assert made == [2, 2, 3]


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
    golden = golden_of(tmp_path)
    golden.make(3)
    record = golden.fetch_record(1)
    record["digest"][2, 0] ^= 1
    golden.store.write_record(1, record)
    with pytest.raises(NotRepeated, match="epoch 1, step 2"):
        run(MILD, tmp_path / "out", tmp_path)
    assert not (tmp_path / "out").exists()


def test_a_control_that_differs_from_the_golden_run_stops_the_replay(cache, tmp_path):
    golden = golden_of(tmp_path)
    golden.make(3)
    record = golden.fetch_record(1)
    record["digest"][MILD.step, 0] ^= 1
    golden.store.write_record(1, record)
    with pytest.raises(NotRepeated, match="epoch 1, step 4"):
        run(MILD, tmp_path / "out", tmp_path)


def test_observations_that_contradict_the_fault_are_refused(cache):
    golden = golden_of(cache)
    golden.make(3)
    program, state = golden.program, golden.fetch_state_before(1)
    other = dataclasses.replace(MILD, values=(0.06,))
    _, report = program.faulty_step(state, program.batch(1, 4), 1, 4, other.fault())
    struck = jax.device_get(report.struck)
    assert check_struck(other.layer, other.fault(), struck) is struck
    with pytest.raises(FaultNotApplied, match="listed bits"):
        check_struck(MILD.layer, MILD.fault(), struck)
    changed_elsewhere = dataclasses.replace(struck, operand_changed=struck.operand_changed + 1)
    with pytest.raises(FaultNotApplied, match="elements of the operand changed"):
        check_struck(other.layer, other.fault(), changed_elsewhere)
    lost = dataclasses.replace(struck, output_changed=struck.output_changed - 1)
    with pytest.raises(FaultNotApplied, match="elements of the result changed: 0, expected 1"):
        check_struck(other.layer, other.fault(), lost)
    with pytest.raises(FaultNotApplied, match="no fault support"):
        check_struck(MILD.layer, MILD.fault(), None)


def test_the_program_of_a_replay_strikes_its_own_site_and_no_other(cache, tmp_path):
    """Another site's fault is not passed over in silence."""
    elsewhere = dataclasses.replace(MILD, layer="fc", stage="fwrd_inject", positions=((0, 3),))
    with pytest.raises(FaultNotApplied, match="fc: operations struck: 0, expected 1"):
        replay(elsewhere, golden_of(tmp_path))
    assert golden_for(MILD, cache).key == golden_of(cache).key  # which sites can be struck changes no bit


def test_equal_numbers_of_different_bits_are_told_apart():
    assert same_bits({"a": np.float32([np.nan, 1])}, {"a": np.float32([np.nan, 1])})
    assert not same_bits({"a": np.float32([0.0])}, {"a": np.float32([-0.0])})


@pytest.mark.slow
def test_naming_the_file_is_enough(cache, tmp_path, repository, mild, monkeypatch, capsys):
    """From any folder: `replay my.csv` writes to out/my, and gives the verdict; so does the script."""
    write_injection(tmp_path / "my.csv", MILD)
    script = [sys.executable, repository / "reproduce_injections.py", "my.csv", "--cache", cache]
    done = subprocess.run(script, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    result, folder = mild
    assert done.stdout == f"{result.outcome.outcome}: {result.outcome.rule}\nwritten to out/my/\n"
    written = tmp_path / "out" / "my"
    assert (written / "outcome.json").read_text() == (folder / "outcome.json").read_text()
    command = json.loads((written / "provenance.json").read_text())["command"]
    assert command.startswith("python reproduce_injections.py my.csv")

    monkeypatch.chdir(tmp_path)
    out = told(capsys, "replay", "my.csv", "--cache", cache, "--json")
    assert out.count("\n") == 1
    said = json.loads(out)
    assert (said["name"], said["folder"]) == ("my", "out/my")
    assert (said["outcome"], said["rule"]) == (result.outcome.outcome, result.outcome.rule)


def test_the_result_of_another_injection_is_not_overwritten(cache, tmp_path, mild, monkeypatch, capsys):
    """Files of one name have folders of their own; where one has a result of another, one line says so."""
    folders = {"a/fault.csv": "out/a_fault", "b/fault.csv": "out/b_fault", "injections/fault.csv": "out/fault"}
    monkeypatch.chdir(tmp_path)
    for name, folder in folders.items():
        assert default_out(pathlib.Path(name)) == default_out(tmp_path / name) == pathlib.Path(folder)
    shutil.copytree(mild[1], "held")
    held = {path: path.read_bytes() for path in sorted(pathlib.Path("held").iterdir())}
    write_injection("other.csv", NAN)
    check_out(pathlib.Path("held"), MILD)  # the same injection may be replayed again
    assert main(["replay", "other.csv", "--out", "held", "--cache", str(cache)]) == 2
    expected = "held: has the result of another injection; --out DIR says where this one's goes\n"
    assert capsys.readouterr().err.endswith(expected)
    (tmp_path / "held" / "provenance.json").write_text("{")
    with pytest.raises(InputError, match="has the result of another injection"):
        check_out(pathlib.Path("held"), MILD)
    del held[pathlib.Path("held/provenance.json")]
    assert all(path.read_bytes() == content for path, content in held.items())


@only_whole
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


# ---- What --check says, and what finished replays say ---------------------------------------


def test_check_says_what_would_be_done_and_does_nothing(cache, tmp_path, capsys, mild):
    write_injection(tmp_path / "example.csv", MILD)
    before = sorted(path.relative_to(cache) for path in cache.rglob("*"))
    said = told(capsys, "replay", tmp_path / "example.csv", "--check", "--cache", cache)
    assert MILD.sentence() in said
    assert "3 epochs of 11 steps" in said and "3 epochs of it are in" in said
    assert "Then replays 22 steps from the start of epoch 1" in said
    assert "s per step" in said  # the golden run has told what a step takes

    other = tmp_path / "other"
    known = json.loads(told(capsys, "replay", tmp_path / "example.csv", "--check", "--cache", other, "--json"))
    assert known["injection"] == MILD.sentence()
    assert (known["golden_epochs"], known["golden_epochs_missing"], known["replay_steps"]) == (3, 3, 22)
    assert known["seconds"] is None and known["disk_bytes"] == golden_of(other).disk_bytes(3)
    assert sorted(path.relative_to(cache) for path in cache.rglob("*")) == before
    assert not list(other.rglob("*.npz"))


def told(capsys, *arguments):
    """What a command prints on standard output."""
    code = main(list(map(str, arguments)))
    out, err = capsys.readouterr()
    assert code == 0, err
    return out


def test_finished_replays_are_listed_and_drawn_together(mild, nan, tmp_path, capsys):
    folders = [folder for _, folder in (mild, nan)]
    rows = told(capsys, "results", *folders, "--curves", tmp_path / "both.png").splitlines()
    assert rows.pop() == f"written to {tmp_path / 'both.png'}"
    assert (tmp_path / "both.png").read_bytes().startswith(b"\x89PNG")
    assert {row.split()[0] for row in rows} == set(map(str, folders))
    (last,) = (row for row in rows if row.startswith(str(folders[1])))
    assert IMMEDIATE in last and "loss not finite 1 step(s) after the fault; gradient/" in last

    out = told(capsys, "results", *folders, "--json")
    assert out.count("\n") == 1
    found = {entry["folder"]: entry for entry in json.loads(out)}
    assert {folder: entry["outcome"] for folder, entry in found.items()} == {
        str(folder): result.outcome.outcome for result, folder in (mild, nan)
    }
    assert found[str(folders[1])]["fault"] == json.loads((folders[1] / "provenance.json").read_text())["fault"]


def test_the_list_of_results_refuses_what_no_replay_wrote(mild, tmp_path, capsys):
    assert told(capsys, "results", tmp_path).startswith("no finished replay in")
    assert main(["results", str(tmp_path / "none")]) == 2
    assert main(["results", str(tmp_path), "--curves", str(tmp_path / "x.png")]) == 2
    assert "0 replays, expected 1 to" in capsys.readouterr().err
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "outcome.json").write_text("{}")
    (tmp_path / "bad" / "provenance.json").write_text("{}")
    assert main(["results", str(tmp_path)]) == 2
    assert "outcome.json: is not what a replay writes" in capsys.readouterr().err
    assert not (tmp_path / "x.png").exists()


def test_replays_of_different_golden_runs_are_not_drawn_together(mild, tmp_path, capsys):
    other = tmp_path / "other"
    shutil.copytree(mild[1], other)
    known = json.loads((other / "provenance.json").read_text())
    (other / "provenance.json").write_text(json.dumps(known | {"golden_run": "0123456789ab"}))
    assert main(["results", str(mild[1]), str(other), "--curves", str(tmp_path / "x.png")]) == 2
    assert "have different golden runs" in capsys.readouterr().err
    assert len(find_finished([mild[1], other])) == 2


def test_a_plan_in_the_place_of_an_injection_file_gets_the_right_command(repository, capsys):
    plan = repository / "injections" / "plans" / "quick.toml"
    assert main(["replay", str(plan)]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1 and f"python -m fault_injection campaign {plan}" in err
