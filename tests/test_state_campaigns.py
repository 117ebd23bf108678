"""Campaigns whose faults strike the state, or strike again: drawn by size, judged as replays are, and reported."""

import sqlite3

import numpy as np
import pytest
from command_line import answer
from strict_html import check_html
from whole import only_whole

from fault_injection.commands.main import main
from fault_injection.faults.injection import ALL
from fault_injection.machine.errors import InputError
from fault_injection.questions.outcomes.conditions import Conditions, Seen
from fault_injection.questions.outcomes.early_verdict import Envelope
from fault_injection.questions.outcomes.plan_file import parse_plan
from fault_injection.questions.outcomes.sampling import choose, draw_experiment, injection_of
from fault_injection.runs.golden_run import Golden
from fault_injection.runs.records import rows_of
from fault_injection.runs.replay_run import replay
from fault_injection.seam.leaves import Role
from fault_injection.seam.stages import STATE

pytestmark = pytest.mark.usefixtures("compiled_quickly")

PLAN = """\
workload = "resnet18"
[options]
dataset = "digits"
width = 4
[faults]
experiments = 1000
stages = ["state"]
sites = ["params/*", "opt_state/v/*"]
[faults.models]
FLIPS_1 = 1
FLIPS_16 = 1
"""
TOY = """\
workload = "{workload}"
[faults]
experiments = 40
stages = ["state"]
schedule = "{schedule}"
[faults.models]
FLIPS_1 = 1
FLIPS_2 = 1
[run]
exit = "{exit}"
"""


def test_running_statistics_of_norms_are_no_scales_of_formats():
    """Training reads a scale, so a run in which one was struck is not projected."""
    float32, float8 = (
        parse_plan(PLAN.replace("width = 4", f'width = 4\nprecision = "{f}"')) for f in ("float32", "float8")
    )
    programs = [plan.workload.program(frozenset()) for plan in (float32, float8)]
    leaf = next(leaf.name for leaf in programs[0].state.leaves if leaf.role == Role.VARIANCE)
    norms = [{program.state.names[place] for place in program.state.norms} for program in programs]
    assert leaf in norms[0] and norms[0] == norms[1]
    statistics = {leaf.name for leaf in programs[1].state.leaves if leaf.name.startswith("stats/")}
    assert norms[0] == {name for name in statistics if not name.startswith("stats/maxima/")} < statistics


def test_leaves_are_drawn_by_their_size_and_elements_uniformly():
    plan = parse_plan(PLAN)
    sizes = {name: int(np.prod(site.shapes[0])) for name, site in plan.targets.items()}
    drawn = [choose(plan, draw_experiment(plan, number)) for number in range(1000)]
    largest = max(sizes, key=sizes.get)
    share = sizes[largest] / sum(sizes.values())
    found = np.mean([choice.site.name == largest for choice in drawn])
    assert abs(found - share) < 4 * (share * (1 - share) / 1000) ** 0.5
    assert {choice.experiment.worker for choice in drawn} == {ALL}
    counts = {len(choice.bits.index) for choice in drawn}
    assert 16 in counts and 1 in counts and max(counts) == 16
    for choice in drawn:
        assert (
            len(set(choice.bits.index.tolist())) == len(choice.bits.index)
            and choice.bits.index.max() < sizes[choice.site.name]
        )
        assert all(int(mask).bit_count() == 1 for mask in choice.bits.flip)


@pytest.mark.parametrize(
    ("schedule", "exit"),
    [
        ("once", "conditions"),
        pytest.param("permanent", "exact", marks=pytest.mark.slow),
        pytest.param("every 3", "full", marks=[pytest.mark.slow, only_whole]),
    ],
)
def test_experiments_come_to_the_verdicts_of_their_replays(capsys, tmp_path, repository, schedule, exit):
    plan, out = tmp_path / "plan.toml", tmp_path / "out"
    workload = f"{repository / 'tests' / 'toy.py'}:linear"
    plan.write_text(TOY.format(workload=workload, schedule=schedule, exit=exit))
    cache = ["--cache", tmp_path / "cache"]
    assert answer(capsys, "campaign", plan, "--out", out, *cache, "--jobs", 1)["done"] == 40
    rows = sqlite3.connect(out / "campaign.sqlite").execute("SELECT number, stage, outcome FROM experiments").fetchall()
    assert {stage for _, stage, _ in rows} == {STATE}
    assert len({outcome for *_, outcome in rows}) > 1
    found = parse_plan(plan.read_text(), plan)
    golden = Golden(found.workload, found.workload.program(frozenset()), tmp_path / "replays")
    for number, _, outcome in rows[:6]:
        injection = injection_of(found, number)
        assert str(injection.schedule) == schedule
        assert replay(injection, golden).outcome.outcome == outcome
    assert main(["report", str(out)]) == 0
    check_html((out / "report.html").read_text())

    # An early verdict looks at every array: a parameter that is not a number does not show in the optimizer's history.
    envelope, row = Envelope(golden.program.state, Conditions()), rows_of(golden.fetch_record(0), 1)[0]
    for leaf in range(len(golden.program.state.watched)):
        value = row.magnitude.copy()
        for finite in (True, False):
            seen = envelope.after(Seen(), row._replace(magnitude=value), row, None)
            assert seen.finite == finite
            value[leaf] = np.nan


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (('["state"]', '["state", "forward"]'), "'state' stands alone: a plan strikes operations, or such leaves"),
        (("opt_state/v/*", "opt_state/w/*"), "no site of resnet18 fits 'opt_state/w/*'"),
        (("FLIPS_1 = 1", "RD = 1"), "strikes the output of an operation, and a leaf is no operation"),
        (("[faults.models]", 'schedule = "permanent"\n[faults.models]'), "does not go with the exit mode 'conditions'"),
        (("[faults.models]", 'schedule = "often"\n[faults.models]'), "expected once, permanent, steps N (from 2)"),
    ],
)
def test_mistakes(change, message):
    with pytest.raises(InputError, match="plan") as error:
        parse_plan(PLAN.replace(*change))
    assert message in str(error.value)
