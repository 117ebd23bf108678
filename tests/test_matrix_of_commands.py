"""Commands × trainings: each command works for a training, or one line says why it does not."""

import json

import pytest
from test_matrix import as_users_have_it, plan_of  # noqa: F401  a fixture
from whole import some

from fault_injection.commands.main import main
from fault_injection.detection.registry import DETECTORS
from fault_injection.faults.injection_file import format_injection
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
