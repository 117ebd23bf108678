"""Commands × trainings: each command works for a training, or one line says why it does not."""

import json
import subprocess
import sys

import pytest
from small import OPTIONS
from test_matrix import as_users_have_it, plan_of  # noqa: F401  a fixture
from whole import some

from fault_injection.commands.main import main
from fault_injection.detection.registry import DETECTORS
from fault_injection.faults.injection_file import format_injection
from fault_injection.machine.sources import ROOT
from fault_injection.questions.outcomes.sampling import injection_of
from fault_injection.questions.scoreboard import driver

OWN = ("momentum", "accumulated", "averaged", "module", "equinox")
ONE_FORMAT = "has no option 'precision'"  # the formats are those of the user's code


def plan_text(training, table):
    """A plan of the training, with a table of its own."""
    return f'workload = "{plan_of(training, "operand").workload.name}"\n{table}'


PVF = """
[faults]
flips = [1]
trials = 4
seed = 3
[wrong]
examples = 16
"""
SCORE = """
[faults]
experiments = 2
epochs = [1]
seed = 6
[faults.models]
RD = { weight = 1, values = "worst_case" }
[run]
exit = "full"
twins = 0
[score]
window = 3
masked = 1
fault_free_seeds = 0
"""
MAPPED = """
[faults]
experiments = 3
epochs = [1]
seed = 6
{faults}
[faults.models]
{models}
[run]
exit = "full"
twins = 0
"""


def options_of(workload, **options):
    """The head of a plan."""
    return f'workload = "{workload}"\n[options]\n' + "".join(f"{k} = {json.dumps(v)}\n" for k, v in options.items())


SMALL = options_of("resnet18", **OPTIONS | {"blocks": "1/1/1/1", "epochs": 2})
# A network that compiles in half the time.
TINY = {"width": 8, "blocks": 1, "heads": 2, "kv_heads": 1, "context": 8, "batch_size": 4, "workers": 2, "epochs": 2}
SMALLER = options_of("transformer", **TINY, steps_per_epoch=5)
OPERATION, LEAF = 'RD = { weight = 1, values = "worst_case" }', "FLIPS_1 = 1"
# Campaigns by what is peculiar to them: the training, and what is struck how long and by what.
CAMPAIGNS = {
    "own, once": ("momentum", "", OPERATION),
    "own, permanent, state": ("momentum", 'schedule = "permanent"\nstages = ["state"]\nsites = ["params/*"]', LEAF),
    "once": (SMALL, "", OPERATION),
    "every 3": (SMALL, 'schedule = "every 3"', OPERATION),
    "gradients, horovod": (SMALLER + 'strategy = "horovod"\n', 'stages = ["gradient"]', LEAF),
    "state, ddp": (SMALL + 'strategy = "ddp"\n', 'stages = ["state"]\nsites = ["opt_state/*"]', LEAF),
    "float8": (SMALL + 'precision = "float8"\n', "", OPERATION),
    "zero": (SMALL + 'strategy = "zero"\n', "", OPERATION),
}


def asked(capsys, *words):
    """The answer of a command as JSON, or the one line with which it refuses."""
    capsys.readouterr()
    code = main([*map(str, words)])
    said = capsys.readouterr()
    assert code in (0, 2), said.err
    if code == 2:
        *_, line = said.err.strip().splitlines()
        assert "Traceback" not in said.err
        return line
    return json.loads(said.out.strip().splitlines()[-1])


# Explicit networks have these commands in the tests of each command.
EACH = [pytest.param(name, marks=[] if name == "momentum" else pytest.mark.slow) for name in OWN]
WATCHED = [pytest.param(name, marks=pytest.mark.slow) for name in some(OWN[1:], ["equinox"])]
pytestmark = pytest.mark.usefixtures("compiled_quickly")


@pytest.fixture
def injection(training, tmp_path):
    path = tmp_path / "fault.csv"
    path.write_text(format_injection(injection_of(plan_of(training, "operand"), 0)))
    return path


@pytest.mark.parametrize("training", EACH)
def test_pvf(training, tmp_path, cache, capsys):
    (tmp_path / "plan.toml").write_text(plan_text(training, PVF))
    found = asked(capsys, "pvf", tmp_path / "plan.toml", "--out", tmp_path / "out", "--cache", cache, "--json")
    assert found["cells"] and all(0 <= cell["pvf"] <= 1 for cell in found["cells"].values())


@pytest.mark.parametrize("training", [OWN[0], *WATCHED])
def test_score_with_all_detectors_that_can_watch(training, tmp_path, cache, capsys, monkeypatch):
    monkeypatch.setattr(driver, "PAIRS", 1)  # what detectors cost is another test's
    (tmp_path / "plan.toml").write_text(plan_text(training, SCORE))
    assert main(["init", "--detector", str(tmp_path / "mine.py")]) == 0
    words = (tmp_path / "plan.toml", "--detector", f"{tmp_path / 'mine.py'}:detector", "--out", tmp_path / "out")
    found = asked(capsys, "score", *words, "--cache", cache, "--json")
    watching, others = found["detectors"], found["cannot_watch"]
    own = watching.pop("mine.py:detector")  # one of the user's own beside them
    assert own["fault_free_steps"] == watching["nonfinite"]["fault_free_steps"] and own["false_alarms"] == 0
    assert watching.keys() | others.keys() == {*DETECTORS} - {"replicas"}  # which is of several devices
    assert {"nonfinite", "loss_spike", "replay", "checksum", "history_bound", "activation_range"} <= watching.keys()
    assert "sampled_checksum" in watching and "of all workers together" in others.pop("peers")
    assert all(why.count("\n") == 0 and "do not report: " in why for why in others.values())
    assert watching["nonfinite"]["false_alarms"] == watching["activation_range"]["false_alarms"] == 0


@pytest.mark.parametrize("training", EACH)
def test_formats(training, injection, tmp_path, cache, capsys):
    found = asked(capsys, "formats", injection, "--formats", "float32,bfloat16", "--check", "--json")
    assert ONE_FORMAT in found


@pytest.mark.parametrize("training", EACH)
def test_places(training, injection, cache, capsys):
    found = asked(capsys, "places", injection, "--count", 2, "--steps", 2, "--cache", cache, "--json")
    assert len(found["places"]) == 3


@pytest.mark.parametrize("training", EACH)
def test_map(training, injection, tmp_path, cache, capsys):
    found = asked(capsys, "map", injection, "--steps", 1, "--out", tmp_path / "map", "--cache", cache, "--json")
    (struck,) = found["struck"]
    (row,) = [row for row in found["rows"] if row["name"] == struck]
    assert row["differs"][0] == 1


QUICK, SLOW = "own, once", ("own, permanent, state", "gradients, horovod")
MADE = [QUICK, *(pytest.param(name, marks=pytest.mark.slow) for name in some([*CAMPAIGNS][1:], SLOW))]


@pytest.mark.parametrize("name", MADE)
def test_a_campaigns_map_is_of_the_runs_that_the_campaign_followed(name, tmp_path, cache, capsys):
    """On one machine, every loss of each mapped run is the one that the campaign recorded, bit for bit."""
    training, faults, models = CAMPAIGNS[name]
    table = MAPPED.format(faults=faults, models=models)
    text = training + table if training.startswith("workload") else plan_text(training, table)
    (tmp_path / "plan.toml").write_text(text)
    words = tmp_path / "plan.toml", "--out", tmp_path / "out", "--cache", cache, "--jobs", 1, "--json"
    asked(capsys, "campaign", *words)
    words = "--campaign", tmp_path / "out", "--steps", 1, "--cache", cache, "--json"
    command = [sys.executable, "-m", "fault_injection", "map", *map(str, words)]  # with one thread, as a job has
    found = json.loads(subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout)
    assert [one["number"] for one in found["experiments"]] == [0, 1, 2]
    assert all(one["same"] for one in found["experiments"])
    assert all(one["fate"] for one in found["experiments"])
