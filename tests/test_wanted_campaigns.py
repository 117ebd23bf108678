"""Campaigns that want a width, as they run: interrupted, grown, damaged and reported, every experiment once."""

import concurrent.futures
import contextlib
import csv
import dataclasses
import json
import random
import sqlite3
import time

import killed
import momentum_training
import numpy as np
import pytest
from campaign_stores import TOY, Inline, fill, toy_plan
from command_line import answer as json_of
from command_line import said
from strict_html import check_html

from fault_injection.campaign.executors import Slot
from fault_injection.campaign.task import Task
from fault_injection.campaign.wording import percent, share
from fault_injection.faults.injection_file import read_injection
from fault_injection.machine.errors import InputError
from fault_injection.models.fault import Operand
from fault_injection.questions.outcomes import jobs
from fault_injection.questions.outcomes.answer import answer_of, injections_of
from fault_injection.questions.outcomes.conditions import CONDITIONS, Rule
from fault_injection.questions.outcomes.driver import campaign
from fault_injection.questions.outcomes.plan_file import parse_plan
from fault_injection.questions.outcomes.report.facts import Facts
from fault_injection.questions.outcomes.sampling import choose, draw_experiment
from fault_injection.questions.outcomes.schema import TABLES
from fault_injection.questions.outcomes.standing import standing
from fault_injection.questions.outcomes.store import NAME, Store
from fault_injection.questions.outcomes.strata import divided
from fault_injection.runs.outcome import MASKED

pytestmark = pytest.mark.usefixtures("compiled_quickly")

PLAN = """
workload = "{workload}"
[faults]
{faults}
{experiments}
[wanted]
width = {width}
{by}
[run]
{run}
"""
MODELS = "seed = 2\nmodels = { RD = 1, INPUT = 1, ZERO = 1 }"


def text(width=0.4, run='exit = "exact"', faults=MODELS, experiments="", by="", workload=f"{TOY}:linear"):
    return PLAN.format(**locals())


def run(out, cache, plan):
    """A campaign in this process, by the jobs themselves."""
    slot = Slot(Inline, lambda: 1, (concurrent.futures.BrokenExecutor,), Inline())
    campaign(Task(plan, cache=cache), out, contextlib.nullcontext([slot]))


def known(folder):
    """What a store has of experiments, in the order of their numbers, and of blocks; and the rates."""
    with Store(folder) as store:
        rows = store.query("SELECT number, epoch, step, site, model, outcome, exit, audit_outcome FROM experiments")
        return sorted(map(tuple, rows)), store.blocks(), answer_of(store, store.plan()).rates()


@pytest.fixture(scope="module")
def whole(tmp_path_factory, cache):
    """A campaign that nothing disturbs, with early verdicts and cells."""
    out = tmp_path_factory.mktemp("whole") / "out"
    run(out, cache, parse_plan(text(0.4, "audit = 0.5", by='by = ["model"]\ncell_width = 0.7')))
    return out


def test_every_experiment_is_there_once_and_in_its_stratum(whole):
    rows, blocks, rates = known(whole)
    assert [row[0] for row in rows] == list(range(blocks[-1].numbers.stop)) and len(blocks) > 1
    assert all(one.answer == "as wide as asked" for one in rates if one.asked)
    with Store(whole) as store:
        plan, strata = store.plan(), store.strata()
    for number, epoch, step, site, model, *_ in rows:
        e = draw_experiment(plan, number, strata[number])
        assert (e.epoch, e.step, e.site, e.model.name) == (epoch, step, site, model)


@pytest.mark.parametrize("way", [pytest.param("exact", marks=pytest.mark.slow), "conditions"])
def test_interrupted_and_grown_it_comes_to_what_it_comes_to_in_one_go(tmp_path, cache, monkeypatch, way):
    """Interrupted after any number of experiments, a dozen times, and grown twice by its number."""
    ways = {"exact": 'exit = "exact"', "conditions": "audit = 0.5"}
    wanted = {"width": 0.25 if way == "exact" else 0.35, "run": ways[way]}
    plans = [parse_plan(text(**wanted, experiments=most)) for most in ("experiments = 70", "experiments = 110", "")]
    run(tmp_path / "whole", cache, plans[-1])
    rng, made, experiment = random.Random(3), [], jobs.experiment

    def disturbed(task, key, number, **options):
        if rng.random() < 0.08:
            raise KeyboardInterrupt
        made.append(number)
        return experiment(task, key, number, **options)

    monkeypatch.setattr(jobs, "experiment", disturbed)
    stops = 0
    for plan in plans:
        while True:
            try:
                run(tmp_path / "out", cache, plan)
                break
            except KeyboardInterrupt:
                stops += 1
    rows, blocks, _ = expected = known(tmp_path / "whole")
    assert stops >= 4 and len(blocks) > 1 and known(tmp_path / "out") == expected
    assert {*made} == {row[0] for row in rows} and len(made) - len(rows) <= 2 * stops  # what was not kept is lost


def test_a_smaller_width_goes_on_with_all_that_is_there(tmp_path, cache, capsys):
    run(tmp_path, cache, parse_plan(text(0.5)))
    rows, blocks, [rate, *_] = known(tmp_path)
    assert 0.3 < rate.rate.high - rate.rate.low <= 0.5
    run(tmp_path, cache, parse_plan(text(0.5)))
    assert f"all {len(rows)} experiments are done, and 1 of 1 rate is as wide" in capsys.readouterr().err
    run(tmp_path, cache, parse_plan(text(0.3)))
    more, then, [rate, *_] = known(tmp_path)
    assert more[: len(rows)] == rows and then[: len(blocks)] == blocks and len(more) > len(rows)
    assert rate.rate.high - rate.rate.low <= 0.3
    assert [block.widths[0] for block in then] == [0.5] * len(blocks) + [0.3] * (len(then) - len(blocks))
    for other, message in [
        (text(0.3, faults=f"{MODELS}\nepochs = [1]"), "the campaign of another plan (epochs differ)"),
        (text(0.3, by='by = ["model"]\ncell_width = 0.5'), "the campaign of another plan (wanted differ)"),
        (text(0.3, experiments="experiments = 64"), "a plan can only grow"),
    ]:
        with pytest.raises(InputError) as error:
            run(tmp_path, cache, parse_plan(other))
        assert message in str(error.value)


# --- what is shown ---


def table(path):
    """The rows of an exported table."""
    with path.open() as file:
        return list(csv.DictReader(file))


def test_every_number_that_is_shown_is_weighted(whole, capsys, tmp_path):
    """The terminal, JSON, the page and the table of rates say the same; plain shares are nowhere."""
    rates = known(whole)[2]
    first, plain = rates[0], rates[0].rate.found / rates[0].rate.total
    assert abs(plain - first.rate.share) > 1e-3  # or this test would see nothing
    shown = share(first.rate)
    code, out, _ = said(capsys, "status", whole)
    assert code == 0 and shown in out and "as wide as asked" in out and "It is complete" in out
    found = json_of(capsys, "status", whole)
    assert found["rates"] == json.loads(json.dumps([one.as_dict() for one in rates]))
    assert found["not_masked"]["share"] == first.rate.share and found["left"] == 0 and not found["resumable"]
    assert found["outcomes"][MASKED]["share"] == pytest.approx(1 - first.rate.share)
    page = json_of(capsys, "report", whole)["report"]
    html = (whole / "report.html").read_text()
    check_html(html)
    assert str(page).endswith("report.html") and shown in html and "as wide as asked" in html
    assert f"{percent(plain)} %" not in html
    assert "GROUP BY model" not in html  # no query that counts rows for a rate
    assert said(capsys, "export", whole, "--out", tmp_path)[0] == 0
    exported = table(tmp_path / "rates.csv")
    assert [float(row["share"]) for row in exported] == [one.rate.share for one in rates]


def test_a_fleet_card_has_the_weighted_rates(whole, capsys):
    assert said(capsys, "report", whole, "--fleet", "devices=1000,fit=1000")[0] == 0
    card = json.loads((whole / "fleet.json").read_text())
    rates = {one.outcome: one.rate for one in known(whole)[2] if not one.dimension}
    assert card["rates"]["not masked"] == rates["not masked"]._asdict()
    faults = 1000 * card["hours_a_month"] * 1e-6
    assert card["expected_a_month"]["not masked"][1] == pytest.approx(faults * rates["not masked"].share)
    loud = card["rates"]["outcomes with a loss that is not finite"]
    both = rates["Immediate INFs/NaNs"].share + rates["Short-term INFs/NaNs"].share
    assert loud["share"] == pytest.approx(both) and loud["low"] <= both <= loud["high"]
    assert "GROUP BY" not in (whole / "fleet.html").read_text()


def test_exported_experiments_weigh_themselves(whole, capsys, tmp_path):
    """The mean of weight / chance is about the weight of the strata that a block could draw from."""
    assert said(capsys, "export", whole, "--out", tmp_path)[0] == 0
    rows = table(tmp_path / "experiments.csv")
    with Store(whole) as store:
        division, strata, blocks = divided(store.plan()), store.strata(), store.blocks()
    for row in rows:
        stratum = strata[int(row["number"])]
        assert row["stratum"] == division.title(stratum)
        assert float(row["weight"]) == division.strata[stratum].weight and 0 < float(row["chance"]) <= 1
    for block in blocks:
        weights = [float(row["weight"]) / float(row["chance"]) for row in rows if int(row["block"]) == block.number]
        drawn = [one.weight for one, chance in zip(division.strata, block.chances, strict=True) if chance > 0]
        assert np.mean(weights) == pytest.approx(sum(drawn), rel=0.15)


def test_an_experiment_is_exported_and_replayed_by_its_number(whole, capsys, tmp_path, cache):
    with Store(whole) as store:
        plan, strata = store.plan(), store.strata()
        bad = store.query("SELECT number, outcome FROM experiments WHERE exit = 'non-finite' LIMIT 1")[0]
    number = bad["number"]
    expected = choose(plan, draw_experiment(plan, number, strata[number])).injection(plan)
    assert said(capsys, "export", whole, "--id", number, "--out", tmp_path)[0] == 0
    assert read_injection(tmp_path / f"experiment_{number}.csv") == expected == injections_of(whole, [number])[0]
    code, _, err = said(capsys, "replay", whole, "--id", number, "--out", tmp_path / "again", "--cache", cache)
    assert code == 0, err
    assert json.loads((tmp_path / "again" / "outcome.json").read_text())["outcome"] == bad["outcome"]
    for command in ("export", "replay"):
        code, _, err = said(capsys, command, whole, "--id", 10**6)
        assert code == 2 and err.count("\n") == 1 and "experiment 1000000 is not drawn" in err


def test_what_would_count_experiments_is_refused(whole, capsys, tmp_path):
    plain = fill(tmp_path / "plain", toy_plan())
    code, _, err = said(capsys, "report", plain, whole, "--out", tmp_path / "compared")
    assert code == 2 and err.count("\n") == 1 and "its experiments are drawn by strata" in err
    assert not (tmp_path / "compared").exists()
    plan = tmp_path / "plan.toml"
    plan.write_text(text() + "[score]\nmasked = 2\n")
    code, _, err = said(capsys, "score", plan, "--out", tmp_path / "scored", "--jobs", "1")
    assert code == 2 and err.count("\n") == 1 and "wanted: experiments are drawn by strata" in err
    with Store(whole) as store:
        facts = Facts(store)
        for rate in (facts.whole, lambda: facts.share(1, 2), lambda: facts.groups("models")):
            with pytest.raises(InputError, match="their plain shares are no rates"):
                rate()


def test_a_block_that_is_not_done_is_left_out_of_rates(whole, tmp_path, capsys):
    """Any prefix of experiments: rates are those of the whole blocks, and the rest is named."""
    _, blocks, _ = known(whole)
    (tmp_path / NAME).write_bytes((whole / NAME).read_bytes())
    with contextlib.closing(sqlite3.connect(tmp_path / NAME)) as file, file:
        file.execute("DELETE FROM experiments WHERE number = ?", [blocks[1].first + 1])
    found = standing(tmp_path)
    assert found.answer.blocks == 1 and found.answer.experiments == 64 and found.resumable
    assert found.done == blocks[-1].numbers.stop - 1
    for command in ("status", "report"):
        assert said(capsys, command, tmp_path)[0] == 0
    assert "of a block that is not done yet" in (tmp_path / "report.html").read_text()


# --- damage ---


def put(folder, number, **changes):
    """A block's row as another hand writes it, with its digest."""
    table = TABLES["blocks"]
    with contextlib.closing(sqlite3.connect(folder / NAME)) as file, file:
        file.row_factory = sqlite3.Row
        row = dict(file.execute("SELECT * FROM blocks WHERE number = ?", [number]).fetchone()) | changes
        row["digest"] = table.digest([row[name] for name in table.columns])
        file.execute("DELETE FROM blocks WHERE number = ?", [number])
        file.execute(f"INSERT INTO blocks VALUES ({', '.join('?' * len(row))})", [*row.values()])


BY_HAND = {
    "another start": {"first": 7},
    "no stratum": {"strata": "[0, 1, 999]"},
    "no list": {"strata": "3"},
    "no experiments": {"strata": "[]"},
    "no chance": {"chances": "[0.5, 0.5]"},
    "no numbers": {"chances": '["a"]'},
    "no rule": {"rules": '["at will"]'},
    "no width": {"widths": "[0, null]"},
    "no JSON": {"widths": "["},
}


@pytest.mark.parametrize("what", BY_HAND)
def test_a_block_that_no_program_of_ours_writes_is_one_line(whole, tmp_path, capsys, what):
    (tmp_path / NAME).write_bytes((whole / NAME).read_bytes())
    put(tmp_path, 1, **BY_HAND[what])
    before = (tmp_path / NAME).read_bytes()
    for command in ("status", "report", "export"):
        code, out, err = said(capsys, command, tmp_path)
        assert code == 2 and err.count("\n") == 1 and not out
        assert "block 1 is not what this program writes" in err
    assert (tmp_path / NAME).read_bytes() == before


@pytest.mark.parametrize("lost", [0, 1, -1])
def test_a_damaged_block_is_designed_again_and_all_that_followed_from_it(whole, tmp_path, cache, capsys, lost):
    out = tmp_path / "out"
    out.mkdir()
    (out / NAME).write_bytes((whole / NAME).read_bytes())
    expected = known(whole)
    number = range(len(expected[1]))[lost]
    with contextlib.closing(sqlite3.connect(out / NAME)) as file, file:
        file.execute("UPDATE blocks SET chances = '[]' WHERE number = ?", [number])
    code, _, err = said(capsys, "status", out)
    assert code == 2 and f"damaged: block {number}" in err
    with Store(whole) as store:
        plan = store.plan()
    with Store(out, write=True) as store:
        assert store.mend() == f"block {number}"
        assert [block.number for block in store.blocks()] == list(range(number))
        assert store.done() == set(range(expected[1][number].first))
    run(out, cache, plan)
    assert known(out) == expected


# --- with what it goes together ---


CROSSED = {
    "state": ('stages = ["state"]\nmodels = { FLIPS_1 = 1, FLIPS_2 = 1 }', "audit = 0.5"),
    "permanent": (f'schedule = "permanent"\n{MODELS}', 'exit = "exact"'),
    "every step for some": (f'schedule = "every 3 for 7 steps"\n{MODELS}', 'exit = "full"'),
    "lanes": ("models = { LANE_16 = 1, MEASURED = 1 }", 'exit = "exact"'),
}
OWN = {
    "operations": ("models = { RBFLIP = 1, RD = 1 }", "audit = 0.5"),
    "checkpoint": ('stages = ["checkpoint"]\nmodels = { FLIPS_1 = 1 }', 'exit = "exact"'),
    "state": ('stages = ["state"]\nmodels = { FLIPS_1 = 1 }', "audit = 0.5"),
}


def judged(out, cache, struck, how, workload, **wanted):
    """A campaign of one or two blocks; the oracle is each experiment by itself, drawn from what the store has."""
    plan = parse_plan(text(faults=struck, run=how, workload=workload, width=0.9, **wanted))
    run(out, cache, plan)
    rows, blocks, [rate, *_] = known(out)
    assert rate.rate.high - rate.rate.low <= 0.9 and len(rows) == blocks[-1].numbers.stop
    lab = jobs.laboratory(Task(plan, cache=cache))
    with Store(out) as store:
        strata = store.strata()
    for row in rows[:: max(1, len(rows) // 5)]:
        again, _ = jobs.experiment(Task(plan, cache=cache), lab.golden.key, row[0], blocks[0].rules, strata[row[0]])
        mine = (again.number, again.epoch, again.step, again.site, again.model, again.outcome, again.exit)
        assert (*mine, again.audit_outcome) == row
    return plan, rows, blocks


@pytest.mark.slow
@pytest.mark.parametrize("name", CROSSED)
def test_schedules_states_and_models_go_with_a_width(tmp_path, cache, name):
    judged(tmp_path / "out", cache, *CROSSED[name], f"{TOY}:linear")


@pytest.mark.slow
@pytest.mark.parametrize("name", OWN)
def test_a_step_of_ones_own_goes_with_a_width(tmp_path, cache, name):
    judged(tmp_path / "out", cache, *OWN[name], f"{momentum_training.__file__}:training")


@pytest.mark.slow
def test_rules_end_runs_beyond_their_premises_only_when_earlier_blocks_support_them(tmp_path, cache):
    """Of faults in the state: the first block is followed, and each block says which rules were in use."""
    plan = parse_plan(text(0.25, "audit = 0.6", faults='stages = ["state"]\nmodels = { FLIPS_1 = 1 }'))
    run(tmp_path, cache, plan)
    with Store(tmp_path) as store:
        blocks, rows = store.blocks(), store.query("SELECT * FROM experiments ORDER BY number")
    assert blocks[0].rules == () and len(blocks) > 1
    for block in blocks:
        for row in rows[block.first : block.numbers.stop]:
            unaudited = row["exit"] == CONDITIONS and row["audit_outcome"] is None
            assert not unaudited or Rule(row["early_rule"]) in (Rule.VARIANCE, *block.rules)
    assert {Operand.INPUT.name.lower()} == {row["operand"] for row in rows}


@pytest.mark.slow
def test_kills_of_driver_and_jobs_and_growth_change_nothing(tmp_path, cache, repository):
    """Two jobs, killed at any moment, and a plan that grows twice: as one job in one go, every experiment once."""
    wanted = {"width": 0.25, "run": "audit = 0.4", "by": 'by = ["pass"]\ncell_width = 0.45'}

    def start(experiments):
        plan = tmp_path / "plan.toml"
        plan.write_text(text(**wanted, experiments=experiments))
        options = ["--out", tmp_path / "out", "--cache", cache, "--jobs", "2"]
        return killed.start(tmp_path / "log", repository, "campaign", plan, *options)

    run(tmp_path / "whole", cache, parse_plan(text(**wanted)))
    expected, rng = known(tmp_path / "whole"), random.Random(7)
    kills = 0
    for experiments in ("experiments = 100", "experiments = 200", ""):
        process = start(experiments)
        time.sleep(rng.uniform(5, 9))
        if process.poll() is None:
            kills += 1
            if killed.kill(process, rng, driver=bool(kills % 2)):
                process = start(experiments)
        while process.poll() is None:
            time.sleep(0.3)
        assert process.returncode == 0, (tmp_path / "log").read_text()
    assert kills and known(tmp_path / "out") == expected


def test_a_fixed_number_is_as_it_was():
    """Experiments of a plan without `[wanted]` are drawn from (seed, number) alone, and its store has no block."""
    plan = toy_plan()
    drawn = [draw_experiment(plan, number) for number in range(plan.experiments)]
    assert all(e.stratum is None for e in drawn) and {e.model.options for e in drawn} == {()}
    assert "wanted" not in plan.identity() and dataclasses.asdict(plan)["wanted"] is None
