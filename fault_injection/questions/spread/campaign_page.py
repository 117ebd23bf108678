"""What a campaign's map says: sentences, a page of tables, JSON.  Every number has its sample beside it."""

from collections.abc import Sequence
from typing import Any

from ...campaign.box import Box, BoxAnswer, box_dict
from ...campaign.page import Cell, Section, Table, page
from ...campaign.rates import Rate
from .campaign import FATES, PARAMETERS, MappedExperiment, fates, groups, passing
from .sentences import share

MOST_SITES = 40  # rows of the table by site


def campaign_answers(sample: Sequence[MappedExperiment], of: int) -> Box:
    """The answer: how many came to the parameters, where the others died, and what it says of outcomes.

    Args:
      of: experiments of the campaign that are done.
    """
    found = fates(sample)
    how_far = [f"{_counted(found[fate])}: {fate}" for fate in reversed(FATES) if found[fate].found]
    told = [BoxAnswer("How far it came", f"{'; '.join(how_far)}.")]
    died = [one for one in sample if one.fate != PARAMETERS and one.last]
    if died:
        last, those = next(iter(groups(died, "last").items()))
        where = f"Of {len(died)} that died on the way, {len(those)} were last seen in {last}."
        told.append(BoxAnswer("Where it died", where))
    by_outcome = [
        f"{outcome}: in {sum(one.fate == PARAMETERS for one in those)} of {len(those)} experiments parameters differ "
        "after the step struck"
        for outcome, those in groups(sample, "outcome").items()
    ]
    told.append(BoxAnswer("By outcome", f"{'; '.join(by_outcome)}."))
    drawn = f"{len(sample)} of {of:,} experiments that are done were mapped, drawn at random."
    return [*told, BoxAnswer("How sure", drawn)]


def _counted(rate: Rate) -> str:
    return f"{rate.found} of {rate.total} ({share(rate.share)}, 95 % interval {share(rate.low)} to {share(rate.high)})"


def campaign_page(sample: Sequence[MappedExperiment], of: int, title: str) -> str:
    """The page of a campaign's map."""
    outcomes = groups(sample, "outcome")
    last = max(len(one.found.steps) for one in sample) - 1
    how_far: list[dict[str, Cell]] = []
    for fate, rate in fates(sample).items():
        row: dict[str, Cell] = {"how far it came in the step struck": fate, "experiments": rate.found, "share": rate}
        how_far.append(row | {outcome: sum(one.fate == fate for one in those) for outcome, those in outcomes.items()})
    by_site: list[dict[str, Cell]] = []
    for site, those in list(groups(sample, "site").items())[:MOST_SITES]:
        died = dict.fromkeys(one.last or "nothing" for one in those if one.fate != PARAMETERS)
        came = sum(one.fate == PARAMETERS for one in those)
        row = {
            "struck": site,
            "experiments": len(those),
            "reached parameters": came,
            "others last seen in": ", ".join(died),
        }
        by_site.append(row)
    sections = [
        Section("fates", "Where harm dies", (), [Table("", f"Of {len(sample)} experiments", how_far)]),
        Section(
            "sites", "By what is struck", (), [Table("", f"Of {len(sample)} experiments, the most struck", by_site)]
        ),
        *(_passing(sample, step) for step in dict.fromkeys((0, last))),
    ]
    return page(title, campaign_answers(sample, of), sections, {})


def _passing(sample: Sequence[MappedExperiment], step: int) -> Section:
    outcomes, kinds = groups(sample, "outcome"), {row.name: row.kind for row in sample[0].found.rows}
    rows = []
    for name, found in passing(sample, step).items():
        row: dict[str, Any] = {"tensor": name, "kind": kinds[name]}
        for (outcome, those), (count, mean) in zip(outcomes.items(), found, strict=True):
            row[f"{outcome} ({len(those)})"] = f"{count}; {share(mean)}" if count else "0"
        rows.append(row)
    when = "in the step struck" if step == 0 else f"{step} steps later"
    text = (
        "In how many experiments of each outcome a tensor differs; behind it, the mean share of its elements that do."
    )
    return Section(f"tensors-{step}", f"What differs {when}", (text,), [Table("", f"Tensors {when}", rows)])


def campaign_json(sample: Sequence[MappedExperiment], of: int) -> dict[str, Any]:
    """A campaign's map as JSON values."""
    last = max(len(one.found.steps) for one in sample) - 1
    return {
        "summary": box_dict(campaign_answers(sample, of)),
        "done": of,
        "experiments": [
            {"number": one.number, "outcome": one.outcome, "site": one.site, "fate": one.fate, "last": one.last}
            for one in sample
        ],
        "fates": {
            fate: {"found": rate.found, "of": rate.total, "low": rate.low, "high": rate.high}
            for fate, rate in fates(sample).items()
        },
        "outcomes": {outcome: len(those) for outcome, those in groups(sample, "outcome").items()},
        "rows": [row._asdict() for row in sample[0].found.rows],
        "differs": {str(step): passing(sample, step) for step in dict.fromkeys((0, last))},
    }
