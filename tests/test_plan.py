"""Plans: what they mean, what they refuse, and that experiment i depends on nothing but (seed, i)."""

import dataclasses
import json
import math
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from fault_injection.campaign.rates import at_most, stratified, wilson
from fault_injection.faults.fault_models import PUBLISHED_MODELS
from fault_injection.faults.injection_file import format_injection, parse_injection
from fault_injection.machine.errors import InputError
from fault_injection.models.fault import Operand
from fault_injection.questions.outcomes.audits import share_to_audit
from fault_injection.questions.outcomes.plan import restore_plan, sample_size
from fault_injection.questions.outcomes.plan_file import parse_plan, read_plan
from fault_injection.questions.outcomes.sampling import choose, draw_experiment, injection_of

PLAN = """\
workload = "resnet18"

[options]
dataset = "digits"
width = 4
batch_size = 128
epochs = 6

[faults]
experiments = 500
epochs = [2, 4]
stages = ["backward"]
sites = ["basicblock_*", "!*_conv2_grad_in"]
seed = 7

[faults.models]
RD = { weight = 3, values = "worst_case" }
INPUT = { bits = [30, 23] }
N64_WT_GLB = 0.5

[run]
horizon = 20
twins = 2
"""


def test_sites_are_chosen_by_kind():
    whole = parse_plan(PLAN)
    convolutions = parse_plan(PLAN.replace("seed = 7", 'seed = 7\nkinds = ["convolution"]'))
    assert convolutions.sites == whole.sites  # no other is left by the patterns
    both = parse_plan(PLAN.replace('sites = ["basicblock_*", "!*_conv2_grad_in"]', 'kinds = ["dense"]'))
    assert both.sites == ("fc_grad_in", "fc_grad_wt")
    with pytest.raises(InputError, match=r"faults.kinds: no site of the kind 'denes' is left; did you mean 'dense'"):
        parse_plan(PLAN.replace('sites = ["basicblock_*", "!*_conv2_grad_in"]', 'kinds = ["denes"]'))
    with pytest.raises(InputError, match=r"faults.kinds: is of operations; state stands alone"):
        parse_plan(PLAN.replace('["backward"]', '["state"]').replace('sites = ["basicblock_*", "!*_conv2_grad_in"]',
                   'kinds = ["dense"]').partition("[faults.models]")[0] + "[run]\nhorizon = 2\n")  # fmt: skip


def test_sites_are_chosen_by_layer_and_by_depth():
    def sites(rows):
        return parse_plan(PLAN.replace('sites = ["basicblock_*", "!*_conv2_grad_in"]', rows)).sites

    assert sites('layers = ["fc"]') == ("fc_grad_in", "fc_grad_wt")
    everything, order = sites(""), parse_plan(PLAN).workload.sites()
    halves = sites("depth = [0, 0.5]"), sites("depth = [0.5, 1]")
    assert not {*halves[0]} & {*halves[1]}
    assert {*halves[0]} | {*halves[1]} == {*everything}
    layers = [[order[name].layer for name in half] for half in halves]
    forward = list(dict.fromkeys(site.layer for site in order.values() if site.stage == "forward"))
    assert max(map(forward.index, layers[0])) < min(map(forward.index, layers[1]))
    for rows, wrong in [
        ('layers = ["fcc"]', r"faults.layers: no site of the layer 'fcc' is left; did you mean 'fc'"),
        ("depth = [0.5, 0.25]", r"faults.depth: \[0.5, 0.25\]; expected two shares of the forward pass"),
        ('layers = ["fc"]\ndepth = [0, 0.1]', r"faults.depth: no site that is asked for lies so deep"),
    ]:
        with pytest.raises(InputError, match=wrong):
            sites(rows)


def test_every_shipped_plan_is_one(repository):
    plans = {path.stem: read_plan(path) for path in (repository / "injections" / "plans").glob("*.toml")}
    of_images = {"quick", "reference", "lean", "groups", "latent", "fault_free", "first_board"}
    assert plans.keys() == of_images | {"transformer_float32", "transformer_bfloat16", "attention", "dlrm"}
    reference = plans["reference"]
    same = dataclasses.replace(plans["lean"], audit=reference.audit, audit_near=reference.audit_near, audit_open=False)
    assert same == reference  # the same experiments, with the audits that are the default
    assert plans["lean"].audit == share_to_audit(2400, 0.95)
    one, other = (plans[f"transformer_{precision}"] for precision in ("float32", "bfloat16"))
    assert dataclasses.replace(one, workload=other.workload) == other
    stages = repository / "injections" / "plans" / "stages"
    products, gradient, update = (read_plan(stages / f"{name}.toml") for name in ("products", "gradient", "update"))
    assert dataclasses.replace(gradient, sites=update.sites) == update
    assert products.workload == gradient.workload and products.schedule == gradient.schedule


def test_a_shipped_plan_is_checked_as_its_jobs_compute(repository, tmp_path):
    """In a process of its own: finding the plan's operations starts JAX's backend, after which no thread can change."""
    plan = repository / "injections" / "plans" / "quick.toml"
    command = [sys.executable, "-m", "fault_injection", "campaign", str(plan), "--check", "--json"]
    done = subprocess.run([*command, "--cache", str(tmp_path)], cwd=repository, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["golden_epochs_missing"] == 20


@given(st.integers(0, 40), st.integers(1, 40), st.floats(0.5, 0.999))
def test_the_one_sided_bound_is_the_share_with_which_so_few_are_improbable(count, more, confidence):
    total = count + more
    bound = at_most(count, total, confidence)
    assert count / total < bound < 1
    assert stats.binom.cdf(count, total, bound) == pytest.approx(1 - confidence, rel=1e-6)


def test_what_is_absent_is_everything():
    plan = parse_plan('workload = "resnet18"\n[faults]\nhalf_width = 0.05')
    assert plan.experiments == 385
    assert plan.epochs == tuple(range(80))
    assert plan.sites == tuple(plan.workload.sites())
    assert tuple(model.name for model in plan.models) == PUBLISHED_MODELS
    assert (plan.exit, plan.horizon, plan.audit_near) == ("conditions", None, None)
    assert plan.audit == share_to_audit(385, 0.95)


@pytest.mark.parametrize(
    ("half_width", "confidence", "published"), [(0.05, 0.95, 385), (0.01, 0.95, 9604), (0.01, 0.99, 16588)]
)
def test_the_sample_size(half_width, confidence, published):
    assert sample_size(half_width, confidence) == published


def test_a_plan_survives_being_kept():
    plan = parse_plan(PLAN)
    assert restore_plan(json.loads(json.dumps(dataclasses.asdict(plan)))) == plan


MISTAKES = {
    'workload = "resnet18"': (
        'workload = "resnet19"',
        "plan:1: workload: 'resnet19' is unknown; did you mean 'resnet18'?",
    ),
    "experiments = 500": ("experiment = 500", "plan:10: faults.experiment: unknown key; did you mean 'experiments'?"),
    "width = 4": ("width = 0", "plan:5: options.width: '0'; expected a whole number from 1 to 1024"),
    "[run]": ("[runs]", "plan:21: runs: unknown key; did you mean 'run'?"),
    "horizon = 20": ('horizon = "20"', "plan:22: run.horizon: '20'; expected a whole number from 2 to 1000000000"),
    "twins = 2": ("twins = 1", "plan:23: run.twins: 1; a spread needs two at least"),
    "[run]\n": ('[run]\nexit = "full"\n', "plan:23: run.horizon: the exit mode 'full' follows every run to the end"),
    "experiments = 500\n": (
        "half_width = 0.0001\nconfidence = 0.9999\n",
        "plan:10: faults.half_width: takes 378417631 experiments, more than 10000000",
    ),
    "epochs = 6": (f"epochs = {'9' * 5000}", "plan: not TOML:"),
    "epochs = [2, 4]": ("epochs = [2, 6]", "plan:11: faults.epochs: 6 is not among the 6 epochs, 0 to 5"),
    'stages = ["backward"]': ('stages = ["back"]', "plan:12: faults.stages: 'back' is unknown"),
    '"!*_conv2_grad_in"': ('"!conv9"', "plan:13: faults.sites: no site of resnet18 fits '!conv9'"),
    "RD = {": ("RDD = {", "plan:17: faults.models.RDD: unknown fault model; did you mean 'RD'?"),
    "weight = 3": ("weight = -3", "plan:17: faults.models.RD: weight -3; expected a positive number"),
    '"worst_case"': ('"worst"', "plan:17: faults.models.RD: values 'worst' are unknown; did you mean 'worst_case'?"),
    "bits = [30, 23]": ("bits = [32]", "plan:18: faults.models.INPUT: bits [32]; expected distinct bits"),
    "N64_WT_GLB = 0.5": ('N64_WT_GLB = { values = "histogram" }', "the values 'histogram' need histogram = 'FILE'"),
    "batch_size = 128": ("batch_size = 129", "options.batch_size: batch_size 129 is not a multiple of the 8 workers"),
    "seed = 7": ("seed = 7\nhalf_width = 0.1", "plan:9: faults: expected either experiments, or half_width"),
    "width = ": ("width == ", "plan: not TOML:"),
}


@pytest.mark.parametrize("found", MISTAKES)
def test_a_mistake_is_one_line_that_says_where(found):
    wrong, message = MISTAKES[found]
    assert PLAN.count(found) == 1
    with pytest.raises(InputError) as error:
        parse_plan(PLAN.replace(found, wrong))
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_an_experiment_depends_on_its_number_alone():
    plan = parse_plan(PLAN)
    longer = dataclasses.replace(plan, experiments=10**6)
    for number in (499, 3, 77):
        again = choose(longer, draw_experiment(longer, number))
        first = choose(plan, draw_experiment(plan, number))
        assert again.experiment == first.experiment
        for name, of_first in vars(first.bits).items():
            assert (getattr(again.bits, name) == of_first).all()
    other = dataclasses.replace(plan, seed=8)
    assert any(
        draw_experiment(plan, number) != dataclasses.replace(draw_experiment(other, number)) for number in range(5)
    )


def test_experiments_are_drawn_as_the_plan_says():
    plan = parse_plan(PLAN)
    drawn = [draw_experiment(plan, number) for number in range(4000)]

    def fits(values, names, weights):
        seen = [sum(value == name for value in values) for name in names]
        assert sum(seen) == len(values)
        expected = np.array(weights) / sum(weights) * len(values)
        return stats.chisquare(seen, expected).pvalue > 1e-6

    assert fits([e.epoch for e in drawn], plan.epochs, [1, 1])
    assert fits([e.step for e in drawn], range(11), [1] * 11)
    assert fits([e.worker for e in drawn], range(8), [1] * 8)
    assert fits([e.site for e in drawn], plan.sites, [1] * len(plan.sites))
    assert fits([e.model.name for e in drawn], ["RD", "INPUT", "N64_WT_GLB"], [3, 1, 0.5])
    assert fits([e.audited for e in drawn], [True, False], [plan.audit, 1 - plan.audit])


def test_an_experiment_is_an_injection_before_anything_has_run():
    """The fault itself, bit by bit, though its old values are not known yet."""
    plan = parse_plan(PLAN)
    for number in range(40):
        choice = choose(plan, draw_experiment(plan, number))
        injection = choice.injection(plan)
        assert injection == injection_of(plan, number)
        assert parse_injection(format_injection(injection)) == injection
        fault, theirs = injection.fault(), choice.fault
        for name in ("site", "operand", "worker", "index", "source", "keep", "flip"):
            np.testing.assert_array_equal(getattr(fault, name), getattr(theirs, name), name)
        assert (injection.epoch, injection.step) == choice.at
        assert injection.horizon == plan.horizon


def test_no_injection_is_made_of_an_experiment_that_the_plan_has_not():
    plan = parse_plan(PLAN)
    with pytest.raises(InputError, match="experiment 500 is not of this campaign; expected 0 to 499"):
        injection_of(plan, 500)


def test_an_injection_file_in_the_place_of_a_plan_is_named():
    file = format_injection(injection_of(parse_plan(PLAN), 0))
    for text in (file, f"# mine\n\n{file}"):
        with pytest.raises(InputError) as error:
            parse_plan(text, "mine.csv")
        said = "mine.csv: an injection file, not a plan; replay it: python -m fault_injection replay mine.csv"
        assert str(error.value) == said


def test_one_inverted_bit_is_known():
    plan = parse_plan(PLAN)
    for number in range(40):
        choice = choose(plan, draw_experiment(plan, number))
        flips = choice.experiment.model.name == "INPUT"
        assert (choice.one_bit in (30, 23)) if flips else choice.one_bit is None
        assert choice.experiment.operand == {"INPUT": Operand.INPUT, "RD": Operand.OUTPUT}.get(
            choice.experiment.model.name, Operand.WEIGHT
        )


@pytest.mark.parametrize(("count", "total"), [(0, 7), (7, 7), (3, 10), (1, 2000), (385, 770)])
def test_wilsons_interval(count, total):
    expected = stats.binomtest(count, total).proportion_ci(0.99, method="wilson")
    rate = wilson(count, total, 0.99)
    assert math.isclose(rate.low, expected.low, abs_tol=1e-12)
    assert math.isclose(rate.high, expected.high, abs_tol=1e-12)


def test_a_stratified_total_weighs_strata_not_experiments():
    # Half the population is struck always, and was sampled ten times as often as the other half.
    rate = stratified([(1000, 1000, 1.0), (0, 100, 1.0)])
    assert rate.share == 0.5
    proportional = stratified([(30, 100, 1.0), (30, 100, 1.0)])
    plain = wilson(60, 200)
    assert math.isclose(proportional.low, plain.low, rel_tol=0.01)
    assert math.isclose(proportional.high, plain.high, rel_tol=0.01)
    alone = stratified([(5, 1000, 1.0), (1, 1, 1.0)])  # half of it rests on one experiment
    assert alone.low < 0.3 and alone.high > 0.7
