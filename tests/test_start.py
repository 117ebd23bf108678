"""A campaign over altered checkpoints that are there: `[start]` of a plan, and the alterations in its store."""

import json
import sqlite3
import subprocess
import sys

import numpy as np
import pytest
from campaign_stores import TOY

from fault_injection.commands.main import main
from fault_injection.faults.injection_file import read_injection
from fault_injection.machine.errors import InputError
from fault_injection.questions.outcomes.plan_file import read_plan
from fault_injection.questions.outcomes.sampling import choose, draw_experiment, injection_of
from fault_injection.questions.outcomes.store import NAME, Store

pytestmark = pytest.mark.usefixtures("compiled_quickly")

PLAN = f"""\
workload = "{TOY}:linear"
[start]
epochs = [2, 1]
logs = ["flips_*.json"]
[run]
exit = "exact"
"""
FROM_CHECKPOINTS = PLAN.replace('logs = ["flips_*.json"]', 'checkpoints = ["altered_*.npz"]\nsaved = "saved.npz"')


def run(*arguments):
    assert main([str(argument) for argument in arguments]) == 0


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A golden checkpoint, three altered copies with their logs, and a plan of each kind."""
    found = tmp_path_factory.mktemp("start")
    run("golden", f"{TOY}:linear", "--cache", found / "cache", "--save", 1, found / "saved.npz")
    for seed in range(3):
        names = [found / f"altered_{seed}.npz", found / f"flips_{seed}.json"]
        run("alter", found / "saved.npz", "--out", names[0], "--log", names[1], "--count", 1 + seed, "--seed", seed)
    (found / "plan.toml").write_text(PLAN)
    (found / "checkpoints.toml").write_text(FROM_CHECKPOINTS)
    return found


def test_each_file_is_an_experiment_of_each_epoch(folder):
    plan = read_plan(folder / "plan.toml")
    chosen = [choose(plan, draw_experiment(plan, number)) for number in range(plan.experiments)]
    found = [(one.experiment.model.name, one.experiment.epoch, one.experiment.step) for one in chosen]
    assert sorted(found) == sorted((f"flips_{k}.json", epoch, 0) for k in range(3) for epoch in (1, 2))
    assert {one.site.name for one in chosen} == {"checkpoint/state/float32/1"}


def test_a_log_and_the_checkpoint_that_it_tells_of_are_the_same_alteration(folder):
    logs, checkpoints = (read_plan(folder / name) for name in ("plan.toml", "checkpoints.toml"))
    for one, other, count in zip(logs.models, checkpoints.models, (1, 2, 3), strict=True):
        assert one.options == other.options
        assert len(dict(one.options)["index"]) == count


@pytest.mark.slow
def test_a_campaign_restarts_from_each_and_its_store_has_every_alteration(folder, tmp_path, capsys):
    run("campaign", folder / "plan.toml", "--out", tmp_path / "c", "--jobs", 1, "--cache", folder / "cache")
    logged = {
        path.name: {
            (row["name"], np.ravel_multi_index(row["index"], (3, 1)) if row["index"] else 0): (
                int(row["before"], 16) ^ int(row["after"], 16)
            )
            for row in json.loads(path.read_text())["alterations"]
        }
        for path in folder.glob("flips_*.json")
    }
    with Store(tmp_path / "c") as store:
        rows = store.query("SELECT * FROM experiments")
        for row in rows:
            altered = store.query("SELECT * FROM alterations WHERE number = ?", [row["number"]])
            assert {(a["array"], a["position"]): a["before"] ^ a["after"] for a in altered} == logged[row["model"]]
        assert len(rows) == 6
        plan, verdicts = store.plan(), {row["number"]: row["rule"] for row in rows}
    # A replay of one comes to the same, and `continue` makes the same injection of the altered checkpoint.
    replay = ["replay", tmp_path / "c", "--id", 0, "--out", tmp_path / "again", "--cache", folder / "cache", "--json"]
    said = subprocess.run([sys.executable, "-m", "fault_injection", *map(str, replay)], capture_output=True, check=True)
    assert json.loads(said.stdout)["rule"] == verdicts[0]
    options = ["--epoch", 1, "--out", tmp_path / "on", "--cache", folder / "cache"]
    run("continue", folder / "altered_0.npz", f"{TOY}:linear", *options)
    assert read_injection(tmp_path / "on" / "altered_0.csv") == injection_of(plan, 0)

    # An experiment without all of its alterations is not done.
    with sqlite3.connect(tmp_path / "c" / NAME) as connection:
        connection.execute("UPDATE alterations SET after = 7 WHERE key = '1/0'")
    connection.close()
    with Store(tmp_path / "c", write=True) as store:
        assert "alteration 1/0" in store.mend()
        assert store.done() == set(range(6)) - {1}
        assert not store.query("SELECT * FROM alterations WHERE number = 1")


MISTAKES = {
    "neither logs nor checkpoints": ('logs = ["flips_*.json"]', "", "start: expected either logs, or checkpoints"),
    "no such file": ("flips_*", "flaps_*", "start.logs: no file fits 'flaps_*.json'"),
    "no log": ("flips_*.json", "plan.toml", "plan.toml: not a log of alterations"),
    "more loaders than there are": ("[run]", "loaders = [2]\n[run]", "start.loaders: [2]; expected distinct counts"),
    "saved without checkpoints": ("[run]", 'saved = "x"\n[run]', "start.saved: belongs to checkpoints"),
    "an epoch too late": ("[2, 1]", "[99]", "start.epochs: 99 is not among"),
    "faults besides": ("[run]", "[faults]\nexperiments = 3\n[run]", "start: a plan has either [start] or [faults]"),
    "an unknown key": ("epochs", "epoch", "start.epoch: unknown key; did you mean 'epochs'"),
    "of another network": ("flips_*.json", "other.json", "has no array 'slops', which the log alters; did you mean"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_said_in_one_line(folder, mistake):
    old, new, expected = MISTAKES[mistake]
    log = (folder / "flips_0.json").read_text()
    (folder / "other.json").write_text(log.replace("slopes", "slops").replace("offset", "slops"))
    (folder / "wrong.toml").write_text(PLAN.replace(old, new))
    with pytest.raises(InputError) as error:
        read_plan(folder / "wrong.toml")
    assert expected in str(error.value) and "\n" not in str(error.value)


def test_a_checkpoint_that_was_not_altered_is_named(folder):
    (folder / "altered_9.npz").write_bytes((folder / "saved.npz").read_bytes())
    with pytest.raises(InputError, match=r"altered_9.npz: is .*saved.npz: nothing was altered"):
        read_plan(folder / "checkpoints.toml")
