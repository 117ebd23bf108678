"""A program that nothing here knows goes through everything: golden run, replay, campaign, report."""

import json
import subprocess
import sys

import pytest
from command_line import answer
from strict_html import check_html

from fault_injection.commands.main import main
from fault_injection.faults.injection_file import read_injection
from fault_injection.machine.sources import ROOT
from fault_injection.runs.outcome import IMMEDIATE, MASKED, OUTCOMES

INJECTION = """\
# a comment
model,{workload}
stage,{stage}
fmodel,RD
target_worker,1
target_layer,{layer}
target_epoch,1
target_step,3
inj_pos,{position}
inj_values,{value}
learning_rate,0.1
seed,123
"""

PLAN = """\
workload = "{workload}"
[faults]
experiments = 50
[faults.models]
RD = 1
INPUT = 1
[run]
twins = 2
"""


@pytest.fixture(scope="module")
def workload(repository):
    return f"{repository / 'tests' / 'toy.py'}:linear"


@pytest.mark.parametrize(
    ("stage", "layer", "position", "value", "outcome"),
    [
        ("fwrd_inject", "fc", "3/0", "nan", IMMEDIATE),
        ("fwrd_inject", "fc", "3/0", "-2", MASKED),
        ("bkwd_inject", "fc_grad_wt", "2/0", "inf", IMMEDIATE),
    ],
)
def test_a_replay_of_a_program_of_ones_own(capsys, tmp_path, cache, workload, stage, layer, position, value, outcome):
    file = tmp_path / "mine.csv"
    file.write_text(INJECTION.format(workload=workload, stage=stage, layer=layer, position=position, value=value))
    found = answer(capsys, "replay", file, "--cache", cache, "--out", tmp_path / "out")
    assert found["outcome"] == outcome
    assert found["measure"]["better"] == "lower"
    assert "accuracy" not in (tmp_path / "out" / "replay_mine.txt").read_text()
    assert (tmp_path / "out" / "curves.png").stat().st_size > 10_000


def test_a_metric_of_which_less_is_better_is_judged(capsys, tmp_path, cache, workload):
    """A slope that is off by 10⁶ has not come back after three epochs: the loss ends above the golden one's."""
    file = tmp_path / "mine.csv"
    file.write_text(
        INJECTION.format(workload=workload, stage="bkwd_inject", layer="fc_grad_wt", position="0/0", value="1e7")
    )
    found = answer(capsys, "replay", file, "--cache", cache, "--out", tmp_path / "out")
    assert found["outcome"] not in (MASKED, IMMEDIATE)
    assert found["worse"]["train"] > 0


@pytest.fixture(scope="module")
def campaign(tmp_path_factory, cache, workload):
    """A plan of 50 experiments, the folder of its campaign, and what the command answered."""
    plan, out = tmp_path_factory.mktemp("plan") / "plan.toml", tmp_path_factory.mktemp("campaign") / "out"
    plan.write_text(PLAN.format(workload=workload))
    command = [sys.executable, "-m", "fault_injection", "campaign", plan, "--out", out, "--cache", cache, "--jobs", "1"]
    done = subprocess.run([*command, "--json"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("\n") == 1
    return plan, out, json.loads(done.stdout)


def test_a_campaign_of_a_program_of_ones_own(capsys, campaign):
    _, out, done = campaign
    assert (done["done"], done["left"], done["resumable"]) == (50, 0, False)
    assert sum(rate["found"] for rate in done["outcomes"].values()) == 50
    assert done["outcomes"].keys() <= set(OUTCOMES)
    assert answer(capsys, "status", out) == done


def test_the_report_of_a_program_of_ones_own(capsys, campaign):
    _, out, _ = campaign
    answer(capsys, "report", out)
    page = (out / "report.html").read_text()
    check_html(page)
    assert "accuracy" not in page


def test_an_experiment_of_a_program_of_ones_own_is_replayed_from_its_file(capsys, tmp_path, cache, workload, campaign):
    _, out, _ = campaign
    exported = main(["export", str(out), "--id", "7", "--out", str(tmp_path)])
    assert exported == 0
    capsys.readouterr()
    injection = read_injection(tmp_path / "experiment_7.csv")
    again = answer(capsys, "replay", tmp_path / "experiment_7.csv", "--cache", cache, "--out", tmp_path / "seven")
    assert injection.workload.name == workload
    assert again["outcome"] in OUTCOMES


def test_check_says_what_a_campaign_needs_and_runs_nothing(campaign, cache, tmp_path):
    """With and without its golden run; in processes of their own, since a campaign computes with one thread."""
    plan, _, _ = campaign

    def check(*options):
        command = [sys.executable, "-m", "fault_injection", "campaign", plan, "--check", *map(str, options)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    before = sorted(cache.rglob("*"))
    there = json.loads(check("--cache", cache, "--json"))
    said = check("--cache", tmp_path)
    assert sorted(cache.rglob("*")) == before and not list(tmp_path.rglob("*.npz"))
    assert there["golden_epochs_missing"] == 0 and there["seconds_per_step"] > 0 and there["disk_bytes"] > 0
    assert there["golden_steps"] == 2 * 4 * 8  # of the twins
    assert sum(there["experiments_by_model"].values()) == 50 and there["experiments_by_model"].keys() == {"RD", "INPUT"}
    assert there["steps_per_experiment"] == [1, 16.5]  # of 32 steps; the earliest verdict takes one
    audits = there["audits"]
    assert audits["audits"] == pytest.approx(audits["share"] * 0.75 * 50) and audits["steps"] > 0
    assert audits["full"] < audits["width"] < 1
    assert said.startswith(there["plan"])
    for part in (
        "Needs a golden run of 4 epochs of 8 steps",
        "none of it has been made yet",
        "It is another golden run than a replay's: on CPUs each job computes with one thread",
        "Disk: up to ",
        "2 twins, and the states",
        "of early verdicts are followed to the end, about ",
        "Time: not known before a golden run",
    ):
        assert part in said
