"""What a store says is what was written to it: no damage is read as other data."""

import concurrent.futures
import contextlib
import dataclasses
import json
import math
import random
import sqlite3

import pytest
from campaign_stores import ENVIRONMENT, KEY, fill, result, toy_plan

from fault_injection.campaign.executors import Slot
from fault_injection.campaign.store import DIGEST
from fault_injection.campaign.task import Ready, Task
from fault_injection.commands.main import main
from fault_injection.machine.errors import InputError
from fault_injection.questions.outcomes import jobs
from fault_injection.questions.outcomes.conditions import Conditions
from fault_injection.questions.outcomes.driver import campaign
from fault_injection.questions.outcomes.schema import TABLES
from fault_injection.questions.outcomes.store import NAME, Store
from fault_injection.seam.measure import Measure

pytestmark = pytest.mark.usefixtures("compiled_quickly")

FLIPS = [400, pytest.param(1_000, marks=pytest.mark.slow)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return fill(tmp_path_factory.mktemp("campaign"), toy_plan())


@pytest.fixture
def copy(folder, tmp_path):
    (tmp_path / NAME).write_bytes((folder / NAME).read_bytes())
    return tmp_path


def content(folder, write=False):
    """All rows of all tables, and what is known of the campaign."""
    with Store(folder, write=write) as store:
        rows = {name: [tuple(row) for row in store.query(f"SELECT * FROM {name}")] for name in TABLES}
        return rows, store.about(), store.plan(), store.damaged


@pytest.mark.parametrize("count", FLIPS)
def test_no_flip_of_a_few_bits_is_read_as_other_data(folder, tmp_path, count):
    written, sound = content(folder), (folder / NAME).read_bytes()
    random_ = random.Random(count)
    named = 0
    for _ in range(count):
        damaged = bytearray(sound)
        for _ in range(random_.randint(1, 3)):
            damaged[random_.randrange(len(damaged))] ^= 1 << random_.randrange(8)
        (tmp_path / NAME).write_bytes(damaged)
        try:
            found = content(tmp_path)
        except InputError as error:
            assert str(error).isprintable() and len(str(error)) < 600
            named += 1
        else:
            assert found == written  # bytes that hold nothing
    assert named > count / 3  # pages of tables without rows hold nothing


def alter(folder, sql, *values):
    """Change what a file says, and leave its structure as it is."""
    connection = sqlite3.connect(folder / NAME)
    with connection:
        assert connection.execute(sql, values).rowcount == 1
    connection.close()


DAMAGES = {
    "experiment 17": "UPDATE experiments SET outcome = 'SlowDegrade' WHERE number = 17",
    "experiment 18": "UPDATE experiments SET loss_gap = 0.2500001 WHERE number = 18",
    "experiment 19": "UPDATE experiments SET curve = zeroblob(24) WHERE number = 19",
    "experiment 99": "UPDATE experiments SET number = 99 WHERE number = 20",
    "experiment 21": "UPDATE experiments SET finished_at = cast(x'ff' AS TEXT) WHERE number = 21",
    "environment ": "UPDATE environments SET description = '{}'",
    "environment 3": "UPDATE environments SET id = '3', description = '['",
    "event 2": "UPDATE events SET what = 'stopped' WHERE number = 2",
    "walk 3": "UPDATE walks SET steps = 9 WHERE number = 3",
    "campaign jobs": "UPDATE campaign SET value = '2' WHERE name = 'jobs'",
    "campaign plan": "UPDATE campaign SET value = replace(value, '\"RD\"', '\"ZD\"') WHERE name = 'plan'",
}


@pytest.mark.parametrize("row", DAMAGES)
@pytest.mark.parametrize("command", [["status"], ["report"], ["export"], ["export", "--id", "3"]])
def test_a_reader_names_a_damaged_row_and_how_to_mend_it(copy, capsys, row, command):
    alter(copy, DAMAGES[row])
    before = (copy / NAME).read_bytes()
    assert main([command[0], str(copy), *command[1:]]) == 2
    out, err = capsys.readouterr()
    assert not out and err.count("\n") == 1
    assert f"{NAME}: damaged: {row}" in err
    assert f"python -m fault_injection campaign mine.toml --out {copy}" in err
    assert (copy / NAME).read_bytes() == before
    assert [path.name for path in copy.iterdir()] == [NAME]


@pytest.mark.parametrize("row", DAMAGES)
def test_what_was_damaged_is_removed_and_the_rest_stays(folder, copy, row):
    (rows, about, _, _), plan = content(folder), toy_plan()
    alter(copy, DAMAGES[row])
    with Store(copy, write=True) as store:
        store.expect(plan)
        assert row in store.mend()
        done = store.done()
        kind, _, number = row.partition(" ")
        lost = {20 if number == "99" else int(number)} if kind == "experiment" else set()
        assert done == set(range(40)) - lost
        store.begin(KEY, plan, **{name: about[name] for name in ("conditions", "measure", "jobs", "plan_file")})
        for n in lost:
            store.add(result(n), ENVIRONMENT, KEY)
    again, known, restored, damaged = content(copy)
    assert (known, restored, damaged) == (about, plan, [])
    kept = [{name: r[:-2] for r in some["experiments"] for name in r[:1]} for some in (rows, again)]
    assert kept[0] == kept[1]  # but for when they were finished
    assert any(f"damaged rows were removed: {row}" in event[2] for event in again["events"])


def test_what_is_damaged_does_not_let_another_plan_in(copy):
    alter(copy, DAMAGES["campaign plan"])
    alter(copy, "DELETE FROM campaign WHERE name = 'plan_key'")
    with Store(copy, write=True) as store:
        store.mend()
        with pytest.raises(InputError, match="whose bits are others"):
            store.begin("another key", toy_plan())


def test_an_environment_that_is_lost_is_said_to_be(copy):
    alter(copy, DAMAGES["environment "])
    with Store(copy, write=True) as store:
        store.mend()
    (rows, *_) = content(copy)
    ((_, description),) = rows["environments"]
    assert json.loads(description) == {"description": "lost by damage"}


def by_hand(folder, table, key, **changes):
    """Write a row as somebody might who knows of the digest."""
    connection = sqlite3.connect(folder / NAME)
    first, *_ = columns = list(TABLES[table].columns)
    names = ", ".join(columns)
    (found,) = connection.execute(f"SELECT {names} FROM {table} WHERE {first} = ?", [key]).fetchall()
    row = dict(zip(columns, found, strict=True)) | changes
    values = [*row.values(), TABLES[table].digest(list(row.values()))]
    with connection:
        connection.execute(f"DELETE FROM {table} WHERE {first} = ?", [key])
        marks = ", ".join("?" * len(values))
        connection.execute(f"INSERT INTO {table} ({names}, {DIGEST}) VALUES ({marks})", values)
    connection.close()


def plan_with(**changes):
    """What is kept of the plan, with some fields changed; `models__0__name` is the first model's name."""
    with_these = json.loads(json.dumps(dataclasses.asdict(toy_plan())))
    for name, value in changes.items():
        place = with_these
        *way, last = name.split("__")
        for part in way:
            place = place[int(part) if part.isdigit() else part]
        place[int(last) if last.isdigit() else last] = value
    return json.dumps(with_these)


WRITTEN = {
    "no JSON": ("campaign", "plan", {"value": "{"}),
    "nested": ("campaign", "plan", {"value": "[" * 3000 + "]" * 3000}),
    "a number": ("campaign", "plan", {"value": "3"}),
    "an empty plan": ("campaign", "plan", {"value": "{}"}),
    "another model": ("campaign", "plan", {"value": plan_with(models__0__name="XX")}),
    "a model without a name": ("campaign", "plan", {"value": plan_with(models__0__name=None)}),
    "a model's values": ("campaign", "plan", {"value": plan_with(models__0__values="x")}),
    "a weight": ("campaign", "plan", {"value": plan_with(models__0__weight="1")}),
    "models": ("campaign", "plan", {"value": plan_with(models=7)}),
    "sites": ("campaign", "plan", {"value": plan_with(sites=["fc", "fd"])}),
    "epochs": ("campaign", "plan", {"value": plan_with(epochs=[0, 1, 10**9])}),
    "experiments": ("campaign", "plan", {"value": plan_with(experiments="many")}),
    "a confidence": ("campaign", "plan", {"value": plan_with(confidence=2)}),
    "a horizon": ("campaign", "plan", {"value": plan_with(horizon=[1])}),
    "an exit": ("campaign", "plan", {"value": plan_with(exit="soon")}),
    "a workload": ("campaign", "plan", {"value": plan_with(workload={"name": "resnet18", "width": "x"})}),
    "a learning rate": ("campaign", "plan", {"value": plan_with(workload__learning_rate=-1)}),
    "no conditions": ("campaign", "conditions", {"value": "[]"}),
    "other conditions": ("campaign", "conditions", {"value": '{"margin": "wide"}'}),
    "no measure": ("campaign", "measure", {"value": "null"}),
    "another measure": ("campaign", "measure", {"value": '["loss", "sideways", 1, 1]'}),
    "limits": (
        "campaign",
        "measure",
        {"value": '{"name": "x", "better": "lower", "chance": 1, "tolerance": 1, "limits": 3}'},
    ),
    "jobs": ("campaign", "jobs", {"value": '"many"'}),
    "a plan's file": ("campaign", "plan_file", {"value": "[3]"}),
    "no environment": ("environments", None, {"description": "[]"}),
    "a model that is not of the plan": ("experiments", 5, {"model": "ZERO"}),
    "a site that is not of the plan": ("experiments", 5, {"site": "\x1b[2J"}),
    "another stage": ("experiments", 5, {"stage": "backward"}),
    "an operand": ("experiments", 5, {"operand": "bias"}),
    "an epoch": ("experiments", 5, {"epoch": 4}),
    "a step": ("experiments", 5, {"step": "first"}),
    "an outcome": ("experiments", 5, {"outcome": "Fine"}),
    "an audit's outcome": ("experiments", 5, {"audit_outcome": "Fine"}),
    "a short curve": ("experiments", 5, {"curve": b"1234567"}),
    "a text for a curve": ("experiments", 5, {"curve": "x" * 24}),
    "no steps": ("experiments", 5, {"steps": 0, "curve": b""}),
    "a number as text": ("experiments", 5, {"history_excess": "large"}),
    "a negative number": ("experiments", 5, {"elements": -1}),
}


@pytest.mark.parametrize("what", WRITTEN)
@pytest.mark.parametrize("command", ["status", "report"])
def test_what_no_program_of_ours_writes_is_one_line_even_with_a_digest(copy, capsys, what, command):
    table, key, changes = WRITTEN[what]
    if table == "environments":
        (rows, *_) = content(copy)
        key = rows["environments"][0][0]
    by_hand(copy, table, key, **changes)
    before = (copy / NAME).read_bytes()
    assert main([command, str(copy)]) == 2
    out, err = capsys.readouterr()
    assert not out and err.count("\n") == 1 and err[:-1].isprintable() and len(err) < 600
    assert "is not what this program writes" in err
    assert (copy / NAME).read_bytes() == before
    with pytest.raises(InputError, match="is not what this program writes"):
        Store(copy, write=True)


def test_what_is_missing_is_one_line(copy, capsys):
    alter(copy, "DELETE FROM campaign WHERE name = 'measure'")
    assert main(["report", str(copy)]) == 2
    assert "its measure is missing" in capsys.readouterr().err


def test_a_value_that_is_no_number_is_kept_as_infinite(copy):
    """SQLite has no NaN: it became a null, and the whole row was passed over without a word."""
    with Store(copy, write=True) as store:
        store.add(result(40, history_excess=math.nan, loss_gap=-0.0, worse_train=math.nan), ENVIRONMENT, KEY)
    with Store(copy) as store:
        (row,) = store.query("SELECT history_excess, loss_gap, worse_train FROM experiments WHERE number = 40")
    assert tuple(row) == (math.inf, 0.0, None)


def test_sound_rows_are_exported_without_their_digests(folder, tmp_path):
    assert main(["export", str(folder), "--out", str(tmp_path)]) == 0
    lines = (tmp_path / "experiments.csv").read_text().splitlines()
    assert len(lines) == 41 and DIGEST not in lines[0]


class Inline(concurrent.futures.Executor):
    """Runs what it is given in this process."""

    def submit(self, function, /, *arguments):
        future = concurrent.futures.Future()
        future.set_result(function(*arguments))
        return future


@pytest.mark.parametrize("row", ["experiment 17", "campaign plan", "walk 3"])
def test_a_resumed_campaign_says_what_was_damaged_and_runs_it_again(copy, monkeypatch, capsys, row):
    plan, again = toy_plan(), []
    about = {
        "conditions": dataclasses.asdict(Conditions()),
        "measure": dataclasses.asdict(Measure("loss", "lower", 5.0, 0.01)),
    }
    ready = Ready(KEY, "a golden run's key", about, copy / "walks")

    def experiment(task, golden_key, number, supported):
        again.append(number)
        return result(number), ENVIRONMENT

    monkeypatch.setattr(jobs, "make_golden", lambda task: ready)
    monkeypatch.setattr(jobs, "walk", lambda *arguments: (0, 0.0))
    monkeypatch.setattr(jobs, "experiment", experiment)
    alter(copy, DAMAGES[row])
    slot = Slot(Inline, lambda: 1, (concurrent.futures.BrokenExecutor,), Inline())
    campaign(Task(plan), copy, contextlib.nullcontext([slot]), "mine.toml")
    err = capsys.readouterr().err
    assert f"damaged rows are removed, and what is missing is run again: {row}" in err
    assert again == ([17] if row == "experiment 17" else [])
    rows, about, restored, damaged = content(copy)
    assert (restored, damaged, about["jobs"], len(rows["experiments"])) == (plan, [], 1, 40)
    assert main(["report", str(copy)]) == 0
