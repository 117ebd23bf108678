"""The report of a campaign: `report.html`, which needs nothing beside it, and its figures as SVG files."""

import pathlib
from collections.abc import Callable, Mapping, Sequence

from ....campaign import figures
from ....campaign.box import Box
from ....campaign.page import Commands, Section, page
from ....machine.files import write_text
from ..store import Store
from .answers import answered, by_dimension, strata
from .cards import experiments
from .conduct import accounting, all_counts, audited, environment, not_modelled
from .facts import Facts
from .findings import depth, grouped, inverted_bits, latency, necessary_condition, outcomes, worst
from .protection import protecting
from .queries import QUERIES
from .settled import settled
from .summary import summary
from .together import together

SECTIONS: Sequence[Callable[[Facts], Section]] = (
    worst,
    outcomes,
    grouped("models", "Fault models", "fault model", "A fault model says which elements become what.", True),
    grouped("stages", "Stages", "stage", "The pass, forward or backward, that the struck operation belongs to."),
    grouped("kinds", "Operations", "operation", "What kind of operation was struck.", True, Facts.kind_groups, "sites"),
    grouped("operands", "Operands", "operand", "The tensor of the operation that was struck.", True),
    grouped("epochs", "Epochs", "epoch", "The epoch of the fault, counted from 0."),
    depth,
    inverted_bits,
    protecting,
    latency,
    necessary_condition,
    accounting,
    audited,
    all_counts,
    environment,
    not_modelled,
)


# Of a campaign that wants a width; `answers.by_dimension` comes after the first.
WANTED_SECTIONS: Sequence[Callable[[Facts], Section]] = (
    answered,
    strata,
    worst,
    accounting,
    audited,
    environment,
    not_modelled,
)


def write_report(folder: pathlib.Path) -> pathlib.Path:
    """Write `report.html` and `figures/*.svg` of the campaign in `folder`.

    Returns:
      the path of `report.html`.

    Raises:
      InputError: there is no campaign, it has not begun, or it cannot be read.
    """
    with Store(folder) as store:
        facts = Facts(store)
        title = f"Campaign: {facts.plan.workload.title}"
        sections = [section(facts) for section in (SECTIONS if facts.plan.wanted is None else WANTED_SECTIONS)]
        if facts.plan.settled is not None:
            sections.insert(SECTIONS.index(audited) + 1, settled(facts))
        if facts.plan.together is not None:
            sections.insert(SECTIONS.index(audited) + 1, together(facts))
        queries: Mapping[str, str] = QUERIES
        if facts.plan.wanted is not None:
            sections[1:1] = by_dimension(facts)
            # Others count experiments for rates.
            used = {part.query for section in sections for part in section.parts if not isinstance(part, Commands)}
            queries = {name: sql for name, sql in QUERIES.items() if name in used}
        whole = page(title, summary(facts), sections, queries, experiments=experiments(facts))
    figures.write(folder / "figures", sections)
    write_text(folder / "report.html", whole)
    return folder / "report.html"


def report_box(folder: pathlib.Path) -> Box:
    """The answer of the campaign in `folder`, of which nothing is written; raises as `write_report`."""
    with Store(folder) as store:
        return summary(Facts(store))
