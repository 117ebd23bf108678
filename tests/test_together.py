"""Audits of masked early verdicts in groups: one run for several faults; rates allow for what groups may hide."""

# Above 400 lines: one way of auditing, from its groups over its runs and its rates to kills and refusals.

import collections
import concurrent.futures
import contextlib
import dataclasses
import random
import sqlite3
import time

import killed
import numpy as np
import pytest
from campaign_stores import TOY, Inline, result
from hypothesis import given
from hypothesis import strategies as st

from fault_injection.campaign.executors import Slot
from fault_injection.campaign.task import Ready, Task
from fault_injection.campaign.two_phase import Guesses, two_phase
from fault_injection.machine.errors import InputError
from fault_injection.questions.outcomes import driver, jobs
from fault_injection.questions.outcomes.audits import expected, share_to_audit
from fault_injection.questions.outcomes.conditions import CONDITIONS, Conditions
from fault_injection.questions.outcomes.experiment import run_experiment
from fault_injection.questions.outcomes.group_run import run_group
from fault_injection.questions.outcomes.plan_file import parse_plan
from fault_injection.questions.outcomes.report.facts import Facts
from fault_injection.questions.outcomes.report.queries import QUERIES
from fault_injection.questions.outcomes.report.sections import report_box, write_report
from fault_injection.questions.outcomes.report.summary import cost
from fault_injection.questions.outcomes.report.together import together as together_section
from fault_injection.questions.outcomes.result import END, GroupResult
from fault_injection.questions.outcomes.sampling import choose, draw_experiment
from fault_injection.questions.outcomes.standing import finished, standing
from fault_injection.questions.outcomes.store import Store
from fault_injection.questions.outcomes.tables import write_tables
from fault_injection.questions.outcomes.tally import tally_of
from fault_injection.questions.outcomes.together import ALONE, AuditGroup, audits_left, groups_of
from fault_injection.runs.follow import follow
from fault_injection.runs.outcome import MASKED, SLOW
from fault_injection.runs.steps import Address, Observer, addresses
from fault_injection.seam.measure import Measure

PLAN = f"""
workload = "{TOY}:linear"
[options]
epochs = 5
learning_rate = 0.03
[faults]
experiments = 100
schedule = "once"
[faults.models]
RD = 1
RD_CORRECT = 1
RBFLIP = 4
[run]
exit = "conditions"
audit = 0.8
together = 4
together_alone = 0.25
"""


# --- groups ---

places = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=40)


@given(places, st.integers(2, 6), st.randoms(use_true_random=False))
def test_a_group_strikes_no_step_twice_and_leaves_out_nobody_who_has_company(found, most, random):
    members = [(Address(*at), number) for number, at in enumerate(found)]
    groups = groups_of(members, most)
    taken = [number for group in groups for number in group.number]
    assert len(taken) == len(set(taken))
    for group in groups:
        steps = [Address(*found[number]) for number in group.number]
        assert len(set(steps)) == len(steps) and 2 <= len(steps) <= most and min(steps) == (group.epoch, group.step)
        assert list(group.number) == sorted(group.number)
    left = {Address(*found[number]) for number in set(range(len(found))) - set(taken)}
    assert len(left) <= 1  # of two at different steps one would have joined the other
    shuffled = list(members)
    random.shuffle(shuffled)
    assert groups_of(shuffled, most) == groups  # whoever came first


def test_who_is_followed_alone_is_drawn_beforehand_and_by_the_number_alone():
    plan = parse_plan(PLAN)
    drawn = [draw_experiment(plan, number) for number in range(2000)]
    assert np.mean([e.alone for e in drawn]) == pytest.approx(0.25, abs=0.03)
    without = dataclasses.replace(plan, together=None, together_alone=0.0)
    strip = [dataclasses.replace(e, alone=False) for e in drawn]
    assert strip == [draw_experiment(without, number) for number in range(2000)]  # the same faults


# --- runs ---


def inline(task, out):
    slot = Slot(Inline, lambda: 1, (concurrent.futures.BrokenExecutor,), Inline())
    driver.campaign(task, out, contextlib.nullcontext([slot]))
    return out


@pytest.fixture(scope="module")
def task(cache):
    return Task(parse_plan(PLAN), cache=cache)


@pytest.fixture(scope="module")
def made(task, tmp_path_factory):
    """A campaign of the linear regression, with groups."""
    return inline(task, tmp_path_factory.mktemp("together") / "out")


def rows_of(folder, table="experiments"):
    with Store(folder) as store:
        return [dict(row) for row in store.query(f"SELECT * FROM {table}")]


def test_members_come_to_what_they_come_to_alone(task, made):
    """The linear regression adds up harm: in a group that ends masked each is masked by itself."""
    lab = jobs.laboratory(task)
    outcomes = {row["name"]: row["outcome"] for row in rows_of(made, "audit_groups")}
    grouped = {row["experiment"]: row for row in rows_of(made, "grouped")}
    ways = collections.Counter()
    for row in rows_of(made):
        drawn = draw_experiment(task.plan, row["number"])
        if row["exit"] != CONDITIONS or row["outcome"] != MASKED or not drawn.audited:
            assert row["number"] not in grouped
            continue
        alone = run_experiment(lab, row["number"], alone=True)
        assert (row["outcome"], row["rule"], row["steps"]) == (alone.outcome, alone.rule, alone.steps)
        mine = grouped.get(row["number"])
        masked = mine is not None and outcomes[mine["name"]] == MASKED
        ways[masked, drawn.alone] += 1
        assert mine is None or mine["alone"] == drawn.alone
        if masked:
            assert alone.audit_outcome == MASKED
        if masked and not drawn.alone:
            assert row["audit_outcome"] is None and row["audit_steps"] == 0
        else:
            assert (row["audit_outcome"], row["audit_rule"]) == (alone.audit_outcome, alone.audit_rule)
            assert row["curve"] == alone.curve
    assert len(ways) == 4 and min(ways.values()) > 1


class EpochLosses(Observer):
    """Keeps the test loss after each epoch."""

    def __init__(self):
        self.losses = []

    def after_step(self, at, state, report):
        pass

    def after_epoch(self, epoch, state, evaluate):
        self.losses.append(evaluate().loss)


def test_the_run_of_a_group_is_the_run_with_all_its_faults(task, made):
    """By an oracle that takes the steps from the start of the training on, with the faults where they belong."""
    lab = jobs.laboratory(task)
    program, plan = lab.golden.program, task.plan
    for row in rows_of(made, "audit_groups")[:4]:
        members = tuple(map(int, row["members"].strip("[]").split(",")))
        choices = [choose(plan, draw_experiment(plan, number)) for number in members]
        steps = addresses(Address(0, 0), plan.end, program.steps_per_epoch)
        faults = {one.at: one.fault for one in choices}
        tests = EpochLosses()
        follow(program, lab.golden.fetch_state_before(0), steps, faults, [tests])
        again = run_group(lab, members)
        assert (again.outcome, again.rule, again.steps) == (row["outcome"], row["rule"], row["steps"])
        first = min(one.at for one in choices)
        assert row["steps"] == plan.followed(*first) and (row["epoch"], row["step"]) == first
        last = tests.losses[max(first.epoch, plan.workload.epochs - 3) :]
        assert f"test {np.mean(last):.4f} against" in row["rule"]


def test_status_report_and_tables_say_the_same_of_groups(task, made, tmp_path):
    groups, grouped = rows_of(made, "audit_groups"), rows_of(made, "grouped")
    masked = {row["name"] for row in groups if row["outcome"] == MASKED}
    alone = [row for row in grouped if row["name"] in masked and row["alone"]]
    found = standing(made)
    assert found.complete and finished(made, task.plan)
    assert found.together[:5] == (len(groups), len(grouped), len(masked), len(alone), 0)
    believed, whole = found.together.believed, found.whole
    assert believed.share == whole.share and believed.high < whole.high  # groups hide nothing here
    assert found.as_dict()["together"]["believed"]["high"] == believed.high
    with Store(made) as store:
        facts = Facts(store)
        section, spent = together_section(facts), cost(facts)
        names = [path.name for path in write_tables(store, tmp_path, "csv")]
    assert f"Groups: {len(groups)}, of {len(grouped)} audits; ended Masked: {len(masked)}." in section.text[1]
    assert {"audit_groups.csv", "grouped.csv"} <= set(names)
    not_masked = {row["experiment"] for row in grouped if row["name"] not in masked and not row["alone"]}
    again = sum(row["steps"] for row in rows_of(made) if row["number"] in not_masked)
    assert spent.together == sum(row["steps"] for row in groups) + again
    page = write_report(made).read_text()
    assert "Groups of audits" in page and "groups of audits" in page
    assert any("hide nothing" in one.sentence for one in report_box(made))


# --- rates ---


def row(n, outcome=MASKED, exit=CONDITIONS, ended=None, nested=None):
    return {"exit": exit, "outcome": outcome, "near": 0, "early_rule": "", "ended": ended, "nested": nested, "n": n}


PLAIN = parse_plan('workload = "resnet18"\n[faults]\nexperiments = 100')


def test_where_no_audit_differs_an_interval_is_as_wide_as_those_followed_alone_leave_it():
    """What groups add is knowledge on the premise that they hide nothing, and no certainty."""
    known = (300, 350)
    groups = two_phase(*known, [Guesses(1750, 0, 0, 0, nested=Guesses(700, 0, 140, 0))])
    alone = two_phase(*known, [Guesses(1750, 0, 140, 0)])
    assert groups.high == pytest.approx(alone.high, abs=0.002)
    believed = tally_of([row(300, SLOW, END), row(350, exit=END), row(1050), row(560, nested=1)], PLAIN).believed
    plain = tally_of([row(300, SLOW, END), row(350, exit=END), row(1050), row(560, ended=MASKED)], PLAIN)
    assert believed.not_masked(0.95) == plain.not_masked(0.95)
    assert believed.not_masked(0.95).high < groups.high


class Campaigns:
    """Campaigns of a population in which early verdicts are wrong, and groups may hide it.

    Args:
      early: share with an early verdict, which says Masked; of the others half are bad.
      wrong: share of these that is not masked by itself.
      hides: probability that such a one does not show in its group.
      repairs: whether two that show undo each other, so that an even number of them shows nothing.
      tires: probability that a group without any ends otherwise than masked.
    """

    def __init__(self, early, wrong, hides=0.0, repairs=False, tires=0.0):
        self.early, self.wrong, self.hides, self.repairs, self.tires = early, wrong, hides, repairs, tires
        self.rate = early * wrong + (1 - early) / 2

    def rows(self, rng, experiments, audit, most, alone):
        early = int(rng.binomial(experiments, self.early))
        bad = int(rng.binomial(experiments - early, 0.5))
        audits = int(rng.binomial(early, audit))
        found = collections.Counter({(SLOW, END): bad, (MASKED, END): experiments - early - bad, (): early - audits})
        for first in range(0, audits, most):
            size = min(most, audits - first)
            harm = rng.random(size) < self.wrong
            shown = int((harm & (rng.random(size) >= self.hides)).sum())
            shows = shown % 2 if self.repairs else shown > 0
            masked = not shows and rng.random() >= self.tires
            for ends, by_itself in zip(harm, rng.random(size) < alone, strict=True):
                end = SLOW if ends else MASKED
                found[(end if by_itself else None, int(not by_itself)) if masked else (end, None)] += 1
        rows = [row(n, *one) for one, n in found.items() if one[1:] == (END,)]
        rows += [row(n, ended=one[0], nested=one[1]) for one, n in found.items() if one and one[1] != END]
        return [one for one in [*rows, row(found[()])] if one["n"]]

    def coverage(self, campaigns, experiments=300, audit=0.6, most=6, alone=0.3, seed=0):
        rng, hits = np.random.default_rng(seed), 0
        for _ in range(campaigns):
            rate = tally_of(self.rows(rng, experiments, audit, most, alone), PLAIN).not_masked(0.95)
            hits += rate.low <= self.rate <= rate.high
        return hits / campaigns


CASES = {
    "the premise holds, and nothing is wrong": Campaigns(0.75, 0.0),
    "the premise holds": Campaigns(0.75, 0.03),
    "groups end otherwise without a reason": Campaigns(0.75, 0.02, tires=0.3),
    "half of the harm hides": Campaigns(0.75, 0.1, hides=0.5),
    "all of it hides": Campaigns(0.8, 0.05, hides=1.0),
    "two undo each other": Campaigns(0.8, 0.2, repairs=True),
    "harm is rare, and hides": Campaigns(0.9, 0.003, hides=0.9),
}


def test_an_interval_covers_whatever_groups_hide():
    for case in ("all of it hides", "two undo each other"):
        assert CASES[case].coverage(40) >= 0.94
    rows = CASES["all of it hides"].rows(np.random.default_rng(1), 20_000, 0.5, 20, 0.0005)
    believed = tally_of(rows, PLAIN).believed.not_masked(0.95)
    assert believed.high < CASES["all of it hides"].rate  # a premise that is wrong, believed, is wrong


@pytest.mark.slow
@pytest.mark.parametrize(("experiments", "audit", "most", "alone"), [(300, 0.6, 6, 0.3), (1200, 0.4, 20, 0.2)])
@pytest.mark.parametrize("case", CASES)
def test_nominal_95_percent_covers_at_least_94_whatever_groups_hide(case, experiments, audit, most, alone):
    assert CASES[case].coverage(150, experiments, audit, most, alone, seed=len(case)) >= 0.94


# --- campaigns that are killed and grow ---


class World:
    """Jobs of which results are known: a group ends masked if an even number of its faults is harmful by itself."""

    def __init__(self, plan, monkeypatch, folder):
        self.plan, self.folder, self.runs, self.dies = plan, folder, collections.Counter(), ()
        about = {"conditions": dataclasses.asdict(Conditions())}
        about["measure"] = dataclasses.asdict(Measure("loss", "lower", 5.0, 0.01))
        ready = Ready("a plan's key", "a golden run's key", about, folder / "walks")
        monkeypatch.setattr(jobs, "make_golden", lambda task: ready)
        monkeypatch.setattr(jobs, "walk", lambda *arguments: (1, 0.0))
        monkeypatch.setattr(jobs, "experiment", self.experiment)
        monkeypatch.setattr(jobs, "group", self.group)
        monkeypatch.setattr(driver, "outcome_rates", lambda *known: ({}, None))  # what the terminal shows takes a while

    def count(self, what):
        if sum(self.runs.values()) in self.dies:
            self.dies = [at for at in self.dies if at != sum(self.runs.values())]
            raise KeyboardInterrupt
        self.runs[what] += 1

    def harmful(self, number):
        return number % 3 == 1

    def experiment(self, task, golden_key, number, supported=(), alone=False):
        self.count((number, alone))
        e = draw_experiment(self.plan, number)
        found = {"epoch": e.epoch, "step": e.step, "worker": e.worker, "site": e.site, "model": e.model.name}
        found |= {"stage": self.plan.targets[e.site].stage, "value_source": e.model.values}
        one = result(number, **found)
        if one.exit == CONDITIONS and e.audited and (alone or e.alone):
            one = dataclasses.replace(one, audit_outcome=SLOW if self.harmful(number) else MASKED, audit_rule="seen")
        return one, {"host": "here"}

    def group(self, task, golden_key, members):
        self.count(members)
        first = min(members, key=lambda n: (draw_experiment(self.plan, n).epoch, draw_experiment(self.plan, n).step))
        e, odd = draw_experiment(self.plan, first), sum(map(self.harmful, members)) % 2
        name = AuditGroup(members, e.epoch, e.step).name
        return GroupResult(name, members, SLOW if odd else MASKED, "a rule", e.epoch, e.step, 9, 0.5)

    def go(self, out, experiments):
        inline(Task(dataclasses.replace(self.plan, experiments=experiments)), self.folder / out)
        known = standing(self.folder / out).as_dict()
        return {name: value for name, value in known.items() if name not in ("folder", "last_event")}


@pytest.fixture
def world(monkeypatch, tmp_path):
    text = f'workload = "{TOY}:linear"\n[faults]\nexperiments = 90\n[faults.models]\nRD = 1\nINPUT = 1\n'
    plan = parse_plan(text + "[run]\naudit = 0.7\ntogether = 4\ntogether_alone = 0.25\n")
    return World(plan, monkeypatch, tmp_path)


def test_kills_change_nothing_and_nothing_that_is_kept_runs_twice(world):
    known = world.go("at once", 90)
    whole, world.runs = world.runs, collections.Counter()
    world.dies, kills = [7, 88, 93, 103, len(whole) - 2], 5
    for _ in range(kills):
        with pytest.raises(KeyboardInterrupt):
            world.go("killed", 90)
        assert not standing(world.folder / "killed").complete
    assert world.go("killed", 90) == known and world.runs.keys() == whole.keys()
    assert world.runs.total() <= whole.total() + kills  # but for what was running then
    before = sum(world.runs.values())
    world.go("killed", 90)
    assert sum(world.runs.values()) == before  # nothing is left
    assert known["together"]["hidden"] > 0 and known["together"]["believed"] is None  # refuted here


def test_a_campaign_that_grows_comes_to_what_it_comes_to_in_one_go(world):
    known = world.go("at once", 90)
    world.runs.clear()
    for experiments in (40, 65, 90):
        found = world.go("grown", experiments)
    # It knows more: who was in a group that did not end masked before the plan grew has been followed.
    told = ("not_masked", "whole", "outcomes", "together")
    assert {key: found[key] for key in found if key not in told} == {
        key: known[key] for key in known if key not in told
    }
    assert found["not_masked"]["found"] > known["not_masked"]["found"]
    assert found["together"]["hidden"] > known["together"]["hidden"] and found["together"]["believed"] is None
    with Store(world.folder / "grown") as store:  # no known end is left out
        early = tally_of(store.query(QUERIES["outcomes"]), world.plan).early.values()
    counted = sum(part.ends[SLOW] for one in early for part in (one, one.nested) if part is not None)
    with sqlite3.connect(world.folder / "grown" / "campaign.sqlite") as file:
        assert file.execute(f"SELECT count(*) FROM experiments WHERE audit_outcome = '{SLOW}'").fetchone() == (counted,)
    experiments = {key: n for key, n in world.runs.items() if isinstance(key[-1], bool)}
    assert set(experiments.values()) == {1}  # only groups are made anew
    with Store(world.folder / "grown") as store:
        assert not audits_left(store, world.plan)


def test_audits_whose_group_waits_are_counted_as_what_nobody_knows(world):
    """A group that did not end masked says nothing of a member yet, and leaves nobody out."""
    world.dies = [112]  # the groups have run, and the first audits after them
    with pytest.raises(KeyboardInterrupt):
        world.go("killed", 90)
    with Store(world.folder / "killed") as store:
        waiting = audits_left(store, world.plan).follow
        found = tally_of(store.query(QUERIES["outcomes"]), world.plan)
        outcomes, kept = store.groups()
    assert waiting and all(outcomes[kept[number][0]] == SLOW for number in waiting if number in kept)
    pending = sum(verdicts.open.total() for verdicts in found.early.values())
    assert pending == sum(number in kept for number in waiting) > 0


def test_damaged_rows_of_groups_are_made_again(world):
    known = world.go("one", 90)
    for sql in ("UPDATE audit_groups SET outcome = 'Masked'", "UPDATE grouped SET alone = 1", "DELETE FROM grouped"):
        with sqlite3.connect(world.folder / "one" / "campaign.sqlite") as file:
            file.execute(sql)
        if "UPDATE" in sql:
            with pytest.raises(InputError, match=r"damaged: (audit_group|grouped) "):
                Store(world.folder / "one")
        else:
            assert not standing(world.folder / "one").complete
        assert world.go("one", 90) == known


def test_a_group_that_no_process_outlives_is_named_and_its_audits_stay_guesses(world, monkeypatch):
    lost = []

    def group(task, golden_key, members):
        lost[:] = lost or [members]
        if members == lost[0]:
            raise concurrent.futures.BrokenExecutor
        return World.group(world, task, golden_key, members)

    monkeypatch.setattr(jobs, "group", group)
    with pytest.raises(Exception, match=r"1 .* lost their process 5 times .*: group \w+ of \d audits"):
        world.go("out", 90)
    found = standing(world.folder / "out")
    assert found.done == 90 and not found.complete
    with Store(world.folder / "out") as store:
        assert [one.number for one in audits_left(store, world.plan).groups] == lost


@pytest.mark.slow
def test_two_jobs_and_a_driver_that_is_killed_come_to_the_same(made, cache, tmp_path, repository):
    """As users run it: killed among the experiments, and again once groups run, if it is still there."""
    (tmp_path / "plan.toml").write_text(PLAN)
    out, rng = tmp_path / "out", random.Random(2)
    command = ["campaign", tmp_path / "plan.toml", "--out", out, "--cache", cache, "--jobs", "2"]
    for table, enough in (("experiments", 20), ("audit_groups", 1)):
        process = killed.start(tmp_path / "log", repository, *command)
        while process.poll() is None and not _has(out, table, enough):
            time.sleep(0.05)
        if process.poll() is None:
            killed.kill(process, rng, driver=True)
    assert killed.start(tmp_path / "log", repository, *command).wait(300) == 0, (tmp_path / "log").read_text()
    left_out = {"seconds", "outside_seconds", "setup_seconds", "environment", "finished_at", "key"}
    for table in ("experiments", "audit_groups", "grouped"):
        one, two = (
            [{name: row[name] for name in row if name not in left_out} for row in rows_of(folder, table)]
            for folder in (made, out)
        )
        assert sorted(one, key=repr) == sorted(two, key=repr)


def _has(folder, table, enough):
    with contextlib.suppress(InputError):  # there is no file yet
        return len(rows_of(folder, table)) >= enough
    return False


# --- plans ---

REFUSED = {
    '"conditions"\naudit = 0.8\n': (
        '"exact"\n',
        "run.together: the exit mode 'exact' gives no early verdict",
    ),
    "audit = 0.8": ("audit = 0", "run.together: run.audit is 0, so there is nothing to group"),
    "together = 4": ("together = 1", "run.together: 1; expected a whole number from 2 to 10000"),
    "together = 4\n": ("", "run.together_alone: has no effect without run.together"),
    "together_alone = 0.25": ("together_alone = 2", "run.together_alone: 2; expected a number from 0 to 1"),
    "[run]": ("[run]\ntwins = 2\nsettled = 5", "run.together: does not go with run.settled"),
    "experiments = 100": (
        'experiments = 100\nstages = ["state"]\nsites = ["slopes"]',
        "run.together: what the faults strike is beyond the premises of early verdicts",
    ),
    '"once"': ('"permanent"', "faults.schedule: permanent does not go with the exit mode 'conditions'"),
    "[faults]\nexperiments = 100": (
        "[wanted]\nwidth = 0.1\n[faults]",
        "run.together: a campaign with [wanted] designs its blocks by the ends of its audits",
    ),
}


@pytest.mark.parametrize("found", REFUSED)
def test_a_plan_says_in_one_line_where_audits_cannot_be_grouped(found):
    wrong, message = REFUSED[found]
    text = PLAN
    if "stages" in wrong:
        text = text.replace("RD = 1\nRD_CORRECT = 1\nRBFLIP = 4", "FLIPS_1 = 1")
    assert found in text
    with pytest.raises(InputError) as error:
        parse_plan(text.replace(found, wrong, 1))
    assert message in str(error.value) and "\n" not in str(error.value)


def test_without_the_key_plans_are_what_they_were_and_by_default_as_many_are_followed_alone():
    plan = parse_plan('workload = "resnet18"\n[faults]\nexperiments = 2400\n')
    assert (plan.together, plan.together_alone) == (None, 0.0)
    assert not {"together", "together_alone"} & plan.identity().keys()
    ours = parse_plan('workload = "resnet18"\n[faults]\nexperiments = 2400\n[run]\ntogether = 20\n')
    assert (ours.together, ours.together_alone) == (20, ALONE) and ours.identity()["together"] == 20
    assert ours.audit * ALONE == pytest.approx(plan.audit) == share_to_audit(2400, 0.95)
    assert "audits of masked early verdicts 20 in one run, 20% of these by themselves" in ours.sentence()
    early = 0.75 * 2400
    with_groups, without = (expected(2400, ours.audit * early, 0.95, alone) for alone in (ALONE, None))
    assert with_groups.width == pytest.approx(expected(2400, plan.audit * early, 0.95).width, rel=0.03)
    assert without.width < 1.15 * without.full
