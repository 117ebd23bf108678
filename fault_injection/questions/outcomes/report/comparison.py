"""Several campaigns side by side: `comparison.html`, which needs nothing beside it, and its figures."""

import contextlib
import dataclasses
import functools
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ....campaign import figures
from ....campaign.page import Cell, Part, Section, Table, page
from ....campaign.page import percent as shown
from ....machine.errors import InputError
from ....machine.files import write_text
from ....runs.outcome import IMMEDIATE, MASKED, SHORT_TERM
from ....seam.workload import format_option
from ..store import Store
from . import painters
from .facts import Facts, Group, place_of_role
from .queries import QUERIES

ROOM = 200  # characters of a cell
UNSAID = ("workload", "audit_open", "wanted")  # fields of a plan that are no options of its own
NONFINITE = (IMMEDIATE, SHORT_TERM)

Compared = Mapping[str, Facts]  # campaigns by their names


def write_comparison(folders: Sequence[pathlib.Path], out: pathlib.Path) -> pathlib.Path:
    """Write `comparison.html` and its figures to the folder `out`.

    Args:
      folders: of the campaigns; they are called as these are.

    Returns:
      the path of `comparison.html`.

    Raises:
      InputError: one is no campaign, has not begun, or two are called alike.
    """
    with contextlib.ExitStack() as opened:
        campaigns: dict[str, Facts] = {}
        for folder in folders:
            name = folder.resolve().name
            if name in campaigns:
                raise InputError(f"two campaigns are called {name!r}; rename a folder", folder)
            campaigns[name] = Facts(opened.enter_context(Store(folder)))
            campaigns[name].require_plain()
        sections = [_differing(campaigns)]
        sections += _dimensions(campaigns)
        sections += _latency(campaigns)
        whole = page(f"Campaigns compared: {', '.join(campaigns)}", _summary(campaigns), sections, QUERIES)
    figures.write(out / "figures", sections)
    write_text(out / "comparison.html", whole)
    return out / "comparison.html"


def _dimensions(campaigns: Compared) -> list[Section]:
    text = "The kind of operation, or the part of the state."
    of_bits = (
        "Experiments with one bit inverted or stuck, by what it is for. Bits of exponent and mantissa are counted "
        "from the top. A narrower format has fewer of them."
    )
    part, when = "part of the training", "The part of the training in which the fault struck."
    return [
        *_section(campaigns, "sites", "What was struck", "operation or part", text, Facts.kind_groups),
        *_section(campaigns, "stages", "Passes", "pass", "The pass that the struck operation belongs to."),
        *_section(campaigns, "operands", "Operands", "operand", "The tensor of the operation that was struck."),
        *_section(campaigns, "bits", "Bits", "role", of_bits, Facts.role_groups),
        *_section(campaigns, "epochs", "Early or late", part, when, Facts.quarter_groups),
        *_section(campaigns, "models", "Fault models", "fault model", "A fault model says which elements become what."),
    ]


def _summary(campaigns: Compared) -> list[str]:
    said = []
    for name, facts in campaigns.items():
        rate = facts.not_masked(facts.tally)
        worst = ", ".join(f"{n} {outcome}" for outcome, n in facts.counts.most_common() if outcome != MASKED)
        said.append(
            f"{name}: {facts.total:,} experiments on {facts.plan.workload.title} ({facts.plan.workload.details}); "
            f"not masked {shown(rate)}: {worst or 'none'}."
        )
    said.append(
        "Rates are shares of the decided experiments, with intervals at the confidence of each plan. They "
        "contain what audits of early verdicts have not seen. Where two overlap, the difference may be chance."
    )
    return said


def _differing(campaigns: Compared) -> Section:
    """What the campaigns' workloads and plans do not share."""
    every = {name: _description(facts) for name, facts in campaigns.items()}
    keys = list(dict.fromkeys(key for description in every.values() for key in description))
    rows: list[dict[str, Cell]] = [
        {"option": key, **{name: every[name].get(key, "")[:ROOM] for name in every}}
        for key in keys
        if len({description.get(key) for description in every.values()}) > 1
    ]
    text = "All other options of workload and plan are the same in all of them."
    groups = [Group(name, facts.tally, facts.not_masked(facts.tally)) for name, facts in campaigns.items()]
    alt = "Bars, one per campaign, divided into outcomes."
    paint, height = functools.partial(painters.bars, groups=groups), 1.05 + 0.3 * len(groups)
    parts: list[Part] = [figures.picture("outcomes", "Shares of the outcomes.", alt, paint, height)]
    if rows:
        parts.append(Table("outcomes", "What the campaigns do not share.", rows))
    return Section("campaigns", "Campaigns", [text], parts)


def _description(facts: Facts) -> dict[str, str]:
    """Workload and plan in full; lists of which a table has no room for more begin with their length."""
    plan, workload = facts.plan, facts.plan.workload
    options: dict[str, Any] = {"workload": workload.name, **workload.options()}
    rest = {field.name: getattr(plan, field.name) for field in dataclasses.fields(plan) if field.name not in UNSAID}
    rest["seed of the plan"] = rest.pop("seed")
    rest["epochs struck"] = f"{len(plan.epochs)}: {', '.join(map(str, rest.pop('epochs')))}"
    rest["sites"] = f"{len(plan.sites)}: {', '.join(plan.sites)}"
    rest["models"] = ", ".join(f"{model.name} {model.weight:g} ({model.values})" for model in plan.models)
    return {name: str(format_option(value)) for name, value in (options | rest).items()}


def _section(
    campaigns: Compared,
    query: str,
    title: str,
    called: str,
    text: str,
    groups_of: Callable[[Facts], list[Group]] | None = None,
) -> list[Section]:
    """A section of one dimension, see `findings.grouped`; none where all experiments are alike in it."""
    groups = groups_of or functools.partial(Facts.groups, query=query)
    found = {name: {group.name: group for group in groups(facts)} for name, facts in campaigns.items()}
    names = list(dict.fromkeys(name for by_name in found.values() for name in by_name))
    if len(names) < 2:
        return []
    if query == "bits":
        names.sort(key=place_of_role)
    rows: list[dict[str, Cell]] = []
    for name in names:
        row: dict[str, Cell] = {called: name}
        for campaign, by_name in found.items():
            group = by_name.get(name)
            row[f"{campaign}: experiments"] = group.counts.total() if group else 0
            row[f"{campaign}: not masked"] = group.rate if group else None
        rows.append(row)
    series = {
        campaign: {name: group.rate for name, group in by_name.items() if group.rate.total}
        for campaign, by_name in found.items()
    }
    picture = figures.picture(
        query,
        f"Share not masked by {called}, with its interval.",
        f"Points with intervals, one row per {called}, one colour and shape per campaign.",
        lambda axes: figures.side_by_side(axes, names, series),
        figures.height(names, series),
    )
    return [Section(query, title, [text], [picture, Table(query, f"Rates by {called}.", rows)])]


def _latency(campaigns: Compared) -> list[Section]:
    """How soon non-finite values appear; no section where there are none."""
    found = {name: facts.latencies() for name, facts in campaigns.items()}
    if not any(found.values()):
        return []
    rows: list[dict[str, Cell]] = []
    for name, facts in campaigns.items():
        steps = np.sort(np.repeat(list(found[name]), list(found[name].values()))) if found[name] else np.zeros(0)
        at = [f"{np.quantile(steps, q):.0f}" if len(steps) else "" for q in (0.25, 0.5, 0.75, 1)]
        within = dict(zip(("quarter", "half", "three quarters", "all"), at, strict=True))
        rows.append(
            {"campaign": name, "not finite": facts.tally.rate(NONFINITE, facts.plan.confidence, decided=True), **within}
        )
    counts = {name: (steps, campaigns[name].decided) for name, steps in found.items()}
    text = (
        "How many steps after the fault a non-finite value appeared. The table is about the experiments that met one: "
        "within how many steps a quarter of them did, and so on."
    )
    caption = "Share of experiments that had met a non-finite value."
    alt = "Curves that rise with the number of steps, one colour and line per campaign."
    parts: list[Part] = [
        figures.picture("latency", caption, alt, lambda axes: painters.reached(axes, counts)),
        Table("latency", "Steps from the fault to the first non-finite value.", rows),
    ]
    return [Section("latency", "Latency", [text], parts)]
