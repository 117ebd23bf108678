"""Every store, damaged at random: what was written comes out, or one line.  Nothing is ever read as other data."""

import os
import pathlib
import random
import sqlite3
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest
from campaign_stores import TOY, fill, toy_plan
from whole import WHOLE

from fault_injection.commands.main import main
from fault_injection.machine.errors import InputError
from fault_injection.machine.files import DamagedFile, read_sealed
from fault_injection.questions.outcomes.schema import TABLES
from fault_injection.questions.outcomes.store import NAME, Store
from fault_injection.questions.scoreboard.store import NAME as SCORE
from fault_injection.questions.scoreboard.store import ScoreStore
from fault_injection.questions.vulnerability.cell_blocks import OF_TRIALS, TrialBatch
from fault_injection.questions.vulnerability.components import Component
from fault_injection.questions.vulnerability.criteria import Wanted
from fault_injection.questions.vulnerability.plan import Cell, FaultKind, PvfPlan
from fault_injection.questions.vulnerability.results import Results, read_header
from fault_injection.runs.golden_run import DESCRIBED, Golden
from fault_injection.workloads.registry import find_workload, make_workload

pytestmark = pytest.mark.usefixtures("compiled_quickly")

MANY = int(os.environ.get("MUTATIONS", "300"))  # of each store; 5000 take some minutes
COUNTS = [60, pytest.param(MANY, marks=pytest.mark.slow)]
EPOCHS = 2


class Subject(NamedTuple):
    """A store: its files, and what reads all that it says, or raises `InputError`."""

    files: tuple[pathlib.Path, ...]
    read: Callable[[], Any]


@pytest.fixture(scope="module")
def campaign(tmp_path_factory):
    folder = fill(tmp_path_factory.mktemp("campaign"), toy_plan(20))

    def read():
        with Store(folder) as store:
            return [[tuple(row) for row in store.query(f"SELECT * FROM {name}")] for name in TABLES], store.about()

    return Subject((folder / NAME,), read)


@pytest.fixture(scope="module")
def score(tmp_path_factory):
    folder = tmp_path_factory.mktemp("score")
    with ScoreStore(folder, write=True) as store:
        store.begin("a key", {"window": 20})
        for number in range(20):
            seen = {"history_bound": {"stop": number % 3 or None, "peaks": [0.5 * number] * 9}}
            store.put("experiment", str(number), {"old": number, "new": -number, "loss": [1.5] * number, "seen": seen})
        store.put("fault_free", "golden 0", {"history_bound": {"steps": 88, "stop": 0}})
        store.event("finished")

    def read():
        with ScoreStore(folder) as store:
            return {kind: dict(store.all(kind)) for kind in ("experiment", "fault_free", "about", "cost")}, store.done()

    return Subject((folder / SCORE,), read)


@pytest.fixture(scope="module")
def pvf(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pvf")
    cell = Cell(Component("x", ("params/a/w", "params/b/w"), (30, 70)), False, FaultKind("flips", 5), 600)
    plan = PvfPlan(make_workload("dlrm"), 1, (cell,), tuple(range(32)), Wanted("class"), "float32", None, None, 0.95, 3)
    results, rng = Results(folder, plan, "a key"), np.random.default_rng(1)
    results.begin("plan.toml", {"host": "here", "jax": "0.0"})
    parts = []
    while missing := results.missing(cell):
        parts += missing
        for part in missing:
            numbers = [rng.integers(0, 500, len(part.strata)).astype(float) for _ in OF_TRIALS[:-2]]
            results.keep(cell, part, TrialBatch(*numbers, np.ones(len(part.strata)), part.strata, 500, 0.5))

    def read():
        again = Results(folder, plan, "a key")
        if again.missing(cell):
            raise InputError("it is made again")  # which was said
        return read_header(folder), [np.asarray(each).tobytes() for each in again.of(cell).trials]

    return Subject((folder / "pvf.json", *(results.path(cell, part) for part in parts)), read)


@pytest.fixture(scope="module")
def golden(tmp_path_factory):
    workload = find_workload(f"{TOY}:linear")
    run = Golden(workload, workload.program(), tmp_path_factory.mktemp("cache"))
    run.make(EPOCHS)

    def read():
        run.make(EPOCHS)
        seconds = run.seconds_per_step()
        if seconds is None:
            raise InputError("how long a step takes is not known")
        try:
            records = [run.store.read_record(epoch) for epoch in range(EPOCHS)]
            states = [dict(enumerate(jax.tree.leaves(run.store.read_checkpoint(e)))) for e in range(EPOCHS + 1)]
        except DamagedFile as error:
            raise InputError(str(error)) from None
        arrays = [{name: np.asarray(array).tobytes() for name, array in each.items()} for each in [*records, *states]]
        return read_sealed(run.folder / DESCRIBED), seconds, arrays

    return Subject(tuple(sorted(path for path in run.folder.rglob("*.*"))), read)


def flipped(content, others, random_):
    """A byte is another one."""
    at = random_.randrange(len(content))
    return content[:at] + bytes([content[at] ^ random_.randrange(1, 256)]) + content[at + 1 :]


def truncated(content, others, random_):
    return content[: random_.choice([0, random_.randrange(len(content))])]


def exchanged(content, others, random_):
    """Two pages have changed places."""
    size = random_.choice([4096, 512, len(content) // 16])
    pages = [content[at : at + size] for at in range(0, len(content), size)]
    a, b = random_.randrange(len(pages)), random_.randrange(len(pages))
    pages[a], pages[b] = pages[b], pages[a]
    return b"".join(pages)


def taken_for(content, others, random_):
    """Another file of the store is in its place.  (Of a state, the steps from it on tell: see `Repeats`.)"""
    return random_.choice(others)


def test_a_sound_row_that_this_program_never_writes_is_said(tmp_path):
    with ScoreStore(tmp_path, write=True) as store:
        with store.transaction():
            store._insert("rows", ["experiment", "7", "text"])
        with pytest.raises(InputError, match="experiment 7 is not what this program writes; delete the file"):
            dict(store.all("experiment"))


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("damage", [flipped, truncated, exchanged, taken_for])
@pytest.mark.parametrize("name", ["campaign", "score", "pvf", "golden"])
def test_damage_is_harmless_or_one_line(request, name, damage, count, capsys):
    subject = request.getfixturevalue(name)
    sound, written = {path: path.read_bytes() for path in subject.files}, subject.read()
    if damage is taken_for and name in ("campaign", "score"):
        pytest.skip("it is one file")
    random_, refused = random.Random(f"{name} {count}"), 0
    paths = [path for path in sound if damage is not taken_for or path.parent.name != "checkpoints"]
    for number in range(count if damage is flipped else count // 4):
        path = paths[number % len(paths)]
        damaged = damage(sound[path], [one for one in sound.values() if one != sound[path]], random_)
        path.write_bytes(damaged)
        try:
            found = subject.read()
            assert found == written, (path, number)
        except InputError as error:
            assert str(error).isprintable() and len(str(error)) < 600
            refused += 1
        finally:
            path.write_bytes(sound[path])
    assert {file for file in paths[0].parent.iterdir() if file.suffix} == {
        p for p in sound if p.parent == paths[0].parent
    }
    assert subject.read() == written and refused > count / 20
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize("name", ["campaign", "score"])
@pytest.mark.parametrize("mode", ["a log of another program", "a file that was changed to have one"])
def test_a_write_ahead_log_is_refused_and_left_alone(request, tmp_path, name, mode):
    """SQLite would read its pages in place of the file's, whatever the file's own mode."""
    subject = request.getfixturevalue(name)
    (path,) = subject.files
    sound, log = path.read_bytes(), path.with_name(f"{path.name}-wal")
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("PRAGMA journal_mode = WAL")
    other.execute("DELETE FROM " + ("events" if name == "campaign" else "rows"))
    left = log.read_bytes()
    if mode == "a log of another program":
        path.write_bytes(sound)
    try:
        before = path.read_bytes()
        with pytest.raises(InputError, match="has given it a write-ahead log"):
            subject.read()
        assert (path.read_bytes(), log.read_bytes()) == (before, left)
    finally:
        other.close()
        for beside in path.parent.glob(f"{path.name}-*"):
            beside.unlink()
        path.write_bytes(sound)
    subject.read()


MORE = [("status", 60), ("report", 60 if WHOLE else 20)]


@pytest.mark.parametrize(
    ("command", "count"),
    [("status", 15), ("report", 3), *(pytest.param(*case, marks=pytest.mark.slow) for case in MORE)],
)
def test_a_flip_is_one_line_of_a_command_and_nothing_is_written(campaign, capsys, command, count):
    (path,) = campaign.files
    sound, random_ = path.read_bytes(), random.Random(command)
    assert main([command, str(path.parent), "--json"]) == 0
    said, files = capsys.readouterr().out, {*path.parent.iterdir()}
    for _ in range(count):
        damaged = flipped(sound, [], random_)
        path.write_bytes(damaged)
        code = main([command, str(path.parent), "--json"])
        out, err = capsys.readouterr()
        assert (code, out) == (0, said) or (code, out, err.count("\n")) == (2, "", 1)
        assert path.read_bytes() == damaged and {*path.parent.iterdir()} == files
    path.write_bytes(sound)
