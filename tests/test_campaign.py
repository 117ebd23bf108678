"""Experiments, their store and their report: the same verdicts as replays, in a few steps, and nothing lost."""

# Above 400 lines: one campaign, which takes a minute to make, is looked at from all sides.

import collections
import csv
import dataclasses
import functools
import itertools
import json
import pathlib
import re
import sqlite3
import subprocess
import sys

import jax
import numpy as np
import pytest
from campaign_stores import run_inline
from whole import only_whole

from fault_injection.campaign.dispatcher import JobLost
from fault_injection.campaign.task import Ready, environment_of
from fault_injection.commands.main import main
from fault_injection.faults.fault_models import FAULT_MODELS
from fault_injection.faults.injection_file import read_injection, write_injection
from fault_injection.machine.errors import InputError
from fault_injection.machine.files import only_writer
from fault_injection.questions.outcomes import conditions, experiment
from fault_injection.questions.outcomes.conditions import CONDITIONS, Conditions, Rule
from fault_injection.questions.outcomes.experiment import Laboratory, run_experiment
from fault_injection.questions.outcomes.plan_file import parse_plan
from fault_injection.questions.outcomes.projection import Projection
from fault_injection.questions.outcomes.result import HORIZON
from fault_injection.questions.outcomes.sampling import draw_experiment, injection_of
from fault_injection.questions.outcomes.store import NAME, VERSION, Store
from fault_injection.questions.outcomes.tables import TABLES
from fault_injection.questions.outcomes.wanted import WantedOutcome
from fault_injection.runs.exits import EXACT, FirstNonFinite
from fault_injection.runs.follow import follow
from fault_injection.runs.golden_run import Golden
from fault_injection.runs.outcome import LOW_TEST, MASKED, OUTCOMES, UNDECIDED
from fault_injection.runs.records import Recorder, Run, cut, rows_of
from fault_injection.runs.replay_run import replay
from fault_injection.runs.steps import Address, addresses, numbered
from fault_injection.seam.leaves import Role
from fault_injection.seam.measure import Measure

pytestmark = pytest.mark.usefixtures("compiled_quickly")

PLAN = parse_plan("""
workload = "resnet18"
[options]
dataset = "digits"
width = 2
blocks = "1/1/1/1"
learning_rate = 0.03
batch_size = 128
workers = 4
epochs = 4
[faults]
experiments = 16
epochs = [1, 2]
sites = ["basicblock_3_basic_0_conv1*", "conv1_grad_in", "fc"]
seed = 3
[faults.models]
RD = 2
INPUT = 1
RD_CORRECT = 1
RBFLIP = 1
[run]
exit = "full"
""")


@pytest.fixture(scope="module")
def laboratory(cache):
    golden = Golden(PLAN.workload, PLAN.workload.program(frozenset(PLAN.sites)), cache)
    golden.make(PLAN.workload.epochs)
    return Laboratory(PLAN, golden, Conditions(), golden.folder / "walks" / "tests")


@pytest.fixture(scope="module")
def results(laboratory):
    return [run_experiment(laboratory, number) for number in range(PLAN.experiments)]


def with_plan(laboratory, **changes):
    plan = dataclasses.replace(PLAN, **changes)
    return Laboratory(plan, laboratory.golden, Conditions(), laboratory.walks)


@pytest.fixture(scope="module")
def folder(tmp_path_factory, laboratory, results):
    """A campaign's folder with all results in it."""
    folder = tmp_path_factory.mktemp("campaign")
    with Store(folder, write=True) as store:
        known = {"conditions": dataclasses.asdict(Conditions()), "jobs": 1, "plan_file": "my plan.toml"}
        store.begin("a plan's key", PLAN, **known, measure=dataclasses.asdict(laboratory.golden.program.measure()))
        store.event("started")
        for one in results:
            store.add(one, environment_of(laboratory.golden), "a plan's key")
    return folder


def assert_same_verdict(ours, replayed, step):
    """An experiment that was followed to the end, and the replay of its injection."""
    if not ours.exactly_masked_after:  # a replay ends there, a full experiment does not
        assert (ours.outcome, ours.first_nonfinite) == (replayed.outcome.outcome, replayed.outcome.first_nonfinite)
    metric = np.frombuffer(ours.curve, "<f4").reshape(-1, 2)[:, 1]
    np.testing.assert_array_equal(metric, replayed.faulty.column("metric")[step:])
    assert (ours.old_bits, ours.new_bits) == (int(replayed.struck.old[0]), int(replayed.struck.new[0]))
    assert ours.operand_changed == replayed.struck.operand_changed
    if replayed.outcome.worse and not ours.first_nonfinite:
        assert ours.worse_train == pytest.approx(replayed.outcome.worse["train"], abs=1e-9)


def exported(plan, number, folder):
    """An experiment's injection, written to a file and read from it, as `export` does without running anything."""
    file = folder / f"experiment_{number}.csv"
    write_injection(file, injection_of(plan, number))
    return read_injection(file)


@pytest.mark.parametrize("number", [0, 5, 11])
def test_an_experiment_comes_to_the_verdict_of_its_replay(laboratory, results, tmp_path, number):
    injection = exported(PLAN, number, tmp_path)
    assert_same_verdict(results[number], replay(injection, laboratory.golden), injection.step)


@pytest.fixture(scope="module")
def projected(laboratory, results):
    """A run whose statistics alone differ.  Which one does depends on the processor; a large forward fault may."""
    large = (number for number in range(PLAN.experiments, 400) if _large_and_forward(number))
    more = (run_experiment(laboratory, number) for number in large)
    return next(one for one in itertools.chain(results, more) if one.early_rule == Rule.VARIANCE)


def _large_and_forward(number):
    drawn = draw_experiment(PLAN, number)
    return drawn.model.name == "RD" and drawn.site == "basicblock_3_basic_0_conv1"


@pytest.mark.parametrize("said", [MASKED, LOW_TEST])
def test_an_early_verdict_that_is_not_masked_is_followed_if_a_width_is_wanted(laboratory, projected, monkeypatch, said):
    """A projected run of which the early verdict says either; what it comes to is known from `full` mode."""
    early_verdict = experiment._early_verdict
    saying = lambda *known: dataclasses.replace(early_verdict(*known), outcome=said)  # noqa: E731
    monkeypatch.setattr(experiment, "_early_verdict", saying)
    monkeypatch.setattr(experiment, "draw_experiment", lambda plan, number, stratum=None: draw_experiment(PLAN, number))
    one = projected
    for wanted in (None, WantedOutcome(("not masked",), 0.1)):
        assert not draw_experiment(dataclasses.replace(PLAN, audit=0.0), one.number).audited
        lab = with_plan(laboratory, exit=CONDITIONS, audit=0.0, wanted=wanted)
        found = run_experiment(lab, one.number, stratum=0)
        assert (found.exit, found.outcome, found.early_rule) == (CONDITIONS, said, Rule.VARIANCE)
        followed = wanted is not None and said != MASKED
        assert found.audit_outcome == (one.outcome if followed else None)
        assert found.audit_steps == (one.steps - found.steps if followed else 0)


EVERY_MODEL = """
workload = "{workload}"
[faults]
experiments = {experiments}
seed = 2
[faults.models]
{models}
RD = {{ values = "histogram", histogram = "{histogram}" }}
[run]
exit = "full"
"""


# Of those that differ in a number alone, one.
MODELS = [name for name in FAULT_MODELS if not name.startswith("FLIPS_") or name == "FLIPS_4"]


def test_experiments_of_every_fault_model_are_their_exported_injections(repository, tmp_path):
    """Copies of other elements, inverted bits, values: all are written down before anything has run."""
    (tmp_path / "histogram.csv").write_text("flip,00800000,1\nset,7fc00000,1\n")
    text = EVERY_MODEL.format(
        workload=f"{repository / 'tests' / 'toy.py'}:linear",
        experiments=100,
        models="\n".join(f"{name} = 1" for name in MODELS if name != "RD"),
        histogram=tmp_path / "histogram.csv",
    )
    plan = parse_plan(text, tmp_path / "plan.toml")
    golden = Golden(plan.workload, plan.workload.program(), tmp_path / "cache")
    golden.make(plan.workload.epochs)
    lab = Laboratory(plan, golden, Conditions(), tmp_path / "walks")
    injections = [exported(plan, number, tmp_path) for number in range(plan.experiments)]
    assert {injection.fmodel for injection in injections} == set(MODELS)
    assert any(new.source is not None for injection in injections for new in injection.bits)
    assert any(new.source is None and new.keep for injection in injections for new in injection.bits)
    verdicts = set()
    for number, injection in enumerate(injections):
        ours = run_experiment(lab, number)
        verdicts.add(ours.outcome)
        assert_same_verdict(ours, replay(injection, golden), injection.step)
    assert len(verdicts) > 1


@only_whole  # test_state_campaigns.py and test_premises.py compare exact ones too
@pytest.mark.slow
def test_exact_experiments_come_to_the_verdicts_of_full_ones_in_fewer_steps(laboratory, results):
    exact = with_plan(laboratory, exit="exact")
    ours = [run_experiment(exact, number) for number in range(PLAN.experiments)]
    assert [r.outcome for r in ours] == [r.outcome for r in results]
    proved = [r for r in ours if r.exit == EXACT]
    assert proved and all(r.outcome == MASKED and r.steps == r.exactly_masked_after + 1 for r in proved)
    assert sum(r.steps for r in ours) < sum(r.steps for r in results)


def test_conditions_end_most_of_the_others_and_audits_go_on(laboratory, results):
    lab, audited = (
        with_plan(laboratory, exit="conditions", audit=audit, horizon=horizon)
        for audit, horizon in ((0.0, None), (1.0, 3))  # an audit runs to the end, whatever the horizon
    )
    ours = [run_experiment(lab, number) for number in range(PLAN.experiments)]
    early = [r for r in ours if r.exit == CONDITIONS]
    assert early and all((r.outcome, r.steps) == (r.early_outcome, r.early_after + 1) for r in early)
    for r in early[:3]:
        again = run_experiment(audited, r.number)
        assert (again.exit, again.outcome, again.steps) == (r.exit, r.outcome, r.steps)
        assert results[r.number].early_rule == r.early_rule  # which a full run notes too
        assert again.audit_outcome == results[r.number].outcome
        assert again.steps + again.audit_steps == results[r.number].steps


def test_at_the_horizon_a_run_is_undecided(laboratory, results):
    lab = with_plan(laboratory, exit="exact", horizon=3)
    number = next(r.number for r in results if r.first_nonfinite is None and not r.exactly_masked_after)
    cut = run_experiment(lab, number)
    assert (cut.outcome, cut.exit, cut.steps) == (UNDECIDED, HORIZON, 4)


BIG, NEVER = 1e9, None
Seen = functools.partial(conditions.Seen, updates=2)


@pytest.mark.parametrize(
    ("steps", "seen", "rule"),
    [
        (0, Seen(1.5, 1.05), Rule.AT_ONCE),
        (0, Seen(1.51, 1.0), NEVER),
        (0, Seen(1.0, 1.06), NEVER),
        (1, Seen(1.0, 1.0), NEVER),  # it would have had its verdict a step before
        (2, Seen(2.0, 2.0, 0.05), Rule.WITHIN),
        (9, Seen(2.0, 2.0, 0.05), Rule.WITHIN),  # what counts are updates
        (2, Seen(2.0, 2.0, 0.05, updates=None), NEVER),  # the difference has not been read
        (2, Seen(BIG, 1.0, 0.0, updates=1), NEVER),
        (2, Seen(2.0, 2.0, 0.06), NEVER),
        (2, Seen(BIG, 1.0, 0.001), Rule.LOSS_GAP),
        (2, Seen(BIG, 1.0, 0.0011), NEVER),
        (2, Seen(BIG, BIG, 0.0), NEVER),
        (2, Seen(2.0, BIG, 0.05), Rule.VARIANCE),
        (2, Seen(2.0, BIG, 0.06), NEVER),
        *((steps, Seen(1.0, 1.0, unknown=True), NEVER) for steps in (0, 2)),
        (3, Seen(1.0, 1.0, updates=3), NEVER),
        *((steps, Seen(*seen), NEVER) for steps in (0, 2) for seen in ((np.inf, 1.0), (np.nan, 1.0), (1.0, np.inf))),
        (0, Seen(1.0, np.nan), NEVER),
        *((steps, Seen(1.0, 1.0, finite=False), NEVER) for steps in (0, 2)),
        *((steps, Seen(1.0, 1.0, parameters=value), NEVER) for steps in (0, 2) for value in (BIG, np.inf, np.nan)),
        (0, Seen(1.0, 1.0, parameters=1.06), NEVER),
        (2, Seen(1.0, 1.0, parameters=1.06), Rule.WITHIN),
        (2, Seen(1.0, 1.0, np.nan), NEVER),
        (2, Seen(BIG, 1.0, np.nan), NEVER),
    ],
)
def test_the_rules_of_an_early_verdict_at_both_edges(steps, seen, rule):
    if seen.updates is not None and steps < seen.updates:
        seen = dataclasses.replace(seen, updates=steps)
    assert Conditions().rule(steps, seen, unread=True) == rule
    # A fault in the state need not make anything large; and steps may read what is not known to be unread.
    assert Conditions().rule(steps, seen, premises=False, unread=True) is NEVER
    assert Conditions().rule(steps, seen) == (NEVER if rule == Rule.VARIANCE else rule)


def test_statistics_that_alone_differ_are_projected_however_small():
    def rule(steps, seen):
        return Conditions().rule(steps, dataclasses.replace(seen, apart=True), premises=False)

    assert [rule(steps, Seen(1.0, variance)) for steps in (0, 1, 2) for variance in (0.1, BIG, np.nan)] == [
        *[NEVER] * 6,
        *[Rule.VARIANCE] * 3,
    ]
    assert rule(2, Seen(1.0, 1.0, 0.06)) is NEVER


def test_what_is_near_a_threshold():
    near = Conditions().near
    assert not near(Rule.AT_ONCE, Seen(1.05)) and not near(Rule.VARIANCE, Seen(1.9, BIG))
    assert (
        near(Rule.WITHIN, Seen(1.51, 1.0)) and near(Rule.WITHIN, Seen(1.0, 1.06)) and not near(Rule.WITHIN, Seen(1.5))
    )
    assert near(Rule.LOSS_GAP, Seen(BIG, 1.0, 0.0006)) and not near(Rule.LOSS_GAP, Seen(BIG, 1.0, 0.0005))


@pytest.mark.parametrize(
    ("factor", "apart"),
    [(4.0, False), (1e35, False), (-1.0, True), (np.inf, True)],
)
def test_a_projected_run_has_the_evaluations_of_the_run_itself(laboratory, factor, apart):
    """The running variances of one layer are multiplied after a step, and the run is followed: it trains as before."""
    golden, program, at = laboratory.golden, laboratory.golden.program, Address(1, 3)
    state = golden.fetch_state_after(at)
    leaves, structure = jax.tree.flatten(jax.device_get(state))
    struck = program.state.places(Role.VARIANCE)[2]
    leaves[struck] = leaves[struck] * np.float32(factor)
    state = program.place(jax.tree.unflatten(structure, leaves))

    def since(address):
        return numbered(address, program.steps_per_epoch) - numbered(at, program.steps_per_epoch)

    projection = Projection(golden, at, since, golden.fetch_record, golden.fetch_state_after, "loss")
    recorder = Recorder(Run(1, (), 0), rows_of(golden.fetch_record(1), at.step + 1))
    last = Address(PLAN.workload.epochs - 1, program.steps_per_epoch - 1)
    steps = addresses(Address(at.epoch, at.step + 1), last, program.steps_per_epoch)
    nonfinite = FirstNonFinite(since, "loss")
    follow(program, state, steps, observers=[recorder, projection, nonfinite])
    first = Run(1, (cut(recorder.run.epochs[0], at.step + 3),), 0)
    projected, not_finite = projection.project(first, last, apart)
    assert not_finite == nonfinite.first
    assert projected.ended == recorder.run.ended
    for name in ("train_loss", "train_metric", "valid_metric"):
        np.testing.assert_array_equal(projected.epoch_column(name), recorder.run.epoch_column(name))
    np.testing.assert_allclose(projected.epoch_column("valid_loss"), recorder.run.epoch_column("valid_loss"), rtol=1e-5)
    golden_loss = [float(golden.fetch_record(epoch)["valid_loss"]) for epoch in range(1, 1 + projected.ended)]
    assert projected.epoch_column("valid_loss")[0] != golden_loss[0]


def test_a_run_is_not_projected_where_its_statistics_do_not_shrink_alike(laboratory):
    golden, at = laboratory.golden, Address(1, 3)
    projection = Projection(
        golden, at, lambda a: a.step - at.step, golden.fetch_record, golden.fetch_state_after, "loss"
    )
    for step, factor in ((4, 1e9), (5, 1e9)):  # what is struck does not shrink at all
        state = golden.fetch_state_after(Address(1, step))
        leaves, structure = jax.tree.flatten(jax.device_get(state))
        for i, leaf in enumerate(golden.program.state.leaves):
            if leaf.role == Role.VARIANCE:
                leaves[i] = leaves[i] * np.float32(factor)
        projection.after_step(Address(1, step), jax.tree.unflatten(structure, leaves), None)
    assert projection.project(Run(1, (), 0), Address(1, 10)) is None


def test_a_result_is_kept_once(folder, laboratory, results):
    with Store(folder, write=True) as store:
        store.add(dataclasses.replace(results[5], outcome=UNDECIDED), environment_of(laboratory.golden), "a plan's key")
        assert store.done() == set(range(PLAN.experiments))
        row = dict(store.query("SELECT * FROM experiments WHERE number = 5")[0])
        assert not store.query("SELECT * FROM alterations") and not store.query("SELECT * FROM comparisons")
    apart = {"alterations": (), "comparison": None}  # rows of their own tables
    assert {name: row[name] for name in row if hasattr(results[5], name)} | apart == dataclasses.asdict(results[5])


def test_another_plan_is_refused_by_what_differs(folder):
    other = dataclasses.replace(PLAN, seed=4)
    with Store(folder, write=True) as store:
        with pytest.raises(InputError, match=r"another plan \(seed differ\); choose another --out"):
            store.begin("another key", other)
        with pytest.raises(InputError, match="whose bits are others"):
            store.begin("another key", PLAN)


MEASURE = Measure("accuracy", "higher", 0.1, 0.02)


def test_an_experiment_that_kills_its_process_costs_no_other(tmp_path, monkeypatch, results):
    about = {"conditions": dataclasses.asdict(Conditions()), "measure": dataclasses.asdict(MEASURE)}
    ready = Ready("a plan's key", "a golden run's key", about, tmp_path / "walks")
    with pytest.raises(JobLost, match=r"1 experiments lost their process 5 times and have no verdict: experiment 3;"):
        run_inline(tmp_path / "out", PLAN, monkeypatch, results, lambda task: ready, {3})
    everything = set(range(PLAN.experiments))
    with Store(tmp_path / "out") as store:
        assert store.done() == everything - {3}
    run_inline(tmp_path / "out", PLAN, monkeypatch, results, lambda task: ready)
    with Store(tmp_path / "out") as store:
        assert store.done() == everything


def test_a_campaign_that_cannot_begin_leaves_nothing(tmp_path, monkeypatch, results):
    def make_golden(task):
        raise InputError("no such data")

    with pytest.raises(InputError, match="no such data"):
        run_inline(tmp_path / "out", PLAN, monkeypatch, results, make_golden)
    assert not list(tmp_path.iterdir())


def damaged(tmp_path, folder):
    copy = tmp_path / NAME
    copy.write_bytes((folder / NAME).read_bytes())
    return copy


def test_a_folder_without_a_campaign(tmp_path):
    with pytest.raises(InputError, match="no campaign here"):
        Store(tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("version", [VERSION - 1, VERSION + 1])
def test_another_schema_is_named_and_left_alone(tmp_path, folder, version):
    path = damaged(tmp_path, folder)
    with sqlite3.connect(path) as connection:
        connection.execute(f"PRAGMA user_version = {version}")
    connection.close()
    before = path.read_bytes()
    with pytest.raises(InputError, match=f"schema {version}, expected {VERSION}"):
        Store(tmp_path, write=True)
    assert path.read_bytes() == before


def test_a_foreign_file_is_named_and_left_alone(tmp_path):
    for content, message in ((b"model,resnet18\n" * 100, "file is not a database"), (None, "another SQLite file")):
        path = tmp_path / NAME
        path.unlink(missing_ok=True)
        if content is None:
            with sqlite3.connect(path) as connection:
                connection.execute("CREATE TABLE theirs (x)")
            connection.close()
        else:
            path.write_bytes(content)
        before = path.read_bytes()
        with pytest.raises(InputError, match=message):
            Store(tmp_path, write=True)
        assert path.read_bytes() == before


@pytest.mark.parametrize("share", [0.3, 0.9])
def test_a_truncated_file_is_named_and_left_alone(tmp_path, folder, share):
    path = damaged(tmp_path, folder)
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * share)])
    before = path.read_bytes()
    with pytest.raises(InputError, match=r"malformed|damaged"):
        Store(tmp_path, write=True)
    assert path.read_bytes() == before


FILL = """
import pathlib, resource, signal, sys
from fault_injection.questions.outcomes.store import NAME, Store
from fault_injection.commands.main import main
from fault_injection.faults.fault_models import FAULT_MODELS
from fault_injection.faults.injection_file import read_injection, write_injection
from fault_injection.machine.errors import InputError
from fault_injection.machine.files import only_writer
folder = pathlib.Path(sys.argv[1])
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
store = Store(folder, write=True)
room = (folder / NAME).stat().st_size + 8192
resource.setrlimit(resource.RLIMIT_FSIZE, (room, room))
try:
    for i in range(1000):
        store.event("x" * 300)
except InputError as error:
    print(error)
"""


def test_a_full_disk_is_one_line_and_damages_nothing(tmp_path, folder, repository):
    damaged(tmp_path, folder)
    done = subprocess.run(
        [sys.executable, "-c", FILL, tmp_path], cwd=repository, capture_output=True, text=True, check=True
    )
    assert re.search(r"campaign.sqlite: (database or disk is full|disk I/O error)", done.stdout), done
    with Store(tmp_path) as store:
        assert store.done() == set(range(PLAN.experiments))


KILLED = """
import os, pathlib, signal, sqlite3, sys
from fault_injection.questions.outcomes.store import NAME
connection = sqlite3.connect(pathlib.Path(sys.argv[1]) / NAME, isolation_level=None)
connection.execute("PRAGMA cache_size = 1")
connection.execute("BEGIN IMMEDIATE")
connection.execute("CREATE TABLE half (what)")
for i in range(1000):
    connection.execute("INSERT INTO half VALUES (?)", ("x" * 1000,))
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("begun", [True, False])
def test_what_a_killed_writer_left_half_done_is_taken_back(tmp_path, folder, repository, begun):
    if begun:
        damaged(tmp_path, folder)
    subprocess.run([sys.executable, "-c", KILLED, tmp_path], cwd=repository, check=False)
    assert (tmp_path / NAME).stat().st_size > 10**5 and (tmp_path / f"{NAME}-journal").exists()
    with Store(tmp_path, write=not begun) as store:
        assert store.done() == (set(range(PLAN.experiments)) if begun else set())
        assert not store.query("SELECT * FROM sqlite_master WHERE name = 'half'")


REFUSED = [
    (["--check"], "expected an injection file, or the folder of a campaign and --id N"),
    (["here"], "{here}: is a folder: of a campaign, say which experiment with --id N"),
    (["here", "--id", "3", "--check"], "--check belongs to an injection file"),
    (["here", "--id", "3", "--checkpoints", "own"], "--checkpoints belongs to an injection file"),
    (["--file", "inj.csv", "--id", "3"], "--id belongs to the folder of a campaign"),
    (["here", "--id", "16"], "experiment 16 is not of this campaign; expected 0 to 15"),
]


@pytest.mark.parametrize(("arguments", "message"), REFUSED)
def test_what_cannot_be_repeated_is_one_line(folder, capsys, monkeypatch, arguments, message):
    monkeypatch.setattr("fault_injection.machine.environment.prepare", lambda *_, **__: {})  # of a process of its own
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert main(["replay", *(str(folder) if word == "here" else word for word in arguments)]) == 2
    assert capsys.readouterr().err == message.format(here=folder) + "\n"
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


# ---- What is said of a campaign, and what is taken from it ----------------------------------


def told(capsys, *arguments):
    """What a command prints on standard output."""
    code = main(list(map(str, arguments)))
    out, err = capsys.readouterr()
    assert code == 0, err
    return out


def told_json(capsys, *arguments):
    """The one line of JSON that a command prints."""
    out = told(capsys, *arguments, "--json")
    assert out.count("\n") == 1
    return json.loads(out)


def test_the_status_of_a_campaign(folder, results, capsys):
    (line,) = told(capsys, "status", folder).splitlines()
    assert line.startswith(f"Campaign on {PLAN.workload.title}: 16 of 16 experiments, not masked ")
    assert line.endswith(f"It is complete. Its report: python -m fault_injection report {folder}")
    known = told_json(capsys, "status", folder)
    assert {name: known[name] for name in ("folder", "experiments", "done", "left", "running", "resumable")} == {
        "folder": str(folder),
        "experiments": 16,
        "done": 16,
        "left": 0,
        "running": False,
        "resumable": False,
    }
    counted = collections.Counter(r.outcome for r in results)
    assert {name: rate["found"] for name, rate in known["outcomes"].items()} == counted
    for name, rate in known["outcomes"].items():
        assert (rate["total"] == 16 and rate["low"] < counted[name] / 16 < rate["high"]) or rate["share"] in (0, 1)


def test_the_status_says_how_to_go_on(tmp_path, laboratory, results, capsys):
    with Store(tmp_path / "out", write=True) as store:
        assert main(["status", str(tmp_path / "out")]) == 0
        assert "It has not begun" in capsys.readouterr().out
        store.begin("a plan's key", PLAN, conditions={}, jobs=1, plan_file="my.toml")
        for one in results[:5]:
            store.add(one, environment_of(laboratory.golden), "a plan's key")
    last = told(capsys, "status", tmp_path / "out").splitlines()[-1]
    assert last.endswith(f"python -m fault_injection campaign my.toml --out {tmp_path / 'out'}")
    known = told_json(capsys, "status", tmp_path / "out")
    assert (known["done"], known["left"], known["resumable"]) == (5, 11, True)
    with only_writer(tmp_path / "out" / "lock", lambda: None):
        known = told_json(capsys, "status", tmp_path / "out")
        assert (known["running"], known["resumable"]) == (True, False)


def test_a_report_is_announced_in_one_line(folder, capsys):
    known = told_json(capsys, "report", folder)
    assert known == {"report": str(folder / "report.html"), **told_json(capsys, "status", folder)}
    assert (folder / "report.html").stat().st_size > 1000


def test_the_experiments_of_an_outcome_are_exported(folder, results, tmp_path, capsys):
    masked = [r.number for r in results if r.outcome == MASKED]
    out = told(capsys, "export", folder, "--outcome", MASKED, "--out", tmp_path)
    files = [tmp_path / f"experiment_{number}.csv" for number in masked]
    assert masked and out.splitlines() == list(map(str, files))
    for number, file in zip(masked, files, strict=True):
        assert read_injection(file) == injection_of(PLAN, number)
    missing = next(outcome for outcome in OUTCOMES if outcome not in {r.outcome for r in results})
    assert main(["export", str(folder), "--outcome", missing, "--out", str(tmp_path / "none")]) == 2
    assert f"no experiment of this campaign is {missing}" in capsys.readouterr().err
    assert main(["export", str(folder), "--id", "1", "--format", "csv"]) == 2
    assert capsys.readouterr().err.count("\n") == 1 and not (tmp_path / "none").exists()


@pytest.mark.parametrize("asked", [["--format", "csv"], []])
def test_the_tables_are_exported_as_csv(folder, results, tmp_path, capsys, asked):
    out = told(capsys, "export", folder, "--out", tmp_path, *asked)
    assert {pathlib.Path(line).name for line in out.splitlines()} == {f"{name}.csv" for name in (*TABLES, "rates")}
    with (tmp_path / "experiments.csv").open(newline="") as file:
        rows = {int(row["number"]): row for row in csv.DictReader(file)}
    assert rows.keys() == set(range(PLAN.experiments))
    for r in results:
        row = rows[r.number]
        assert (row["outcome"], row["rule"], int(row["steps"])) == (r.outcome, r.rule, r.steps)
        assert row["bit"] == ("" if r.bit is None else str(r.bit))
        curve = np.frombuffer(r.curve, "<f4").reshape(-1, 2)
        for name, column in zip(("loss", "metric"), curve.T, strict=True):
            np.testing.assert_array_equal(np.float32(json.loads(row[name])), column)


def test_a_folder_without_a_campaign_has_no_status(tmp_path, capsys):
    for command in ("status", "report", "export"):
        assert main([command, str(tmp_path)]) == 2
        assert "no campaign here" in capsys.readouterr().err


def test_an_injection_file_in_the_place_of_a_plan_gets_the_right_command(tmp_path, capsys):
    file = tmp_path / "mine.csv"
    write_injection(file, injection_of(PLAN, 0))
    assert main(["campaign", str(file), "--out", str(tmp_path / "out")]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1 and f"python -m fault_injection replay {file}" in err
    assert not (tmp_path / "out").exists()
