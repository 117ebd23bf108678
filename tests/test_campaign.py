"""Experiments, their store and their report: the same verdicts as replays, in a few steps, and nothing lost."""

import concurrent.futures
import contextlib
import dataclasses
import re
import sqlite3
import subprocess
import sys

import numpy as np
import pytest
from fault_injection.training.session import Session

from fault_injection.campaign import jobs
from fault_injection.campaign.conditions import Conditions, Seen
from fault_injection.campaign.driver import JobLost, campaign
from fault_injection.campaign.executors import Slot
from fault_injection.campaign.experiment import CONDITIONS, EXACT, HORIZON, Laboratory
from fault_injection.campaign.jobs import Ready, Task, described
from fault_injection.campaign.plan import parse_plan
from fault_injection.campaign.sampling import choose, draw
from fault_injection.campaign.store import NAME, VERSION, Store
from fault_injection.commands.main import main
from fault_injection.machine.errors import InputError
from fault_injection.runs.golden_run import Golden
from fault_injection.runs.outcome import MASKED, UNDECIDED
from fault_injection.runs.replay_run import replay

PLAN = parse_plan("""
workload = "resnet18"
[options]
dataset = "digits"
width = 2
batch_size = 128
workers = 4
epochs = 4
[faults]
experiments = 16
epochs = [1, 2]
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
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def laboratory(cache):
    session = Session(PLAN.workload)
    golden = Golden(session, cache)
    golden.ensure(PLAN.workload.epochs)
    return Laboratory(PLAN, session, golden, Conditions(), golden.folder / "walks" / "tests")


@pytest.fixture(scope="module")
def results(laboratory):
    return [laboratory.run(number) for number in range(PLAN.experiments)]


def with_plan(laboratory, **changes):
    plan = dataclasses.replace(PLAN, **changes)
    return Laboratory(plan, laboratory.session, laboratory.golden, Conditions(), laboratory.walks)


@pytest.fixture(scope="module")
def folder(tmp_path_factory, laboratory, results):
    """A campaign's folder with all results in it."""
    folder = tmp_path_factory.mktemp("campaign")
    with Store(folder, write=True) as store:
        store.begin("a plan's key", PLAN, conditions=dataclasses.asdict(Conditions()), jobs=1)
        store.event("started")
        store.add(results, described(laboratory.session), "a plan's key")
    return folder


@pytest.mark.parametrize("number", [0, 5, 11])
def test_an_experiment_comes_to_the_verdict_of_its_replay(laboratory, results, cache, tmp_path, number):
    choice = choose(PLAN, draw(PLAN, number))
    _, report = laboratory.strike(choice)
    replayed = replay(choice.injection(PLAN, report.struck.new), "experiment", tmp_path, cache=cache)
    ours = results[number]
    if not ours.exactly_masked_after:  # a replay ends there, a full experiment does not
        assert (ours.outcome, ours.first_nonfinite) == (replayed.outcome.outcome, replayed.outcome.first_nonfinite)
    accuracy = np.frombuffer(ours.curve, "<f4").reshape(-1, 2)[:, 1]
    theirs = replayed.faulty.column("accuracy")[choice.experiment.step :]
    assert (accuracy == theirs).all()
    if replayed.outcome.worse and not ours.first_nonfinite:
        assert ours.worse_train == pytest.approx(replayed.outcome.worse["train"], abs=1e-9)


def test_exact_experiments_come_to_the_verdicts_of_full_ones_in_fewer_steps(laboratory, results):
    exact = with_plan(laboratory, exit="exact")
    ours = [exact.run(number) for number in range(PLAN.experiments)]
    assert [r.outcome for r in ours] == [r.outcome for r in results]
    proved = [r for r in ours if r.exit == EXACT]
    assert proved and all(r.outcome == MASKED and r.steps == r.exactly_masked_after + 1 for r in proved)
    assert sum(r.steps for r in ours) < sum(r.steps for r in results)


def test_conditions_end_most_of_the_others_and_audits_go_on(laboratory, results):
    lab, audited = (
        with_plan(laboratory, exit="conditions", audit=audit, horizon=horizon)
        for audit, horizon in ((0.0, None), (1.0, 3))  # an audit runs to the end, whatever the horizon
    )
    ours = [lab.run(number) for number in range(PLAN.experiments)]
    early = [r for r in ours if r.exit == CONDITIONS]
    assert early and all(r.outcome == MASKED and r.steps == Conditions().steps + 1 for r in early)
    for r in early[:3]:
        again = audited.run(r.number)
        assert (again.exit, again.outcome, again.steps) == (r.exit, r.outcome, r.steps)
        assert again.audit_outcome == results[r.number].outcome
        assert again.steps + again.audit_steps == results[r.number].steps


def test_at_the_horizon_a_run_is_undecided(laboratory, results):
    lab = with_plan(laboratory, exit="exact", horizon=3)
    number = next(r.number for r in results if r.first_nonfinite is None and not r.exactly_masked_after)
    cut = lab.run(number)
    assert (cut.outcome, cut.exit, cut.steps) == (UNDECIDED, HORIZON, 4)


def test_what_left_the_envelope_does_not_come_back():
    limits = Conditions()
    assert Seen(1.0, 1.0, 0.0).hold(limits)
    for left in (Seen(history=9.0), Seen(variance=np.inf), Seen(loss_gap=1.0), Seen(history=np.nan)):
        assert not left.hold(limits)


def test_a_result_is_kept_once(folder, laboratory, results):
    with Store(folder, write=True) as store:
        assert store.add(results[:3], described(laboratory.session), "a plan's key") == 0
        assert store.done() == set(range(PLAN.experiments))
        row = dict(store.query("SELECT * FROM experiments WHERE number = 5")[0])
    assert {name: row[name] for name in row if hasattr(results[5], name)} == dataclasses.asdict(results[5])


def test_another_plan_is_refused_by_what_differs(folder):
    other = dataclasses.replace(PLAN, seed=4)
    with Store(folder, write=True) as store:
        with pytest.raises(InputError, match=r"another plan \(seed differ\); choose another --out"):
            store.begin("another key", other)
        with pytest.raises(InputError, match="whose bits are others"):
            store.begin("another key", PLAN)


class Inline(concurrent.futures.Executor):
    """Runs what it is given in this process."""

    def submit(self, function, /, *arguments):
        future = concurrent.futures.Future()
        try:
            future.set_result(function(*arguments))
        except Exception as error:
            future.set_exception(error)
        return future


def run_inline(out, monkeypatch, results, make_golden, fails):
    """A campaign whose experiments' results are there already, but for those over which a process dies."""

    def experiment(task, golden_key, number):
        if number in fails:
            raise concurrent.futures.BrokenExecutor
        return results[number], {"host": "here"}

    monkeypatch.setattr(jobs, "make_golden", make_golden)
    monkeypatch.setattr(jobs, "walk", lambda *arguments: (0, 0.0))
    monkeypatch.setattr(jobs, "experiment", experiment)
    slot = Slot(Inline, lambda: 1, (concurrent.futures.BrokenExecutor,), Inline())
    campaign(Task(PLAN), out, contextlib.nullcontext([slot]))


def test_an_experiment_that_kills_its_process_costs_no_other(tmp_path, monkeypatch, results):
    ready = Ready("a plan's key", "a golden run's key", tmp_path / "walks", Conditions())
    with pytest.raises(JobLost, match=r"1 experiments lost their process 5 times and have no verdict: experiment 3;"):
        run_inline(tmp_path / "out", monkeypatch, results, lambda task: ready, {3})
    everything = set(range(PLAN.experiments))
    with Store(tmp_path / "out") as store:
        assert store.done() == everything - {3}
    run_inline(tmp_path / "out", monkeypatch, results, lambda task: ready, set())
    with Store(tmp_path / "out") as store:
        assert store.done() == everything


def test_a_campaign_that_cannot_begin_leaves_nothing(tmp_path, monkeypatch, results):
    def make_golden(task):
        raise InputError("no such data")

    with pytest.raises(InputError, match="no such data"):
        run_inline(tmp_path / "out", monkeypatch, results, make_golden, set())
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
from fault_injection.campaign.store import NAME, Store
from fault_injection.commands.main import main
from fault_injection.machine.errors import InputError
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
from fault_injection.campaign.store import NAME
connection = sqlite3.connect(pathlib.Path(sys.argv[1]) / NAME, isolation_level=None)
connection.execute("PRAGMA cache_size = 1")
connection.execute("BEGIN IMMEDIATE")
connection.execute("CREATE TABLE IF NOT EXISTS events (at, what)")
for i in range(1000):
    connection.execute("INSERT INTO events VALUES ('', ?)", ("x" * 1000,))
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
        assert not store.query("SELECT * FROM events WHERE what LIKE 'xx%'")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--check"], "expected either --file FILE, or the folder of a campaign and --id N"),
        (["here"], "which experiment? give its --id"),
        (["here", "--id", "3", "--check"], "--check belongs to --file FILE"),
        (["here", "--id", "3", "--checkpoints", "own"], "--checkpoints belongs to --file FILE"),
        (["--file", "inj.csv", "--id", "3"], "--id belongs to the folder of a campaign"),
        (["here", "--id", "16"], "experiment 16 is not of this campaign; expected 0 to 15"),
    ],
)
def test_what_cannot_be_repeated_is_one_line(folder, capsys, arguments, message):
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert main(["replay", *(str(folder) if word == "here" else word for word in arguments)]) == 2
    assert capsys.readouterr().err == f"{message}\n"
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
