"""Detectors of other frameworks: exported logs tell all that detectors see, and alarms that come back are scored."""

import contextlib
import csv
import dataclasses
import json
import shutil

import jax
import momentum_training
import numpy as np
import pytest
from campaign_stores import Inline
from test_own_detectors import scalar_template

from fault_injection.campaign.executors import Slot
from fault_injection.campaign.task import Task
from fault_injection.commands.main import main
from fault_injection.detection.own_detector import own_detector
from fault_injection.logs.families import read_log
from fault_injection.machine.errors import InputError
from fault_injection.questions.outcomes.driver import campaign
from fault_injection.questions.outcomes.store import Store
from fault_injection.questions.scoreboard import driver
from fault_injection.questions.scoreboard.alarms import enter_alarms, read_alarms
from fault_injection.questions.scoreboard.board import read_board
from fault_injection.questions.scoreboard.comparison import said, standings
from fault_injection.questions.scoreboard.driver import watch_campaign
from fault_injection.questions.scoreboard.exported import export_logs
from fault_injection.questions.scoreboard.settings import read_settings
from fault_injection.questions.scoreboard.store import ALARMS, ScoreStore
from fault_injection.questions.scoreboard.tasks import ScoreTask
from fault_injection.runs.outcome import MASKED

PLAN = f"""
workload = "{momentum_training.__file__}:training"
[faults]
experiments = 10
seed = 6
[faults.models]
RD = {{ weight = 1, values = "worst_case" }}
INPUT = 1
[run]
exit = "full"
[score]
detectors = ["nonfinite"]
window = 3
masked = 2
fault_free_seeds = 1
"""
MINE = "mine.py:detector"


def inline():
    return contextlib.nullcontext([Slot(Inline, lambda: 1, (), Inline())])


@pytest.fixture(scope="module", autouse=True)
def here():
    """Jobs in this process, whose number of threads stays as it is."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Task, "set_up", lambda task: None)
        yield


@pytest.fixture(scope="module")
def scored(tmp_path_factory, cache):
    """A scoreboard that the template has watched, its folder, and the logs of its runs."""
    folder = tmp_path_factory.mktemp("scored")
    (folder / "plan.toml").write_text(PLAN)
    assert main(["init", "--detector", str(folder / "mine.py")]) == 0
    plan, settings = read_settings(folder / "plan.toml", [f"{folder / 'mine.py'}:detector"])
    task, out, logs = ScoreTask(plan, cache, settings=settings), folder / "out", folder / "logs"
    with pytest.MonkeyPatch.context() as patch, jax.numpy_dtype_promotion("standard"):
        patch.setattr(driver, "PAIRS", 1)
        campaign(task, out, inline())
        watch_campaign(task, out, inline())
        assert export_logs(task, settings, out, logs, inline()) == len([*logs.glob("run_*.csv")])
    return folder, task


def alarms_of(logs):
    """What the template says of the logs, by the tests' own scalar code: rows of the file that goes back."""
    rows, watched = [], {"loss", *momentum_training.create()}
    for run in json.loads((logs / "manifest.json").read_text())["runs"]:
        with (logs / run["file"]).open() as file:
            names, *lines = csv.reader(file)
        at = [i for i, name in enumerate(names) if name.partition("/")[0] in watched]
        values = np.array([[float(line[i]) for i in at] for line in lines])
        excess = scalar_template(values)
        assert len(values) == run["steps"] and [int(line[0]) for line in lines] == list(range(run["steps"]))
        steps = np.flatnonzero(excess.max(1) > 1).tolist()
        # Of a step the tensor farthest beyond its threshold, as a scoreboard has it.
        rows += [[run["run"], step, 1, names[at[int(np.argmax(excess[step]))]]] for step in steps]
        rows += [[run["run"], "", "", ""]] if not steps else []
    return rows


def written(path, rows):
    path.write_text("\n".join(",".join(map(str, row)) for row in [["run", "step", "level", "tensor"], *rows]) + "\n")
    return path


@pytest.fixture
def entered(scored, tmp_path):
    """Enters rows under a name on a copy of the scoreboard, and gives the board."""
    folder, task = scored
    out = tmp_path / "out"
    shutil.copytree(folder / "out", out)
    with Store(out) as judged:
        key = judged.about()["plan_key"]

    def enter(rows, name="elsewhere"):
        with ScoreStore(out, write=True) as store:
            enter_alarms(store, task.plan, key, written(tmp_path / "alarms.csv", rows), name)
        return read_board(out)

    enter.out = out
    return enter


def test_a_detector_elsewhere_is_scored_as_the_same_detector_here(scored, entered):
    board = entered(alarms_of(scored[0] / "logs"))
    here, there = ({one.detector: one for one in standings(board)}[name] for name in (MINE, "elsewhere"))
    assert here.latent.found > 0 and here.latent.total > 0
    for part in (
        "latent",
        "nonfinite",
        "harmless",
        "models",
        "false_alarms",
        "bound",
        "steps",
        "site",
        "layer",
        "worker",
    ):
        assert getattr(here, part) == getattr(there, part), part
    assert there.cost is None and there.recovered == {}
    bad = board.of({one.outcome for one in board.seen} - {MASKED})
    assert board.swept("elsewhere", bad)[1][0] == board.detected("elsewhere", bad).share  # the lowest threshold
    assert said(board)["detectors"]["elsewhere"]["fault_free_steps"] == 2 * 18


def test_logs_tell_no_outcome_and_are_read_as_logs_are(scored):
    logs = scored[0] / "logs"
    manifest = json.loads((logs / "manifest.json").read_text())
    text = (logs / "manifest.json").read_text()
    assert not any(word in text for word in ("Masked", "golden", 'epoch"', "seed", "site", "RD"))
    assert manifest["runs"] == sorted(manifest["runs"], key=lambda run: run["run"]) and len(manifest["rules"]) == 4
    log = read_log(logs / manifest["runs"][0]["file"])
    assert "loss" in log.tensors and len(set(log.tensors)) == len(log.tensors)
    assert main(["detect", str(logs / manifest["runs"][0]["file"]), "--detector", "nonfinite", "--json"]) == 0


def test_an_export_goes_on_and_refuses_a_folder_of_something_else(scored):
    folder, task = scored
    logs = folder / "logs"
    one, kept = sorted(logs.glob("run_*.csv"))[:2]
    text, when = one.read_text(), kept.stat().st_mtime_ns
    one.unlink()
    with jax.numpy_dtype_promotion("standard"):
        export_logs(task, task.settings, folder / "out", logs, inline())
    assert one.read_text() == text and kept.stat().st_mtime_ns == when
    with pytest.raises(InputError, match=r"holds '.*', which is no log of this campaign; choose an empty folder"):
        export_logs(task, task.settings, folder / "out", folder, inline())
    longer = dataclasses.replace(task.settings, window=task.settings.window + 1)
    with pytest.raises(InputError, match="holds logs of another window"):  # which would stay as they are
        export_logs(task, longer, folder / "out", logs, inline())
    assert kept.stat().st_mtime_ns == when


def test_alarms_that_look_ahead_are_refused(scored, entered):
    """An alarm in the fault-free steps of one run, which all runs share, but not in those of the others."""
    rows, runs = [], json.loads((scored[0] / "logs" / "manifest.json").read_text())["runs"]
    longest = max(run["steps"] for run in runs)
    rows += [[run["run"], "", "", ""] for run in runs]
    with pytest.raises(InputError, match="have the same rows up to step 0, but other alarms"):
        first = next(run["run"] for run in runs if 6 < run["steps"] < longest)
        entered([row for row in rows if row[0] != first] + [[first, 0, 1, "loss"]])
    everywhere = entered([[run["run"], 0, 2, ""] for run in runs])  # a pure detector may warn in all of them
    assert everywhere.false_alarms("elsewhere").found == 0


def test_runs_that_came_later_leave_the_alarms_out_by_name(scored, entered):
    entered(alarms_of(scored[0] / "logs"))
    with ScoreStore(entered.out, write=True) as store:
        known = store.get(ALARMS, "elsewhere")
        del known["fault_free"]["golden 0"], known["experiments"][next(iter(known["experiments"]))]
        store.put(ALARMS, "elsewhere", known)
    board = read_board(entered.out)
    assert "elsewhere" not in board.detectors
    assert dict(board.cannot_watch)["elsewhere"].startswith("2 run(s) that were added after its alarms were read")


RUNS = {"run_a": 5, "run_b": 3}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", ":1: begins with 'nothing'; expected the columns run,step,level,tensor"),
        ("run,step\n", ":1: begins with 'run,step'; expected"),
        ("run,step,level,tensor\nrun_a,1,1\n", ":2: 3 cells; expected 4"),
        ("run,step,level,tensor\nrun_c,1,1,\n", ":2: run 'run_c' is none of the 2 exported runs"),
        ("run,step,level,tensor\nrun_a,5,1,\n", ":2: step '5' of run_a; expected a whole number from 0 to 4"),
        ("run,step,level,tensor\nrun_a,-1,1,\n", ":2: step '-1' of run_a; expected"),
        ("run,step,level,tensor\nrun_a,1.5,1,\n", ":2: step '1.5' of run_a; expected"),
        ("run,step,level,tensor\nrun_a,1,3,\n", ":2: level '3'; expected 1 (stops) or 2 (warns)"),
        ("run,step,level,tensor\nrun_a,,1,\n", ":2: step '' of run_a; expected"),
        ("run,step,level,tensor\nrun_a,,,x\n", ":2: a tensor without a step"),
        ("run,step,level,tensor\nrun_a,1,1,x\nrun_a,1,1,x\n", ":3: this alarm of run_a stands here twice"),
        ("run,step,level,tensor\nrun_a,1,1,x\nrun_a,01,1,x\n", ":3: this alarm of run_a stands here twice"),
        ("run,step,level,tensor\nrun_a,1,1,x\nrun_a,,,\n", ":3: run_a has a row without an alarm, and another row"),
        ("run,step,level,tensor\nrun_a,,,\nrun_a,1,1,x\n", ":3: run_a has a row without an alarm, and another row"),
        (f"run,step,level,tensor\nrun_a,{'1' * 5000},1,x\n", ":2: step '1111"),
        (f'run,step,level,tensor\nrun_a,1,1,"{"x" * 140_000}\n', ": no CSV: field larger than field limit"),
        ("run,step,level,tensor\nrun_a,1,1,x\n", ": 1 of 2 runs are missing, such as run_b; a run without an alarm"),
    ],
)
def test_a_wrong_file_of_alarms_gets_one_line(tmp_path, text, message):
    path = tmp_path / "alarms.csv"
    path.write_text(text)
    with pytest.raises(InputError) as found:
        read_alarms(path, RUNS)
    assert str(found.value).startswith(f"{path}{message}")


def test_alarms_are_read_in_the_order_of_steps(tmp_path):
    path = written(tmp_path / "alarms.csv", [["run_a", 4, 1, "x"], ["run_b", "", "", ""], ["run_a", 2, 2, ""]])
    found = read_alarms(path, RUNS)
    assert [(one.step, one.level, one.tensor) for one in found["run_a"]] == [(2, 2, ""), (4, 1, "x")]
    assert found["run_b"] == []


def test_the_template_here_is_the_detector_that_watched(scored):
    assert own_detector(f"{scored[0] / 'mine.py'}:detector").signals == ("loss", "largest/state")
