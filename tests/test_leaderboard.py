"""Frozen sets never change; the leaderboard is what its records say, and records what scoreboards say."""

import hashlib
import importlib
import json
import pathlib
import shutil
import subprocess
import sys

import pytest

from fault_injection.commands.main import main
from fault_injection.commands.score import SETS, frozen_sets, plan_file
from fault_injection.machine.errors import InputError
from fault_injection.questions.outcomes.store import Store
from fault_injection.questions.scoreboard.board import read_board
from fault_injection.questions.scoreboard.comparison import standings
from fault_injection.questions.scoreboard.leaderboard import file_name, leaderboard, read_records, record
from fault_injection.questions.scoreboard.settings import read_settings

FROZEN = {  # a set that would have to change gets another name, and a line here
    "SDC-1": "9d594c760edba95c",
    "SDC-2": "f40eeb2a30d3174e",
    "SDC-3": "9996cd6b0f8e9bd4",
    "SDC-4": "3ae5a46d85b53b47",
    "SDC-5": "541616700a3e8273",
    "SDC-6": "81a90c15f5b4a300",
}
STORES = {
    "SDC-1": "latent",
    "SDC-2": "transformer/float32",
    "SDC-3": "transformer/bfloat16",
    "SDC-4": "boards/SDC-4",
    "SDC-5": "boards/SDC-5",
    "SDC-6": "boards/SDC-6",
}


def today(name, board):
    """The name that a detector of a board has now."""
    return "asd_activations" if name == "asd" and "asd_activations" not in board.detectors else name


@pytest.fixture
def program(results, monkeypatch):
    """`results/leaderboard.py`."""
    monkeypatch.syspath_prepend(results)
    return importlib.import_module("leaderboard")


def test_frozen_sets_never_change():
    found = {name: hashlib.sha256((SETS / f"{name}.toml").read_bytes()).hexdigest()[:16] for name in frozen_sets()}
    assert found == FROZEN


def test_a_set_is_scored_by_its_name(tmp_path):
    """In a process of its own: jobs have one thread, and where JAX computes already no thread can change."""
    script = "import sys; from fault_injection.commands.main import main; "
    script += "sys.exit(max(main(['score', name, '--check', '--json']) for name in sys.argv[1:]))"
    done = subprocess.run([sys.executable, "-c", script, *FROZEN], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    plans = [json.loads(line)["plan"] for line in done.stdout.splitlines()]
    assert len(plans) == len(FROZEN) and all("detectors watch" in plan[1] for plan in plans)


@pytest.mark.parametrize(("name", "folder"), STORES.items())
def test_the_verdicts_of_a_set_are_of_its_plan(name, folder, results):
    plan, settings = read_settings(SETS / f"{name}.toml")
    with Store(results / folder) as store:
        assert store.plan() == plan
    board = read_board(results / folder)
    # The first boards have no score of what is called `dr_dna` since; `epoch_checksum` came after the sets.
    later = {"dr_dna_published", "epoch_checksum"}
    assert {today(name, board) for name in board.detectors} - later <= set(settings.detectors)


def test_a_file_of_the_name_of_a_set_comes_first(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "SDC-1").touch()
    assert plan_file(pathlib.Path("SDC-1")) == pathlib.Path("SDC-1")


def test_a_folder_of_the_name_of_a_set_is_where_its_board_may_be(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "SDC-1").mkdir()
    assert plan_file(pathlib.Path("SDC-1")) == SETS / "SDC-1.toml"


def test_a_set_that_is_not_there_is_answered_with_those_that_are(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["score", "SDC-61", "--out", "out"]) == 2
    said = capsys.readouterr().err.splitlines()
    assert said == [f"SDC-61: no such file, and no frozen set; expected a plan, or one of {', '.join(FROZEN)}"]
    assert main(["score", "a/SDC-1", "--out", "out"]) == 2
    assert capsys.readouterr().err == "a/SDC-1: No such file or directory\n"
    assert not any(tmp_path.iterdir())


def test_the_leaderboard_is_what_its_program_makes(program):
    assert program.main(["--check"]) == 0


def test_a_leaderboard_that_says_something_else_is_found_and_written(program, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(program, "PAGE", tmp_path / "LEADERBOARD.md")
    assert program.main(["--check"]) == 1 and not program.PAGE.exists()
    assert "run python results/leaderboard.py" in capsys.readouterr().err
    assert program.main([]) == 0 and program.main(["--check"]) == 0


@pytest.mark.parametrize(("name", "folder"), STORES.items())
def test_records_say_what_scoreboards_say(name, folder, results):
    records = {one["detector"]: one for one in read_records(results / "leaderboard") if one["set"] == name}
    board = read_board(results / folder)
    for one in standings(board):
        found = records[today(one.detector, board)]
        assert found["latent"] == [one.latent.found, one.latent.total]
        assert found["false_alarms"] == [one.false_alarms.found, one.false_alarms.total]
        assert found["steps"] == (None if one.steps is None else list(one.steps))
        assert found["commit"] and found["machine"]["processor"]


def test_the_page_has_every_record_the_best_one_first(results):
    records = read_records(results / "leaderboard")
    page = leaderboard(records, {"SDC-1": "One.", "SDC-9": "None."})
    rows = [line for line in page.splitlines() if line.startswith("| `")]
    harm = {one["detector"]: one["latent"][0] + one["nonfinite"][0] for one in records if one["set"] == "SDC-1"}
    found = [harm[row.split("`")[1]] for row in rows]
    assert sorted(found, reverse=True) == found and len(found) == len(harm)
    assert page.rstrip().endswith("No record.")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda path: path.write_text("{"), "no JSON: "),
        (lambda path: path.write_text("[]"), "is no record: "),
        (lambda path: path.write_text('{"set": 1}'), "is no record: "),
        (
            lambda path: path.rename(path.with_name("x.json")),
            "is the record SDC-1-asd_v1.json; give the file that name",
        ),
    ],
)
def test_a_wrong_record_gets_one_line(results, tmp_path, change, message):
    path = tmp_path / "SDC-1-asd_v1.json"
    shutil.copy(results / "leaderboard" / path.name, path)
    change(path)
    with pytest.raises(InputError) as found:
        read_records(tmp_path)
    assert message in str(found.value)


def test_a_record_can_be_written_and_read_again(results, tmp_path):
    board = read_board(results / "latent")
    made = record(board, "asd", "SDC-1", "a command", {"commit": "c0ffee", "processor": "P"}, "2026-01-02", "abc")
    (tmp_path / file_name(made)).write_text(json.dumps(made))
    (one,) = read_records(tmp_path)
    assert one == json.loads(json.dumps(made)) and one["code"] == "abc" and one["commit"] == "c0ffee"


def test_what_is_no_frozen_set_has_no_record(repository, tmp_path, capsys):
    plan = repository / "injections" / "plans" / "first_board.toml"
    assert main(["score", str(plan), "--out", str(tmp_path / "out"), "--record", str(tmp_path)]) == 2
    assert "--record is of a frozen set alone: SDC-1, SDC-2, SDC-3" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
