"""The sections of a report that say what came of the faults: how bad, where, and when."""

import functools
import shlex
import sqlite3
from collections.abc import Callable

from ....campaign import figures
from ....campaign.page import Cell, Commands, Part, Picture, Section, Shown, Table
from ....campaign.rates import Rate
from ....campaign.wording import level, percent, plural
from ....campaign.wording import number as in_words
from ....runs.outcome import MASKED, OUTCOMES, UNDECIDED
from . import painters
from .cards import said
from .facts import Facts, Group, decode

NOTHING = "no experiment is done yet"


def worst(facts: Facts) -> Section:
    """The experiments that ended worst, with the command that replays each."""
    found = facts.rows("worst")
    title, metric = "Worst experiments", facts.measure.name
    if not found:
        return Section("worst", title, [], without="no experiment has had a bad outcome")
    text = (
        f"First come those whose final training {metric} was furthest from the golden run's, then those that met a "
        "non-finite value before an epoch ended, the latest first. A click on an experiment shows its curve."
    )
    curves = {row["number"]: (row["outcome"], decode(row["curve"], row["recorded"])) for row in found}
    folder = shlex.quote(str(facts.store.path.parent))
    rows: list[dict[str, Cell]] = [
        {
            "experiment": Shown(row["number"]),
            "outcome": row["outcome"],
            "worse by, training": _lost(row["worse_train"]),
            "worse by, test": _lost(row["worse_test"]),
            "fault": f"{row['model']}: {plural(row['elements'], 'element')} of the {row['operand']} of {row['site']}",
            "epoch, step, worker": f"{row['epoch']}, {row['step']}, {row['worker']}",
        }
        for row in found
    ]
    commands = [f"python -m fault_injection replay {folder} --id {row['number']}" for row in found]
    alt = f"Lines of the training {metric} over steps, one per experiment of the table."
    caption = f"Training {metric} of these experiments from the fault on; a cross marks a non-finite loss."
    picture = figures.picture("worst", caption, alt, lambda axes: painters.courses(axes, curves, facts.measure), 3.0)
    table = Table("worst", f"By how much the final {metric} was worse than the golden run's.", rows)
    replayed = Commands(
        "Each command replays one of them to the end of the training, with all curves and the reasons for its verdict:",
        commands,
    )
    return Section("worst", title, [text], [table, picture, replayed])


def _lost(worse: float | None) -> str:
    return "not known" if worse is None else ("+" if worse >= 0 else "") + in_words(worse)


def outcomes(facts: Facts) -> Section:
    """How many experiments had which outcome."""
    plan = facts.plan
    text = [
        f"{facts.total:,} of {plan.experiments:,} experiments on {plan.workload.title} ({plan.workload.details}), "
        f"with exit mode '{plan.exit}' and seed {plan.seed}. All intervals are at {level(plan.confidence)} confidence. "
        "The rate of all faults that were not masked is stratified: each fault model has its weight in the plan."
    ]
    if any(verdicts.guessed for verdicts in facts.tally.early.values()):
        text.append(
            "An early verdict is a guess until its run is followed to the end. So of a rate that rests on such "
            "verdicts the share is estimated by their audits, and the interval contains what the audits have not "
            "seen (two-phase sampling). It is wide where a group has few audits. Numbers of experiments count an "
            "early verdict as it is, or as its audit found it. All other intervals are Wilson's."
        )
    else:
        text.append("No verdict is a guess, and all intervals are Wilson's.")
    operations = plan.targets
    backward = sum(operations[site].stage == "backward" for site in plan.sites)
    if 0 < backward < len(plan.sites):
        text.append(
            f"Operations are drawn uniformly, and not passes: {backward} of the {len(plan.sites)} operations belong to "
            f"the backward pass, so about {percent(backward / len(plan.sites))} % of the faults strike there."
        )
    if 0 < facts.total < plan.experiments and len(plan.epochs) > 1:
        text.append("Experiments run epoch after epoch, so the rates so far are not those of the whole plan.")
    if plan.horizon is not None:
        text.append(
            f"{UNDECIDED} means that a run was cut {plan.horizon:,} steps after its fault and not judged. Rates of "
            "faults that were not masked leave these experiments out."
        )
    if not facts.total:
        return Section("outcomes", "Outcomes", [], without=NOTHING)
    rows: list[dict[str, Cell]] = [
        {"outcome": o, "experiments": facts.counts[o], "share": facts.tally.rate([o], plan.confidence)}
        for o in OUTCOMES
    ]
    rows.append({"outcome": "not masked, of the decided", "experiments": facts.bad, "share": facts.whole()})
    return Section("outcomes", "Outcomes", text, [Table("outcomes", "Experiments by outcome.", rows)])


def _outcomes_by(query: str, group: str, groups: list[Group]) -> Picture:
    """Bars of outcomes; where these would be too many, the rates alone."""
    if len(groups) > figures.MOST:
        series = {"not masked": {g.name: g.rate for g in groups if g.rate.total}}
        caption = f"Share not masked by {group}, in percent, with its interval."
        return figures.rate_picture(query, caption, [g.name for g in groups], series, "not masked")
    names = [f"{g.name} ({g.counts.total():,})" for g in groups]
    seen = [outcome for outcome in OUTCOMES if any(g.counts[outcome] for g in groups)]
    return figures.picture(
        query,
        f"Estimated shares of the outcomes by {group}, with the number of experiments.",
        f"Bars, one per {group}, divided into the shares of its outcomes.",
        lambda axes: painters.bars(axes, groups),
        0.6 + figures.legend_height(seen) + figures.rows_height(names, 0.2),
    )


def grouped(
    key: str,
    title: str,
    group: str,
    text: str,
    worst_first: bool = False,
    groups_of: Callable[[Facts], list[Group]] | None = None,
    query: str | None = None,
) -> Callable[[Facts], Section]:
    """A section on groups of experiments, with the outcomes of each.

    Args:
      key: address of the section.
      title: heading of the section.
      group: what a group is called.
      text: what a reader should know first.
      worst_first: whether groups stand in the order of their rates, and not of their names.
      groups_of: the groups; by default those of the query.
      query: counts outcomes by group, in this order: group, outcome, n; by default the one called `key`.
    """
    query = query or key

    def section(facts: Facts) -> Section:
        groups = groups_of(facts) if groups_of else facts.groups(query)
        if not groups:
            return Section(key, title, [], without=NOTHING)
        if worst_first:
            groups.sort(key=lambda g: -g.rate.share if g.rate.total else 1)
        seen = [outcome for outcome in OUTCOMES if any(g.counts[outcome] for g in groups)]
        rows: list[dict[str, Cell]] = [
            {group: g.name, "experiments": g.counts.total(), "not masked": g.rate, **{o: g.counts[o] for o in seen}}
            for g in groups
        ]
        picture = _outcomes_by(query, group, groups)
        table = Table(query, f"Rates and numbers of experiments by {group}.", rows)
        return Section(key, title, [text], [picture, table])

    return section


def depth(facts: Facts) -> Section:
    """Rates by layer, in the order of the forward pass."""
    text = (
        "Layers stand in the order of the forward pass, the first at depth 0. An operation of the forward pass and "
        "those of the backward pass that compute the gradients of the same layer have the same depth."
    )
    rows: list[dict[str, Cell]] = []
    named = [facts.plan.leaf] if facts.plan.leaf else ["forward", "backward"]
    series: dict[str, dict[str, Rate]] = {stage: {} for stage in named}
    for at, (layer, stages) in enumerate(facts.depths().items()):
        if not (struck := sum(tally.total for tally in stages.values())):
            continue
        rates = {stage: facts.not_masked(tally) for stage, tally in stages.items() if tally.total}
        shown = {f"not masked, {stage}": rates.get(stage) for stage in series}
        rows.append({"layer": layer, "depth": at, "experiments": struck, **shown})
        for stage, rate in rates.items():
            if rate.total:
                series[stage][layer] = rate
    if not rows:
        why = "what was struck belongs to no single layer" if facts.total else NOTHING
        return Section("depth", "Layers", [], without=why)
    parts: list[Part] = [Table("sites", "Share not masked by layer.", rows)]
    if series := {stage: rates for stage, rates in series.items() if rates}:
        layers = [str(row["layer"]) for row in rows if any(row["layer"] in rates for rates in series.values())]
        caption = "Share not masked by layer, in percent, with its interval."
        parts.insert(0, figures.rate_picture("sites", caption, layers, series, "not masked"))
    return Section("depth", "Layers", [text], parts)


def inverted_bits(facts: Facts) -> Section:
    """Rates by the bit that was inverted, and by what it is for."""
    text = (
        "Experiments in which one bit was inverted, or stuck. Bit 0 is the lowest. Bits of the exponent and of the "
        "mantissa are counted from the top: the first of the exponent changes a value most."
    )
    series: dict[str, dict[float, Rate]] = {}
    rows: list[dict[str, Cell]] = []
    for (format, bit), tally in facts.bits().items():
        rate = facts.not_masked(tally)
        named: dict[str, Cell] = {"format": format.name, "bit": bit, "role": format.role(bit)}
        rows.append({**named, "experiments": rate.total, "not masked": rate})
        if rate.total:
            series.setdefault(format.name, {})[bit] = rate
    if not rows:
        return Section("bits", "Bits", [], without="in no experiment one bit was inverted, or stuck")
    parts: list[Part] = [Table("bits", "Share not masked by bit.", rows)]
    if series:
        caption = "Share not masked by the bit that was inverted, with its interval."
        alt = "Points with intervals over the number of the bit, one colour per format."
        label, say = "bit that was inverted, 0 the lowest", "bit {:.0f}".format
        paint = functools.partial(figures.rates, series=series, label=label, of="not masked", named=say)
        parts.insert(0, figures.picture("bits", caption, alt, paint, 2.2))
    return Section("bits", "Bits", [text], parts)


def latency(facts: Facts) -> Section:
    """How soon non-finite values appear."""
    looked_at = {
        "loss": "a non-finite training loss of a step, or test loss of an epoch,",
        "state": "a non-finite loss, gradient or leaf of the state",
    }[facts.plan.nonfinite]
    text = (
        f"How many steps after the faulty one {looked_at} appeared, for the experiments that are known to have met one."
    )
    steps = facts.latencies()
    if not steps:
        return Section("latency", "Latency", [], without="no experiment has met a non-finite value")
    why = (
        "A gradient, or an array of the state, is usually non-finite first: a squared gradient overflows from 1.8e19 "
        "on, and the optimizer's history with it. The second table says by how many steps it was ahead."
    )
    rows: list[dict[str, Cell]] = [{"steps after the fault": str(at), "experiments": n} for at, n in steps.items()]
    caption = "Steps from the fault to what was not finite."
    alt = "Bars of the number of experiments over the number of steps, on a logarithmic scale."
    parts: list[Part] = [
        figures.picture("latency", caption, alt, lambda axes: painters.latencies(axes, steps), 2.4),
        Table("latency", "Experiments by the number of these steps.", rows),
        facts.table("nonfinite", "Steps by which an array of the state, or a gradient, was ahead."),
    ]
    return Section("latency", "Latency", [text, why], parts)


def necessary_condition(facts: Facts) -> Section:
    """Whether bad outcomes that show late had large history or variance soon after the fault."""
    limits, title = facts.conditions, "Necessary condition"
    text = [
        f"A bad outcome that does not show at once is said to need large values in the optimizer's history, or a large "
        f"running variance, within {limits['steps']} steps of the fault. Each point stands for experiments at the "
        "largest values that these reached there, in units of the golden run's. Dashed lines "
        f"mark what counts as large: {limits['margin']:g} times. An experiment is not shown if its faulty step met a "
        "non-finite value or ended in the golden run's state."
    ]
    if facts.plan.exit == "conditions":
        text.append(
            "Experiments without large values are masked here by this very rule, except those that were audited. "
            "Only the audit tests the rule."
        )
    found = [row for row in facts.rows("conditions") if row["history_excess"] or row["variance_excess"]]
    if not found:
        why = "no experiment went on after its faulty step in another state than the golden run's"
        return Section("necessary", title, [], without=why)
    points = [
        painters.Point(row["number"], row["outcome"], row["history_excess"], row["variance_excess"], _told(row))
        for row in found
    ]
    rows: list[dict[str, Cell]] = []
    for outcome in OUTCOMES:
        of = [max(one.history, one.variance) > limits["margin"] for one in points if one.outcome == outcome]
        if of:
            rows.append({"outcome": outcome, "experiments shown": len(of), "of these large": sum(of)})
    picture = figures.picture(
        "conditions",
        "Largest optimizer history and running variance soon after the fault. Experiments of one outcome at one place "
        "are one point, the larger the more. A click on a point shows the first.",
        "Points of experiments over history and variance, coloured by outcome, on logarithmic scales.",
        lambda axes: painters.necessary(axes, points, limits["margin"]),
        3.6,
    )
    table = Table("conditions", "Experiments with large values soon after the fault.", rows)
    return Section("necessary", title, text, [picture, table])


def _told(row: sqlite3.Row) -> str:
    """An experiment under the pointer: in a few words where it was masked, as most are."""
    return f"experiment {row['number']}: {MASKED if row['outcome'] == MASKED else said(row)}"
