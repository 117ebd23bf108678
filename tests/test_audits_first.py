"""Where faults are beyond the premises of early verdicts, audits come first, and decide which rules end other runs."""

import dataclasses

import pytest
from campaign_stores import TOY, result, run_inline

from fault_injection.campaign.task import Ready
from fault_injection.questions.outcomes.conditions import CONDITIONS, Conditions, Rule
from fault_injection.questions.outcomes.plan_file import parse_plan
from fault_injection.questions.outcomes.report.conduct import audited as audited_section
from fault_injection.questions.outcomes.report.facts import Facts
from fault_injection.questions.outcomes.result import END
from fault_injection.questions.outcomes.sampling import draw_experiment
from fault_injection.questions.outcomes.standing import standing
from fault_injection.questions.outcomes.store import Store
from fault_injection.runs.outcome import MASKED, SLOW
from fault_injection.seam.measure import Measure

PLAN = f"""
workload = "{TOY}:linear"
[faults]
experiments = 120
stages = ["state"]
sites = ["slopes", "offset"]
[faults.models]
FLIPS_1 = 1
[run]
audit = 0.6
"""
MEASURE = Measure("accuracy", "higher", 0.1, 0.02)


@pytest.mark.parametrize(
    ("early", "changed", "supported"), [(60, 0, True), (60, 3, True), (60, 4, False), (19, 0, False), (20, 1, True)]
)
def test_a_rule_ends_other_runs_only_if_audits_support_it(tmp_path, monkeypatch, early, changed, supported):
    """Of the audited experiments, `early` have an early verdict, of which `changed` end otherwise."""
    plan = parse_plan(PLAN)
    drawn = [draw_experiment(plan, number) for number in range(plan.experiments)]
    audited = [e.number for e in drawn if e.audited]
    assert early <= len(audited) < plan.experiments
    ends = dict(zip(audited, [SLOW] * changed + [MASKED] * (early - changed), strict=False))
    followed = {"exit": END, "early_rule": None, "early_outcome": None, "early_after": None, "outcome": MASKED}
    guess = {"exit": CONDITIONS, "early_rule": str(Rule.AT_ONCE), "early_outcome": MASKED, "outcome": MASKED}
    found = {}
    for e in drawn:
        place = {"epoch": e.epoch, "step": e.step, "worker": e.worker, "site": e.site, "stage": "state"}
        place |= {"operand": "input", "model": "FLIPS_1", "value_source": e.model.values}
        ours = guess | {"audit_outcome": ends[e.number]} if e.number in ends else followed
        if not e.audited and supported:
            ours = guess
        found[e.number] = result(e.number, **place, **ours)
    about = {"conditions": dataclasses.asdict(Conditions()), "measure": dataclasses.asdict(MEASURE)}
    ready = Ready("a plan's key", "a golden run's key", about, tmp_path / "walks")
    made = run_inline(tmp_path / "out", plan, monkeypatch, found, lambda task: ready)

    first, others = made[: len(audited)], made[len(audited) :]
    assert {number for number, _ in first} == set(audited)
    assert {rules for _, rules in first} == {()}
    assert {rules for _, rules in others} == {(Rule.AT_ONCE,) if supported else ()}
    rate = standing(tmp_path / "out").not_masked
    assert rate.guesses == (len(others) if supported else 0)
    if supported:  # the audited of other kinds say nothing of this one
        assert rate.share == pytest.approx((early + len(others)) / plan.experiments * changed / early)
    else:
        assert rate.found == changed and rate.share == changed / plan.experiments
    with Store(tmp_path / "out") as store:
        tables = [part for part in audited_section(Facts(store)).parts if getattr(part, "query", None) == "support"]
    assert [table.rows for table in tables] == [[{"rule": "at once", "audits": early, "changed": changed}]]
