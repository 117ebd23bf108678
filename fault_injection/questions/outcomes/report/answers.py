"""The sections of a report on a campaign that wants a width: rates weighted by strata, and where experiments went.

Such a campaign strikes some strata more often than the plan's distribution does, so its experiments are never counted
for a rate.  What strata do not tell apart has no rate here, and is named.
"""

from collections.abc import Sequence

from ....campaign import figures
from ....campaign.page import Cell, Section, Table
from ....campaign.wording import level, percent
from ..answer import AnsweredRate
from .facts import Facts

LEFT_OUT = (
    "operand",
    "epoch",
    "the single bit",
    "how soon values are not finite",
    "history and variance after the fault",
)
TITLES = {
    "model": "Fault models",
    "pass": "Stages",
    "kind": "What was struck",
    "layer": "Layers",
    "bit": "What the bit is for",
}


def answered(facts: Facts) -> Section:
    """What was asked, and what is known of it; the rates of all outcomes."""
    answer, plan = facts.answer, facts.plan
    assert plan.wanted is not None
    asked = plan.wanted.sentence()
    whole = f"{answer.experiments:,} experiments in {answer.blocks:,} whole blocks"
    rest = facts.total - answer.experiments
    text = [
        f"Asked is {asked}, on {plan.workload.title} ({plan.workload.details}), with exit mode "
        f"'{plan.exit}' and seed {plan.seed}. Known from {whole}: {answer.standing}."
        + (f" {rest:,} experiments of a block that is not done yet are left out." if rest else ""),
        f"Rates are those of the plan's own distribution of faults: each stratum counts by its weight, however many "
        f"experiments it got. Intervals hold with {level(plan.confidence)} confidence at the end of all blocks "
        "together, so the campaign may be stopped, looked at and grown.",
    ]
    if plan.exit == "conditions":
        text.append(
            "An early verdict is observed as it is, corrected by its audit where one was made, so intervals hold "
            "whatever early verdicts are worth. Numbers of experiments count an early verdict as it is, or as its "
            "audit found it."
        )
    if not answer.experiments:
        return Section("answer", "Rates", [], without=f"no block of experiments is done yet; asked is {asked}")
    whole_rates = [one for one in answer.rates() if one.asked or not one.dimension]
    return Section("answer", "Rates", text, [Table("", "Rates, weighted by strata.", _rows(whole_rates))])


def _rows(rates: Sequence[AnsweredRate], by: str = "rate") -> list[dict[str, Cell]]:
    return [
        {
            by: one.title if by == "rate" else one.name,
            "experiments": one.rate.total,
            "of these with it": one.rate.found,
            "share": one.rate,
            "width": f"{percent(one.rate.high - one.rate.low)} %",
            "width asked": f"{percent(one.width)} %" if one.asked else "",
            "still needed": one.more if one.asked else None,
        }
        for one in rates
    ]


def by_dimension(facts: Facts) -> list[Section]:
    """A section for each dimension in which strata differ."""
    sections = []
    for dimension in facts.answer.division.dimensions:
        found = [one for one in facts.answer.rates() if one.dimension == dimension]
        if len(found) < 2 or not facts.answer.experiments:
            continue
        found.sort(key=lambda one: -one.rate.share)
        sections.append(_of_dimension(dimension, found))
    return sections


def _of_dimension(dimension: str, found: Sequence[AnsweredRate]) -> Section:
    outcome, names = found[0].outcome, [one.name for one in found]
    series = {outcome: {one.name: one.rate for one in found}}
    text = f"The share of faults with the outcome '{outcome}', by {dimension}, with intervals as above."
    drawn = figures.rate_picture("", f"Rates by {dimension}, in percent.", names, series, outcome)
    table = Table("", f"Rates by {dimension}, weighted by strata.", _rows(found, dimension))
    return Section(dimension, TITLES[dimension], [text], [drawn, table])


def strata(facts: Facts) -> Section:
    """Where experiments went, and what of the plan's distribution is not told apart."""
    division, counts = facts.answer.division, facts.answer.counts
    out = [*division.left_out, *LEFT_OUT]
    text = [
        f"Strata differ by {', '.join(division.dimensions) or 'nothing'}. A weight is the share of all faults of the "
        "plan. A block's experiments are divided by what earlier blocks have shown: most go where outcomes vary.",
        f"Not known, because strata do not tell it apart: {'; '.join(out)}. The plain shares of experiments would be "
        "those of this sample, and not of the plan. `wanted.by` adds what it names to the strata.",
    ]
    rows: list[dict[str, Cell]] = [
        {
            "stratum": division.title(number),
            "weight": f"{percent(stratum.weight)} %",
            "experiments": int(counts[number]),
            "share of experiments": f"{percent(counts[number] / max(1, counts.sum()))} %",
        }
        for number, stratum in enumerate(division.strata)
    ]
    return Section("strata", "Strata", text, [Table("", "Experiments by stratum.", rows)])
