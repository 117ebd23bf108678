"""Several campaigns side by side: `comparison.html`, which needs nothing beside it, and its figures."""

import contextlib
import dataclasses
import functools
import pathlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ....campaign import figures
from ....campaign.box import Box, BoxAnswer
from ....campaign.page import Cell, Part, Section, Table, page
from ....campaign.wording import level, percent, plural, share
from ....machine.errors import InputError
from ....machine.files import write_text
from ....runs.outcome import DIVERGED, OUTCOMES
from ....seam.workload import format_option
from ..store import Store
from ..tally import Tally
from . import painters
from .differences import RateDifference, differences, told
from .facts import Facts, Group, place_of_role
from .queries import QUERIES

ROOM = 200  # characters of a cell
UNSAID = ("workload", "audit_open", "wanted")  # fields of a plan that are no options of its own

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
    with _opened(folders) as campaigns:
        sections = [_differing(campaigns), *_dimensions(campaigns), *_latency(campaigns)]
        whole = page(f"Campaigns compared: {', '.join(campaigns)}", comparison_box(campaigns), sections, QUERIES)
    figures.write(out / "figures", sections)
    write_text(out / "comparison.html", whole)
    return out / "comparison.html"


def compared(folders: Sequence[pathlib.Path]) -> Box:
    """The answer of a comparison, of which nothing is written; raises as `write_comparison`."""
    with _opened(folders) as campaigns:
        return comparison_box(campaigns)


@contextlib.contextmanager
def _opened(folders: Sequence[pathlib.Path]) -> Iterator[Compared]:
    """Campaigns by the names of their folders, their stores open."""
    with contextlib.ExitStack() as opened:
        campaigns: dict[str, Facts] = {}
        for folder in folders:
            name = folder.resolve().name
            if name in campaigns:
                raise InputError(f"two campaigns are called {name!r}; rename a folder", folder)
            campaigns[name] = Facts(opened.enter_context(Store(folder)))
            campaigns[name].require_plain()
        yield campaigns


class Dimension(NamedTuple):
    """What experiments are told apart by.

    Attributes:
      query, title, called, text: of its section; `called` is one value of it.
      groups_of: the groups of a campaign; those of the query by default.
    """

    query: str
    title: str
    called: str
    text: str
    groups_of: Callable[[Facts], list[Group]] | None = None

    def groups(self, facts: Facts) -> list[Group]:
        """The groups of a campaign."""
        return self.groups_of(facts) if self.groups_of else facts.groups(self.query)


OF_BITS = (
    "Experiments with one bit inverted or stuck, by what it is for. Bits of exponent and mantissa are counted "
    "from the top. A narrower format has fewer of them."
)
DIMENSIONS = (
    Dimension(
        *("sites", "What was struck", "operation or part", "The kind of operation, or the part of the state."),
        Facts.kind_groups,
    ),
    Dimension("stages", "Passes", "pass", "The pass that the struck operation belongs to."),
    Dimension("operands", "Operands", "operand", "The tensor of the operation that was struck."),
    Dimension("bits", "Bits", "role of the bit", OF_BITS, Facts.role_groups),
    Dimension(
        *("epochs", "Early or late", "part of the training", "The part of the training in which the fault struck."),
        Facts.quarter_groups,
    ),
    Dimension("models", "Fault models", "fault model", "A fault model says which elements become what."),
)


def _dimensions(campaigns: Compared) -> list[Section]:
    return [_section(campaigns, dimension) for dimension in DIMENSIONS]


def comparison_box(campaigns: Compared) -> Box:
    """The answer of a comparison: what is compared, how often, what differs and where, how sure."""
    rates = {name: facts.not_masked(facts.tally) for name, facts in campaigns.items()}
    confidences = {name: facts.plan.confidence for name, facts in campaigns.items()}
    whole = differences([("", {name: facts.tally for name, facts in campaigns.items()})], confidences)
    where: dict[str, Sequence[RateDifference]] = {}
    for dimension in DIMENSIONS:
        of: dict[str, dict[str, Tally]] = {}
        for name, facts in campaigns.items():
            for group in dimension.groups(facts):
                of.setdefault(group.name, {})[name] = group.tally
        if len(of) > 1:
            where[dimension.called] = differences(of.items(), confidences)
    every = {name: _description(facts) for name, facts in campaigns.items()}
    unlike = [key for key in _keys(every) if len({description.get(key) for description in every.values()}) > 1]
    titles = list(dict.fromkeys(f"{f.plan.workload.title} ({f.plan.workload.details})" for f in campaigns.values()))
    counted = "; ".join(f"{name}: {plural(facts.total, 'experiment')}" for name, facts in campaigns.items())
    often = "; ".join(f"{name}: not masked {share(rate)}" for name, rate in rates.items())
    by = [f"By {called}: {told(found)}" for called, found in where.items() if any(one.certain for one in found)]
    none = [called for called, found in where.items() if found and not any(one.certain for one in found)]
    if none:
        largest = max(one.largest for called in none for one in where[called])
        by.append(f"By {', '.join(none)} no difference is certain, and none is larger than {percent(largest)} points.")
    guesses = sum(rate.guesses for rate in rates.values())
    sure = (
        f"Intervals of differences hold together at {level(min(confidences.values()))} (all of them of one kind; "
        "samples taken to be independent), and those of rates each at the confidence of its plan"
    )
    sure += f"; they allow for {plural(guesses, 'early verdict')} that nobody followed" if guesses else ""
    what = f"{counted}; on {' and '.join(titles)}; unlike in {', '.join(unlike) or 'nothing'}."
    known = {called: [one.as_dict() for one in found if one.certain] for called, found in where.items()}
    return [
        BoxAnswer("What is compared", what),
        BoxAnswer("How often", f"{often}.", {name: rate._asdict() for name, rate in rates.items()}),
        BoxAnswer("What differs", told(whole), {"differences": [one.as_dict() for one in whole]}),
        BoxAnswer("Where they differ", " ".join(by) or "No group of experiments is in two of them.", known),
        BoxAnswer("How sure", f"{sure}.", {"guesses": guesses}),
    ]


def _keys(every: Mapping[str, Mapping[str, str]]) -> list[str]:
    return list(dict.fromkeys(key for description in every.values() for key in description))


def _differing(campaigns: Compared) -> Section:
    """What the campaigns' workloads and plans do not share."""
    every = {name: _description(facts) for name, facts in campaigns.items()}
    keys = _keys(every)
    rows: list[dict[str, Cell]] = [
        {"option": key, **{name: every[name].get(key, "")[:ROOM] for name in every}}
        for key in keys
        if len({description.get(key) for description in every.values()}) > 1
    ]
    text = "All other options of workload and plan are the same in all of them."
    groups = [Group(name, facts.tally, facts.not_masked(facts.tally)) for name, facts in campaigns.items()]
    alt = "Bars, one per campaign, divided into outcomes."
    paint, height = (
        functools.partial(painters.bars, groups=groups),
        0.85 + figures.legend_height(OUTCOMES) + figures.rows_height([group.name for group in groups], 0.24),
    )
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


def _section(campaigns: Compared, dimension: Dimension) -> Section:
    """A section of one dimension, see `findings.grouped`; left out where all experiments are alike in it."""
    query, title, called = dimension.query, dimension.title, dimension.called
    found = {name: {group.name: group for group in dimension.groups(facts)} for name, facts in campaigns.items()}
    names = list(dict.fromkeys(name for by_name in found.values() for name in by_name))
    if len(names) < 2:
        return Section(query, title, [], without="experiments are all alike in it, or have none")
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
    caption = f"Share not masked by {called}, in percent, with its interval."
    picture = figures.rate_picture(query, caption, names, series, "not masked")
    return Section(query, title, [dimension.text], [picture, Table(query, f"Rates by {called}.", rows)])


def _latency(campaigns: Compared) -> list[Section]:
    """How soon non-finite values appear."""
    found = {name: facts.latencies() for name, facts in campaigns.items()}
    if not any(found.values()):
        return [Section("latency", "Latency", [], without="no experiment has met a non-finite value")]
    rows: list[dict[str, Cell]] = []
    for name, facts in campaigns.items():
        steps = np.sort(np.repeat(list(found[name]), list(found[name].values()))) if found[name] else np.zeros(0)
        at = [f"{np.quantile(steps, q):.0f}" if len(steps) else "" for q in (0.25, 0.5, 0.75, 1)]
        within = dict(zip(("quarter", "half", "three quarters", "all"), at, strict=True))
        rows.append(
            {"campaign": name, "not finite": facts.tally.rate(DIVERGED, facts.plan.confidence, decided=True), **within}
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
