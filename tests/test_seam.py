"""A program that nothing here knows goes through everything: golden run, replay, campaign, report."""

import json

import pytest
from strict_html import check_html

from fault_injection.commands.main import main
from fault_injection.faults.injection_file import read_injection
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
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def workload(repository):
    return f"{repository / 'tests' / 'toy.py'}:linear"


def answer(capsys, *arguments):
    """The line of JSON that a command prints."""
    code = main([*map(str, arguments), "--json"])
    out, err = capsys.readouterr()
    assert code == 0, err
    return json.loads(out)


@pytest.mark.parametrize(
    ("stage", "layer", "position", "value", "outcome"),
    [
        ("fwrd_inject", "fc", "3/0", "nan", IMMEDIATE),
        ("fwrd_inject", "fc", "3/0", "50", MASKED),
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
        INJECTION.format(workload=workload, stage="bkwd_inject", layer="fc_grad_wt", position="0/0", value="1e9")
    )
    found = answer(capsys, "replay", file, "--cache", cache, "--out", tmp_path / "out")
    assert found["outcome"] not in (MASKED, IMMEDIATE)
    assert found["worse"]["train"] > 0


def test_a_campaign_of_a_program_of_ones_own(capsys, tmp_path, cache, workload):
    plan, out = tmp_path / "plan.toml", tmp_path / "out"
    plan.write_text(PLAN.format(workload=workload))
    done = answer(capsys, "campaign", plan, "--out", out, "--jobs", 1, "--cache", cache)
    assert (done["done"], done["left"], done["resumable"]) == (50, 0, False)
    assert sum(rate["found"] for rate in done["outcomes"].values()) == 50
    assert done["outcomes"].keys() <= set(OUTCOMES)
    assert answer(capsys, "status", out) == done
    answer(capsys, "report", out)
    page = (out / "report.html").read_text()
    check_html(page)
    assert "accuracy" not in page

    exported = main(["export", str(out), "--id", "7"])
    assert exported == 0
    injection = read_injection(out / "export" / "experiment_7.csv")
    again = answer(capsys, "replay", out / "export" / "experiment_7.csv", "--cache", cache, "--out", tmp_path / "seven")
    assert injection.workload.name == workload
    assert again["outcome"] in OUTCOMES
