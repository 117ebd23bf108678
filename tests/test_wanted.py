"""Campaigns that want a width: their strata are the plan's, their intervals cover, and they stop when they are told."""

import collections
import dataclasses
import json
import math

import numpy as np
import pytest
from campaign_stores import TOY
from command_line import said
from scipy import stats
from test_sequences import too_few
from wanted_population import constant, honest, inverted, row, simulated, truth, wanted_plan
from whole import some

from fault_injection.campaign.allocation import FIRST
from fault_injection.faults.fault_models import FAULT_MODELS
from fault_injection.faults.number_formats import FLOAT32, format_of
from fault_injection.machine.errors import InputError
from fault_injection.models.fault import Operand
from fault_injection.questions.outcomes.answer import StratifiedAnswer
from fault_injection.questions.outcomes.plan import restore_plan
from fault_injection.questions.outcomes.plan_file import parse_plan
from fault_injection.questions.outcomes.sampling import choose, draw_experiment, injection_of
from fault_injection.questions.outcomes.strata import divided, role_of

BY = 'width = 0.1\nby = ["model", "pass"]\ncell_width = 0.4'
STATE = "[faults.models]\nFLIPS_1 = 1\nFLIPS_2 = 3"
PLANS = {
    "published models": wanted_plan(),
    "by layer": wanted_plan(wanted='width = 0.1\nby = ["layer"]\ncell_width = 0.4'),
    "own bits": wanted_plan(faults="[faults.models]\nINPUT = { weight = 3, bits = [30, 31, 2] }\nLANE_16 = 2\nRD = 1"),
    "two formats": parse_plan(
        'workload = "transformer"\n[options]\nprecision = "bfloat16"\n[faults]\n[faults.models]\nINPUT = 1\n'
        '[wanted]\nwidth = 0.2'
    ),
    "state": wanted_plan(faults=f'stages = ["state"]\nsites = ["params/*", "opt_state/*"]\n{STATE}'),
    "checkpoint": wanted_plan(faults=f'stages = ["checkpoint"]\n{STATE}'),
}  # fmt: skip


# --- strata ---


@pytest.mark.law
@pytest.mark.parametrize("name", PLANS)
def test_strata_with_their_weights_are_the_faults_of_the_plan(name):
    """Marginal distributions of models, sites and bits, each computed here from the plan alone."""
    plan = PLANS[name]
    division = divided(plan)
    kinds = [kind for stratum in division.strata for kind in stratum.kinds]
    assert math.fsum(stratum.weight for stratum in division.strata) == pytest.approx(1, abs=1e-12)
    assert 1 < len(division.strata) <= 400
    sites, models = collections.Counter(), collections.Counter()
    for stratum in division.strata:
        assert math.fsum(kind.weight for kind in stratum.kinds) == pytest.approx(stratum.weight)
        for kind, within in zip(stratum.kinds, stratum.chances, strict=True):
            assert kind.weight == pytest.approx(stratum.weight * within)
            sites[kind.site] += kind.weight
            models[kind.model.name] += kind.weight
    whole = sum(model.weight for model in plan.models)
    assert models == pytest.approx({model.name: model.weight / whole for model in plan.models})
    sizes = {site: math.prod(target.shapes[Operand.INPUT]) for site, target in plan.targets.items()}
    if name != "state":
        sizes = dict.fromkeys(sizes, 1)
    assert sites == pytest.approx({site: size / sum(sizes.values()) for site, size in sizes.items()})
    of_bits = collections.defaultdict(collections.Counter)
    for kind in kinds:
        model = next(model for model in plan.models if model.name == kind.model.name)
        if kind.model != model:  # it is restricted to bits
            bits = dict(kind.model.options)["bits"]
            for bit in bits:
                of_bits[kind.site, model][bit] += kind.weight / len(bits)
    for (site, model), found in of_bits.items():
        format = format_of(plan.targets[site].operands[model.operand].dtype)
        mine = dict(model.options).get("bits", range(format.width))
        each = sites[site] * model.weight / whole / len(mine)
        assert found == pytest.approx(dict.fromkeys(mine, each))


@pytest.mark.law
@pytest.mark.parametrize("name", PLANS)
def test_an_experiment_lies_in_its_stratum(name):
    plan = PLANS[name]
    division, rng = divided(plan), np.random.default_rng(1)
    for number in range(60):
        stratum = int(rng.integers(len(division.strata)))
        drawn = draw_experiment(plan, number, stratum)
        assert drawn == draw_experiment(plan, number, stratum)
        known = dict(zip(division.dimensions, division.strata[stratum].labels, strict=True))
        choice = choose(plan, drawn)
        assert known.get("model", drawn.model.name) == drawn.model.name
        assert known.get("pass", choice.site.stage) == choice.site.stage
        if role := known.get("bit"):
            format = format_of(choice.site.operands[drawn.operand].dtype)
            assert role_of(format, choice.one_bit) == role
        assert injection_of(plan, number, stratum) == choice.injection(plan)
        assert drawn.epoch in plan.epochs and drawn.step in plan.steps


@pytest.mark.law
def test_what_a_stratum_does_not_say_is_drawn_as_ever():
    """Epochs, steps, workers and audits of experiments in strata, against the same of the plan without strata."""
    plan = wanted_plan(run="audit = 0.3\naudit_near = 0.6")
    fixed = dataclasses.replace(plan, wanted=None)
    strata = len(divided(plan).strata)
    ours = [draw_experiment(plan, number, number % strata) for number in range(3000)]
    theirs = [draw_experiment(fixed, number) for number in range(3000)]
    for field in ("epoch", "step", "worker", "audited", "audited_near"):
        values = sorted({getattr(e, field) for e in theirs})
        table = [[sum(getattr(e, field) == value for e in those) for value in values] for those in (ours, theirs)]
        assert sum(table[0]) == 3000 and stats.chi2_contingency(table).pvalue > 1e-3
    with pytest.raises(ValueError, match="expected one exactly if a width is wanted"):
        draw_experiment(plan, 0)
    with pytest.raises(ValueError, match="expected one exactly if a width is wanted"):
        draw_experiment(fixed, 0, 0)


@pytest.mark.law
@pytest.mark.parametrize("name", FAULT_MODELS)
def test_a_model_of_one_element_strikes_one_whatever_the_operand(name):
    rng = np.random.default_rng(0)
    for size in (1000, 4096, 100_000):
        numbers = {len(FAULT_MODELS[name].places(rng, size)) for _ in range(5)}
        assert (numbers == {1}) == FAULT_MODELS[name].one


@pytest.mark.law
def test_a_question_that_makes_too_many_strata_is_refused(monkeypatch):
    plan = wanted_plan(wanted='width = 0.1\nby = ["model", "layer", "bit", "kind", "pass"]\ncell_width = 0.3')
    division = divided(plan)
    assert division.dimensions == ("model", "pass", "kind", "layer", "bit") and not division.left_out
    monkeypatch.setattr("fault_injection.questions.outcomes.strata.MOST", len(division.strata) - 1)
    divided.cache_clear()
    with pytest.raises(InputError, match=rf"wanted.by: by model, .* makes {len(division.strata)} strata; expected"):
        divided(plan)


def test_a_question_that_tells_no_faults_apart_is_refused():
    by_bit = SOUND.replace('by = ["model"]', 'by = ["bit"]').replace("[wanted]", "[faults.models]\nRD = 1\n[wanted]")
    with pytest.raises(InputError, match=r"wanted.by: no fault of this plan has a bit of its own; leave it out"):
        divided(parse_plan(by_bit))


def test_what_strata_do_not_tell_apart_is_left_out(monkeypatch):
    monkeypatch.setattr("fault_injection.questions.outcomes.strata.MANY", 20)
    divided.cache_clear()
    assert divided(wanted_plan(seed=77)).dimensions == ("model",)
    assert divided(wanted_plan(seed=77)).left_out == ("pass", "kind", "layer", "bit")
    divided.cache_clear()


@pytest.mark.law
def test_bits_are_told_apart_by_what_they_are_for():
    found = collections.Counter(role_of(FLOAT32, bit) for bit in range(32))
    assert found == {"sign": 1, "highest exponent bit": 1, "other exponent bits": 7, "mantissa": 23}
    assert {role_of(format_of(np.dtype("int8")), bit) for bit in range(8)} == {"bits of an integer"}


# --- what is known, and when it ends ---


RUNS = {
    "honest": (honest, "audit = 0.2"),
    "near ones audited more": (honest, "audit = 0.1\naudit_near = 0.5"),
    "everything masked": (constant, "audit = 0.3"),
    "inverted": (inverted, "audit = 0.3"),
    "exact": (honest, 'exit = "exact"'),
}


def covered(run, seeds, wanted):
    """Of each rate, how many of so many campaigns contained it at every block's end, and how far each campaign came."""
    verdict, text = RUNS[run]
    found = [simulated(wanted_plan(seed, wanted, text), verdict) for seed in range(seeds)]
    return np.sum([inside for _, inside in found], axis=0), [answer for answer, _ in found]


@pytest.mark.parametrize("run", RUNS)
def test_intervals_cover_when_campaigns_stop(run):
    inside, answers = covered(run, 3, "width = 0.18")
    assert not any(too_few(each, 3) for each in inside)
    for answer in answers:
        first, *_ = answer.rates()
        assert first.rate.high - first.rate.low <= 0.18 and first.answer == "as wide as asked"


@pytest.mark.slow
@pytest.mark.parametrize("run", some([*RUNS], ["inverted"]))
def test_intervals_cover_in_many_campaigns(run):
    """Of the rate that is asked for, and of each that is only reported, at every block's end."""
    inside, _ = covered(run, 18, "width = 0.12")
    assert inside[0] >= 17 and inside.mean() / 18 >= 0.94 and not any(too_few(each, 18) for each in inside)


def test_early_verdicts_that_are_believed_would_not_cover():
    """Those that say of everything that it is masked, and the share that they alone would give."""
    answer, _ = simulated(wanted_plan(3, "width = 0.15", "audit = 0.3"), constant)
    first, *_ = answer.rates()
    assert truth(answer, first) > 0.1 and first.rate.low > 0 and first.rate.guesses > first.rate.audits > 0


def test_every_rate_that_is_asked_for_is_as_wide_as_asked():
    answer, inside = simulated(wanted_plan(1, BY, 'exit = "exact"'))
    asked = [one for one in answer.rates() if one.asked]
    assert {(one.dimension, one.name) for one in asked[1:] if one.dimension == "pass"} == {
        ("pass", "forward"),
        ("pass", "backward"),
    }
    assert len(asked) == 1 + 15 + 2 and inside[0]
    for one in asked:
        assert one.rate.high - one.rate.low <= (0.4 if one.dimension else 0.1) == one.width
        assert one.more == 0 and one.answer == "as wide as asked"
    assert answer.more == 0 and answer.standing == "18 of 18 rates are as wide as asked"
    reported = [one for one in answer.rates() if not one.asked]
    assert {one.dimension for one in reported} >= {"", "kind", "bit"} and all(one.answer == "" for one in reported)
    assert all(json.loads(json.dumps(one.as_dict()))["width"] is None for one in reported)


def test_a_rare_outcome_and_several_together():
    for outcome in ("SlowDegrade", ["SlowDegrade", "Immediate INFs/NaNs"]):
        plan = wanted_plan(2, f"outcome = {json.dumps(outcome)}\nwidth = 0.1", 'exit = "exact"')
        answer, inside = simulated(plan)
        first, *_ = answer.rates()
        assert first.outcome == (outcome if isinstance(outcome, str) else " or ".join(outcome)) and inside[0]
        assert first.rate.low <= truth(answer, first) <= first.rate.high
        whole = next(one for one in answer.rates() if one.outcome == "not masked" and not one.dimension)
        assert truth(answer, first) == pytest.approx(truth(answer, whole) * (0.1 if isinstance(outcome, str) else 1))


def test_a_campaign_that_may_not_go_on_says_what_it_needs():
    plan = wanted_plan(4, "width = 0.02", 'exit = "exact"', "experiments = 300")
    answer, _ = simulated(plan)
    first, *_ = answer.rates()
    assert 300 - 64 < answer.experiments <= 300
    assert first.answer == f"needs about {first.more:,} more" and answer.more >= first.more > 300
    assert answer.standing.startswith("0 of 1 rate is as wide as asked, about ")


def rows_of(plan, block, rng):
    """What came of a block."""
    drawn = zip(block.numbers, block.strata, strict=True)
    return [row(plan, draw_experiment(plan, number, stratum), honest, rng) for number, stratum in drawn]


@pytest.mark.law
def test_a_campaign_that_grows_goes_on_where_it_stopped():
    """By its number or by its width: as in one go, bit by bit, where one rate is asked for."""

    def made(widths, number=2000, rows=None, blocks=()):
        plan = wanted_plan(5, f"width = {widths}", "audit = 0.2", f"experiments = {number}")
        answer, rows = StratifiedAnswer(plan), {} if rows is None else rows
        made_blocks, rng = [], np.random.default_rng(0)
        while block := (blocks[answer.blocks] if answer.blocks < len(blocks) else answer.next()):
            made_blocks.append(block)
            for n, h in zip(block.numbers, block.strata, strict=True):
                rng = np.random.default_rng([5, n])
                rows.setdefault(n, row(plan, draw_experiment(plan, n, h), honest, rng))
            answer.observe(block, [rows[n] for n in block.numbers])
        return answer, rows, made_blocks

    whole, _, blocks = made(0.08)
    short, some, first = made(0.08, number=200)
    grown, _, then = made(0.08, rows=dict(some), blocks=first)
    assert 64 <= short.experiments <= 200 < whole.experiments == grown.experiments
    assert whole.rates() == grown.rates() and then == blocks
    wide, some, first = made(0.2)
    narrow, more, then = made(0.08, rows=dict(some), blocks=first)
    assert then[: len(first)] == first and some.items() <= more.items() and narrow.experiments > wide.experiments
    again, _, _ = made(0.08, rows=dict(more), blocks=then)
    assert again.rates() == narrow.rates()
    assert narrow.rates() == whole.rates() and narrow.rates()[0].rate.high - narrow.rates()[0].rate.low <= 0.08


@pytest.mark.law
def test_who_looks_in_between_changes_nothing():
    plan = wanted_plan(6, "width = 0.15")
    looked, plain, rng = StratifiedAnswer(plan), StratifiedAnswer(plan), np.random.default_rng(6)
    for _ in range(4):
        block = looked.next()
        rows = rows_of(plan, block, rng)
        looked.observe(block, rows)
        plain.observe(block, rows)
        for _ in range(3):
            looked.rates(), looked.next(), looked.standing
    assert looked.rates() == plain.rates() and looked.next() == plain.next()


@pytest.mark.law
def test_what_is_not_known_is_no_observation():
    plan = wanted_plan(7)
    answer = StratifiedAnswer(plan)
    block, rng = answer.next(), np.random.default_rng(7)
    rows = rows_of(plan, block, rng)
    for change, message in [
        ({"outcome": "Undecided"}, r"experiment 3 is undecided"),
        ({"outcome": "SlowDegrade", "exit": "conditions", "audit_outcome": None}, r"experiment 3: nobody followed"),
    ]:
        with pytest.raises(InputError, match=message):
            answer.observe(block, [{**each, **change} if n == 3 else each for n, each in enumerate(rows)])
    assert answer.blocks == answer.experiments == 0 and not answer.counts.any()


# --- plans ---


SOUND = f"""
workload = "{TOY}:linear"
[faults]
experiments = 500
[wanted]
outcome = "not masked"
width = 0.2
by = ["model"]
cell_width = 0.4
[run]
exit = "conditions"
"""
MISTAKES = {
    "no width": ("width = 0.2\n", "", "wanted: no width = …"),
    "a width of nothing": ("width = 0.2", "width = 0", "wanted.width: 0; expected a number from 0.0001"),
    "an unknown outcome": ('"not masked"', '"not maskd"', "wanted.outcome: 'not maskd' is unknown; did you mean"),
    "what is left": ('"not masked"', '"Masked"', "wanted.outcome: 'Masked' is all that is not 'not masked'"),
    "undecided": ('"not masked"', '"Undecided"', "wanted.outcome: 'Undecided' is unknown"),
    "both": ('"not masked"', '["not masked", "SlowDegrade"]', "wanted.outcome: expected 'not masked' alone"),
    "twice": ('"not masked"', '["SlowDegrade", "SlowDegrade"]', "wanted.outcome: expected 'not masked' alone"),
    "by what is not": ('["model"]', '["modle"]', "wanted.by: 'modle' is unknown; did you mean 'model'"),
    "by it twice": ('["model"]', '["model", "model"]', "wanted.by: one of them is listed twice"),
    "no cell width": ("cell_width = 0.4\n", "", "wanted: by and cell_width belong together"),
    "no by": ('by = ["model"]\n', "", "wanted: by and cell_width belong together"),
    "another key": ("width = 0.2", "width = 0.2\nwith = 1", "wanted.with: unknown key; did you mean 'width'"),
    "half a width": ("experiments = 500", "half_width = 0.1", "faults.half_width: a plan has either this, or [wanted]"),
    "confidence": ("experiments = 500", "confidence = 0.9", "faults.confidence: a plan has either this, or [wanted]"),
    "no block": ("experiments = 500", f"experiments = {FIRST - 1}", f"expected a whole number from {FIRST} to"),
    "a horizon": ('"conditions"', '"conditions"\nhorizon = 5', "run.horizon: leaves runs undecided"),
    "no audits": ('"conditions"', '"conditions"\naudit = 0', "run.audit: 0; expected a share above 0"),
    "nothing drawn": (
        "[faults]\nexperiments = 500",
        '[start]\nlogs = ["a"]',
        "wanted: nothing is drawn of a plan with",
    ),
    "neither": (SOUND[SOUND.index("[wanted]") : SOUND.index("[run]")], "", None),
}


@pytest.mark.law
@pytest.mark.parametrize("what", MISTAKES)
def test_a_question_that_cannot_be_meant_is_one_line(what, tmp_path, capsys):
    before, after, message = MISTAKES[what]
    plan = tmp_path / "plan.toml"
    assert before in SOUND
    plan.write_text(SOUND.replace(before, after))
    if message is None:
        assert parse_plan(plan.read_text()).wanted is None
        return
    code, out, err = said(capsys, "campaign", plan, "--out", tmp_path / "out", "--jobs", "1")
    assert code == 2 and err.count("\n") == 1 and message in err and not out and not (tmp_path / "out").exists()


@pytest.mark.law
def test_a_plan_is_kept_and_restored():
    plan = parse_plan(SOUND)
    assert plan.audit == 0.1 and plan.confidence == 0.95 and plan.experiments == 500
    assert restore_plan(json.loads(json.dumps(dataclasses.asdict(plan)))) == plan
    assert "0.2 wide, and 0.4 by model at 95%, at most 500 experiments" in plan.sentence()
    bad = {"width": -1.0, "by": ["hour"], "outcome": ["Masked"], "cell_width": None}
    for field, value in bad.items():
        kept = dataclasses.asdict(plan)
        kept["wanted"] = {**kept["wanted"], field: value}
        with pytest.raises(ValueError, match="wanted"):
            restore_plan(kept)
    with pytest.raises(ValueError, match="wanted"):
        restore_plan({**dataclasses.asdict(plan), "horizon": 5})


@pytest.mark.law
def test_only_what_decides_an_experiment_is_its_plan():
    plan = parse_plan(SOUND)
    same = [SOUND.replace("0.2", "0.1"), SOUND.replace("0.4", "0.3"), SOUND.replace("500", "900")]
    other = [SOUND.replace('"not masked"', '"SlowDegrade"'), SOUND.replace('["model"]', '["pass"]')]
    other += [SOUND.replace("width = 0.2", "width = 0.2\nconfidence = 0.9")]
    assert all(parse_plan(text).identity() == plan.identity() for text in same)
    assert all(parse_plan(text).identity() != plan.identity() for text in other)
    fixed = parse_plan(SOUND.replace(MISTAKES["neither"][0], ""))
    assert "wanted" not in fixed.identity() and "wanted" in plan.identity()
