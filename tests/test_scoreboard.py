"""The scoreboard: what it says of detectors is what they do on the experiments of its campaign."""

import json
import math
from types import SimpleNamespace

import momentum_training
import numpy as np
import pytest

from fault_injection.commands.main import main
from fault_injection.detection.checksum import SampledChecksum, UnconfirmedChecksum
from fault_injection.machine.errors import InputError, Untrustworthy
from fault_injection.questions.scoreboard import driver, tasks
from fault_injection.questions.scoreboard.board import Board, ScoredExperiment, require_same
from fault_injection.questions.scoreboard.settings import chosen_detectors, read_settings
from fault_injection.questions.scoreboard.store import NAMES, ScoreStore
from fault_injection.questions.scoreboard.tasks import SWEPT
from fault_injection.runs.outcome import MASKED
from fault_injection.workloads.registry import make_workload

pytestmark = pytest.mark.usefixtures("compiled_quickly")

OWN = f"{momentum_training.__file__}:training"
PLAN = """
workload = "resnet18"
[options]
dataset = "digits"
width = 2
blocks = "1/1/1/1"
batch_size = 128
workers = 4
learning_rate = 0.03
epochs = 3
[faults]
experiments = 8
seed = 4
sites = ["basicblock_3_basic_0_conv1*"]
[faults.models]
RD = 1
INPUT = { weight = 2, values = "worst_case" }
[run]
exit = "exact"
[score]
"""
SCORE = """
detectors = ["history_bound", "gradient_norm", "nonfinite", "replay"]
window = 4
fault_free_seeds = 1
recovered = { rewind = 8 }
replay_every = 2
"""


def seen(outcome, stops, peaks):
    """An experiment with the steps from the fault to each detector's alarm, and its excesses."""
    found = {name: {"stop": stop, "warn": None, "tensor": None, "peaks": peaks} for name, stop in stops.items()}
    return ScoredExperiment(0, "RD", outcome, True, {"seen": found, "recovered": {}})


def test_shares_latencies_and_false_alarms_are_counts():
    beyond = [int(x < 0.5) for x in SWEPT]
    runs = {"golden 0": {"a": {"steps": 100, "stop": 0, "warn": 0, "beyond": beyond, "first": []}}}
    runs["seed 1"] = {"a": {"steps": 300, "stop": 2, "warn": 0, "beyond": [3] * len(SWEPT), "first": []}}
    experiments = [seen("SlowDegrade", {"a": after}, [2.0, 30.0]) for after in (0, 3, None)]
    board = Board("x", "y", ("a",), [*experiments, seen(MASKED, {"a": 1}, [])], 0, runs, {}, 5, 0.95)
    latent = board.of(["SlowDegrade"])
    assert board.detected("a", latent)[:3] == (2, 3, pytest.approx(2 / 3))
    assert board.latencies("a", latent) == [0, 3]
    assert board.false_alarms("a")[:2] == (2, 400) and board.fault_free_steps == 400
    false, caught = board.swept("a", latent)
    np.testing.assert_allclose(false, [(3 + (x < 0.5)) / 400 for x in SWEPT])
    np.testing.assert_allclose(caught, [float(x < 30) for x in SWEPT])
    assert board.slower("a") is None and board.larger("a") is None


def test_a_detector_that_looks_now_and_then_costs_its_share_of_a_step(monkeypatch):
    """All other steps are plain ones."""
    watching = {"all": UnconfirmedChecksum(), "sampled": SampledChecksum(every=4)}
    workload = make_workload("transformer", width=8, context=8, batch_size=4, workers=2, blocks=1)
    task = SimpleNamespace(plan=SimpleNamespace(workload=workload), data_dir=None)
    bench = SimpleNamespace(detectors=watching, memories={name: [np.int32(0)] for name in watching})
    monkeypatch.setattr(tasks, "_bench", lambda *_: bench)
    monkeypatch.setattr(tasks, "_in_turns", lambda *_: [2.0, 1.5])
    monkeypatch.setattr(tasks, "_bytes", lambda *_: None)
    found = tasks.detector_costs(task, "golden", 2)
    assert found["all"]["ratios"] == [2.0, 1.5] and found["sampled"]["ratios"] == [1.25, 1.125]


ROW = {"dr_dna": {"stop": 0}, "nonfinite": {"stop": None}}


def test_what_a_board_called_dr_dna_before_the_name_had_another_meaning_is_the_published_score(tmp_path):
    settings = {"detectors": ["dr_dna", "nonfinite"], "recovered": [["rewind", 1]], "recovering": ["dr_dna"]}
    with ScoreStore(tmp_path, write=True) as store:  # as it was written then
        for name, value in {"key": "a", "settings": settings}.items():
            store.put("about", name, value)
        store.put("experiment", "3", {"seen": ROW, "recovered": {"rewind": ROW}})
        store.put("fault_free", "golden 0", ROW)
        store.put("alarms", "dr_dna", {"experiments": {"3": ROW["dr_dna"]}})  # of somebody else
    now = {"dr_dna_published": ROW["dr_dna"], "nonfinite": ROW["nonfinite"]}
    with ScoreStore(tmp_path) as store:
        assert dict(store.all("experiment")) == {"3": {"seen": now, "recovered": {"rewind": now}}}
        assert dict(store.all("fault_free")) == {"golden 0": now} and store.done() == {3}
        known = store.get("about", "settings")
        assert known == settings | {"detectors": ["dr_dna_published", "nonfinite"], "recovering": ["dr_dna_published"]}
        assert store.get("alarms", "dr_dna") is not None
    with ScoreStore(tmp_path, write=True) as store, pytest.raises(InputError, match="made by other code"):
        store.begin("a", settings)


def test_what_a_board_of_today_calls_dr_dna_is_dr_dna(tmp_path):
    for _ in range(2):  # begun, and continued
        with ScoreStore(tmp_path, write=True) as store:
            store.begin("a", {"detectors": ["dr_dna", "dr_dna_published"]})
            store.put("fault_free", "golden 0", ROW)
            assert dict(store.all("fault_free")) == {"golden 0": ROW}
    with ScoreStore(tmp_path) as store:
        assert store.get("about", "names") == NAMES and dict(store.all("fault_free")) == {"golden 0": ROW}


def test_a_board_without_renamed_detectors_is_continued(tmp_path):
    with ScoreStore(tmp_path, write=True) as store:
        store.put("about", "key", "a")
        store.put("about", "settings", {"detectors": ["nonfinite"]})
        store.begin("a", {"detectors": ["nonfinite"]})


LOSSES = np.float32([1.5, 1.4, 1.3, 1.2, 1.1])


def judged(steps, **ended):
    """A row of a campaign that took `steps` steps."""
    curve = np.stack([LOSSES[:steps], np.zeros(steps, np.float32)], 1)
    row = dict.fromkeys(("audit_outcome", "first_nonfinite", "exactly_masked_after"))
    row |= {"old_bits": 1, "new_bits": 2, "exit": "end", "curve": curve.tobytes(), "recorded": steps} | ended
    return row | {"guessed": row["exit"] in ("conditions", "settled") and row["audit_outcome"] is None}


EARLY = {"exit": "conditions"}
AUDITED = {**EARLY, "audit_outcome": MASKED}
MASKED_AFTER = {"exit": "exact", "exactly_masked_after": 1}


@pytest.mark.parametrize(
    ("row", "right"),
    [
        (judged(5), {4}),  # to the end: as long as the window, whatever was judged
        (judged(3), ()),  # a curve that is too short
        (judged(2, **MASKED_AFTER), {2}),
        (judged(5, **MASKED_AFTER), {2}),  # noted, and followed on
        (judged(2, exit="non-finite", first_nonfinite=1), {2, 3, 4}),  # watched beyond it
        (judged(2, **EARLY), {3, 4}),  # nobody judged what came later
        (judged(2, exit="settled"), {3, 4}),
        (judged(5, **AUDITED), {4}),
        (judged(2, **AUDITED), ()),
    ],
)
def test_a_run_is_watched_for_as_long_as_its_verdict_lets_it_go_on(row, right):
    """A window of three steps after the fault: any other number of losses is another run's."""
    found = set()
    for steps in range(1, 6):
        try:
            require_same(3, {"old": 1, "new": 2, "loss": LOSSES[:steps].tolist()}, row, whole=4)
            found.add(steps)
        except Untrustworthy:
            pass
    assert found == set(right)


def test_a_watched_run_that_is_not_the_judged_one_is_not_scored():
    curve = np.float32([[1.5, 0.0], [np.nan, 0.0]])
    row = judged(2, curve=curve.tobytes())
    value = {"old": 1, "new": 2, "loss": [1.5, "NaN"]}
    require_same(3, value, row, whole=2)
    for wrong in ({"new": 3}, {"old": 3}, {"loss": [1.5000001, "NaN"]}, {"loss": [1.5, 1.5]}):
        with pytest.raises(Untrustworthy, match="experiment 3"):
            require_same(3, value | wrong, row, whole=2)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ('detectors = ["asd4"]', "score.detectors: 'asd4' is unknown; did you mean 'asd'?"),
        ('detectors = ["replicas"]', "score.detectors: 'replicas' is unknown"),
        ("window = 0", "score.window: 0; expected a whole number from 1 to 10000"),
        ("windows = 1", "score.windows: unknown key; did you mean 'window'?"),
        ("recovered = 3", "score.recovered: expected a table of recoveries and numbers, such as { rewind = 50 }"),
        ("recovered = { rewnd = 3 }", "score.recovered.rewnd: unknown key; did you mean 'rewind'?"),
        ('detectors = ["asd"]\nrecovering = ["history_bound"]', "score.recovering: 'history_bound' does not watch"),
        ("recovered = { rewind = -1 }", "score.recovered.rewind: -1; expected a whole number from 0"),
    ],
)
def test_a_wrong_table_gets_one_line(tmp_path, capsys, table, message):
    path = tmp_path / "plan.toml"
    path.write_text(PLAN + table + "\n")
    assert main(["score", str(path), "--out", str(tmp_path / "out")]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_by_default_all_detectors_watch_that_can(tmp_path):
    path = tmp_path / "plan.toml"
    path.write_text(PLAN)
    _, settings = read_settings(path)
    assert {"history_bound", "asd", "checksum", "dr_dna", "dr_dna_published", "replay"} <= set(settings.detectors)
    assert "replicas" not in settings.detectors


def test_epoch_checksum_looks_at_the_last_step_of_each_epoch(tmp_path):
    path = tmp_path / "plan.toml"
    path.write_text(PLAN + 'detectors = ["epoch_checksum"]\n')
    plan, settings = read_settings(path)
    program, steps = plan.workload.program(frozenset(), devices=1), plan.steps_per_epoch
    detector = chosen_detectors(settings, program)["epoch_checksum"]
    memory, due = detector.init(["a"]), []
    for number in range(3 * steps):
        memory, alarms = detector.update(memory, np.array([2.0]))
        due += [number] * int(alarms.level[0])
    assert due == [steps - 1, 2 * steps - 1, 3 * steps - 1] and detector.reported_every == steps


def test_a_recovery_that_the_training_has_not_is_refused_before_the_campaign(tmp_path):
    path = tmp_path / "plan.toml"
    path.write_text(f'workload = "{OWN}"\n[faults]\nexperiments = 8\n[score]\nrecovered = {{ inverse = 5 }}\n')
    with pytest.raises(InputError, match=r"score.recovered: recovery inverse needs an optimizer"):
        read_settings(path)
    path.write_text(path.read_text().replace("inverse = 5", "inverse = 0"))
    read_settings(path)


def test_what_the_environment_says_of_detectors_is_part_of_a_scoreboard(tmp_path, monkeypatch):
    """Wherever its jobs run; and what it switches off does not watch."""
    path = tmp_path / "plan.toml"
    path.write_text(PLAN)
    plain = read_settings(path)[1]
    monkeypatch.setenv("NPU_ASD_CONFIG", "enable:true,upper_thresh1:3,upper_thresh2:3")
    plan, settings = read_settings(path)
    assert settings.determining() != plain.determining()
    monkeypatch.delenv("NPU_ASD_CONFIG")  # as in the shell of another machine
    program = plan.workload.program(frozenset(), devices=1)
    assert chosen_detectors(settings, program)["asd"] != chosen_detectors(plain, program)["asd"]
    monkeypatch.setenv("NPU_ASD_CONFIG", "enable:false")
    off = "what a variable of the environment switches off"
    left_out = read_settings(path)[1]
    assert dict(left_out.cannot_watch)["asd"] == off and "asd" not in left_out.detectors
    path.write_text(PLAN + 'detectors = ["asd"]\n')
    with pytest.raises(InputError, match=f"score.detectors: asd watches {off}"):
        read_settings(path)


@pytest.mark.slow
def test_a_campaign_is_scored_and_goes_on_where_it_stopped(tmp_path, cache, capsys, monkeypatch):
    monkeypatch.setattr(driver, "PAIRS", 8)  # as many rounds as tell a detector from a second step
    path, out = tmp_path / "plan.toml", tmp_path / "out"
    path.write_text(PLAN.replace("experiments = 8", "experiments = 6") + SCORE)
    command = ["score", str(path), "--out", str(out), "--jobs", "1", "--cache", str(cache), "--json"]
    assert main(command) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["experiments"] == 6 and (out / "score.html").stat().st_size > 10_000
    rows = said["detectors"]
    assert set(rows) == {"history_bound", "gradient_norm", "nonfinite", "replay"}
    # Fault-free: the golden run and one other seed, and no step differs when it is executed again.
    assert {row["fault_free_steps"] for row in rows.values()} == {2 * 3 * 11}
    assert rows["replay"]["false_alarms"] == rows["history_bound"]["false_alarms"] == 0
    assert -0.5 < rows["history_bound"]["slower"][0] < 0.5

    with ScoreStore(out) as store:
        experiments = {int(name): value for name, value in store.all("experiment")}
    recovered = [run["rewind"]["history_bound"] for v in experiments.values() if (run := v["recovered"])["rewind"]]
    stopped = [v["seen"]["history_bound"]["stop"] for v in experiments.values()]
    assert len(recovered) == sum(stop is not None for stop in stopped) > 0
    soon = [run for v, run in zip((v for v in experiments.values() if v["recovered"]["rewind"]), recovered, strict=True)
            if v["seen"]["history_bound"]["stop"] <= 1]  # fmt: skip
    assert soon and all(run["golden_after"] is not None and run["outcome"] == MASKED for run in soon)
    # A checked step is seen to differ, every second one.
    for value in experiments.values():
        assert value["seen"]["replay"]["stop"] in (None, 0) and math.isfinite(value["loss"][0])

    with ScoreStore(out, write=True) as store:
        store.connection.execute("DELETE FROM rows WHERE kind = 'experiment' AND name IN ('2', '5')")
    assert main(command) == 0
    again = json.loads(capsys.readouterr().out)
    for name, row in again["detectors"].items():
        assert row | {"slower": 0, "memory": 0} == rows[name] | {"slower": 0, "memory": 0}

    assert main([*command[:-1], "--table", "markdown"]) == 0
    head, below, *printed = capsys.readouterr().out.splitlines()
    assert head.startswith("| detector |") and below.startswith("|---|") and len(printed) == len(rows)

    with ScoreStore(out, write=True) as store:
        store.connection.execute("UPDATE rows SET value = '{}' WHERE kind = 'experiment' AND name = '3'")
    assert main(command) == 2
    assert "damaged: experiment 3" in capsys.readouterr().err


@pytest.mark.slow
def test_a_permanent_fault_strikes_the_watched_and_the_recovered_run_as_often_as_the_judged_one(
    tmp_path, cache, capsys, monkeypatch
):
    monkeypatch.setattr(driver, "PAIRS", 1)  # what detectors cost is another test's
    path, out = tmp_path / "plan.toml", tmp_path / "out"
    plan = PLAN.replace("experiments = 8", 'experiments = 3\nschedule = "permanent"').replace("RD = 1\n", "")
    path.write_text(plan + SCORE.replace("seeds = 1", "seeds = 0"))  # false alarms are the other test's, too
    command = ["score", str(path), "--out", str(out), "--jobs", "1", "--cache", str(cache), "--json"]
    assert main(command) == 0  # else what was watched is not what was judged
    with ScoreStore(out) as store:
        recovered = [value["recovered"]["rewind"] for _, value in store.all("experiment")]
    runs = [run["history_bound"] for run in recovered if "history_bound" in run]
    assert len(recovered) == 3 and runs
    for run in runs:
        assert run["actions"] and run["golden_after"] is None  # a step executed again is struck again
