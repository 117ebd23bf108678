"""What a campaign's map says: sentences, a page of pictures and tables, JSON.  Each number has its sample beside it."""

import itertools
import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from ...campaign.box import Box, BoxAnswer, box_dict
from ...campaign.page import Cell, Commands, Picture, Section, Table, joined_markup, page, wide
from ...campaign.rates import Rate
from ...campaign.wording import interval, plural
from ...machine.files import write_sealed, write_text
from .campaign_map import FATES, PARAMETERS, CampaignMap, campaign_map_values, fates, grouped, read_campaign_map
from .heat_map import COLOURS, Band, Head, Tile, bands, drawn, keys
from .sentences import after, share

MOST_SITES = 40  # rows of the table by site
MOST_STRUCK = 120  # rows that what is struck is folded to, of which only the struck ones are columns
SHARES = (0.05, 0.25, 0.5, 0.75, 0.95)  # of experiments: the bounds between colours


def campaign_answers(found: CampaignMap) -> Box:
    """The answer: how many came to the parameters, where the others died, and what it says of outcomes."""
    sample, rates = found.experiments, fates(found.experiments)
    how_far = [f"{_counted(rates[fate])}: {fate}" for fate in reversed(FATES) if rates[fate].found]
    told = [BoxAnswer("How far it came", f"In the step struck, of {len(sample)} experiments: {'; '.join(how_far)}.")]
    died = [one for one in sample if one.fate != PARAMETERS and one.last]
    if died:
        last, those = next(iter(grouped(died, "last").items()))
        where = f"Of {len(died)} that died on the way, {len(those)} were last seen in {last}."
        told.append(BoxAnswer("Where it died", where))
    by_outcome = [
        f"{outcome}: in {sum(one.fate == PARAMETERS for one in those)} of {len(those)}"
        for outcome, those in grouped(sample, "outcome").items()
    ]
    told.append(BoxAnswer("By outcome", f"Parameters differ after the step struck: {'; '.join(by_outcome)}."))
    sure = [f"{len(sample)} of {found.of:,} experiments that are done were mapped, drawn at random."]
    same = sum(one.same for one in sample)
    sure.append(f"In {same} of {len(sample)} the losses are those that the campaign recorded, bit for bit.")
    if same < len(sample):
        sure.append(
            "The others round differently, as on another processor or by another version. Outcomes are the campaign's, "
            "and how far a fault comes is of the run here: in single experiments they may not belong together."
        )
    return [*told, BoxAnswer("How sure", " ".join(sure))]


def _counted(rate: Rate) -> str:
    return f"{rate.found} ({share(rate.share)} {interval(rate.low, rate.high)})"


def campaign_page(found: CampaignMap, title: str, commands: Sequence[str] = ()) -> str:
    """The page of a campaign's map."""
    sections = [
        Section("outcomes", "How far faults came, by outcome", *_by_outcome(found)),
        Section("struck", "How far faults came, by what they strike", *_by_struck(found)),
        _fates(found),
        _sites(found),
        *(_tensors(found, step) for step in dict.fromkeys((0, found.steps))),
    ]
    if commands:
        sections.append(Section("made", "How it was made", (), [Commands("This command makes it:", commands)]))
    return page(title, campaign_answers(found), sections, {})


def _by_outcome(found: CampaignMap) -> tuple[Sequence[str], list[Picture]]:
    """The picture of outcomes and steps, with its text."""
    counts = grouped(found.experiments, "outcome")
    columns, heads = [], []
    for outcome, each in found.by_outcome.items():
        of = len(counts[outcome])
        for step in range(found.steps + 1):
            heads.append(Head(f"{outcome}, of {of}" if step == 0 else f"+ {plural(step, 'step')}", apart=step == 0))
            columns.append((each.experiments[:, step], of, f"{outcome}, {after(step)}", frozenset[str]()))
    text = (
        "Each row is a tensor of the training step, in the order in which the step computes it. The columns are the "
        "experiments of each outcome: after the step struck, and after the steps that follow. The colour is the share "
        "of these experiments in which the tensor differs from the golden run.",
    )
    return text, [_picture(found, heads, columns, "In which share of each outcome's experiments a tensor differs.")]


def _by_struck(found: CampaignMap) -> tuple[Sequence[str], list[Picture]]:
    """The picture of what is struck and what it reaches, with its text."""
    shown, sites = bands(found.rows, MOST_STRUCK), grouped(found.experiments, "site")
    columns, heads, kind = [], [], ""
    for band in shown:
        names = {found.rows[row].name for row in band.rows} & found.by_site.keys()
        if not names:
            continue
        of = sum(len(sites[name]) for name in names)
        heads.append(Head(f"{band.label}, of {of}", apart=band.kind != kind))
        told = f"struck: {', '.join(sorted(names))}"
        columns.append((np.sum([found.by_site[name] for name in names], axis=0), of, told, frozenset(names)))
        kind = band.kind
    text = [
        "The rows are those above, and the columns what is struck, in the same order. The colour is the share of these "
        "experiments in which the tensor differs after the step struck. The blue frame is what is struck. Where a "
        "column ends, its faults died.",
    ]
    unseen = len(found.by_site) - sum(len(names) for *_, names in columns)
    if unseen:
        text.append(f"Left out: {plural(unseen, 'struck operation')} whose result no row shows.")
    if not columns:
        return text, []
    return text, [_picture(found, heads, columns, "Which tensors faults reach in the step struck.")]


Column = tuple[np.ndarray, int, str, frozenset[str]]  # experiments that differ by tensor, of how many, words, struck


def _picture(found: CampaignMap, heads: Sequence[Head], columns: Sequence[Column], caption: str) -> Picture:
    shown = bands(found.rows)
    tiles = [[_tile(found, band, column) for column in columns] for band in shown]
    svg = drawn(found.rows, shown, heads, tiles, "")
    pairs = itertools.pairwise((*SHARES, 1.0))
    bounds = [f"up to {share(SHARES[0])}", *(f"{share(low)} to {share(high)}" for low, high in pairs)]
    samples = keys(list(zip(COLOURS[-len(bounds) :], bounds, strict=True)))
    alt = "Rows of tensors; a table below has the numbers."
    return Picture("", caption, alt, joined_markup([samples, wide(svg, caption)]))


def _tile(found: CampaignMap, band: Band, column: Column) -> Tile:
    """Of the tensor of a band that differs in most experiments."""
    counts, of, told, struck = column
    most = max(band.rows, key=lambda row: int(counts[row]))
    framed, count = any(found.rows[row].name in struck for row in band.rows), int(counts[most])
    colour = COLOURS[1 + sum(count / of > bound for bound in SHARES)] if count else ""
    return Tile(colour, f"{found.rows[most].name}: {count} of {of}; {told}", framed)


def _fates(found: CampaignMap) -> Section:
    sample = found.experiments
    rows: list[dict[str, Cell]] = []
    for fate, rate in fates(sample).items():
        row: dict[str, Cell] = {"how far it came in the step struck": fate, "experiments": rate.found, "share": rate}
        counts = {o: sum(one.fate == fate for one in those) for o, those in grouped(sample, "outcome").items()}
        rows.append(row | counts)
    return Section("fates", "Where harm dies", (), [Table("", f"Of {len(sample)} experiments", rows)])


def _sites(found: CampaignMap) -> Section:
    sample = found.experiments
    rows: list[dict[str, Cell]] = []
    for site, those in list(grouped(sample, "site").items())[:MOST_SITES]:
        died = dict.fromkeys(one.last or "nothing" for one in those if one.fate != PARAMETERS)
        rows.append(
            {
                "struck": site,
                "experiments": len(those),
                "reached parameters": sum(one.fate == PARAMETERS for one in those),
                "others last seen in": ", ".join(died),
            }
        )
    caption = f"Of {len(sample)} experiments, the most struck"
    return Section("sites", "By what is struck", (), [Table("", caption, rows)])


def _tensors(found: CampaignMap, step: int) -> Section:
    counts = {outcome: len(those) for outcome, those in grouped(found.experiments, "outcome").items()}
    rows: list[dict[str, Cell]] = []
    for place, row in enumerate(found.rows):
        cells: dict[str, Cell] = {"tensor": row.name, "kind": row.kind}
        for outcome, each in found.by_outcome.items():
            count, mean = int(each.experiments[place, step]), float(each.share[place, step])
            cells[f"{outcome} ({counts[outcome]})"] = f"{count}; {share(mean)}" if count else "0"
        rows.append(cells)
    text = "In how many experiments of each outcome a tensor differs; behind it, the mean share of its elements."
    table = Table("", f"Tensors {after(step)}", rows)
    return Section(f"tensors-{step}", f"What differs {after(step)}", (text,), [table])


def campaign_map_json(found: CampaignMap) -> dict[str, Any]:
    """A campaign's map as JSON values, its answer first."""
    return {"summary": box_dict(campaign_answers(found)), **campaign_map_values(found)}


def write_campaign_map(found: CampaignMap, out: pathlib.Path, title: str, commands: Sequence[str]) -> None:
    """Write `map.html` and `map.json`, from which `rewrite_campaign_map_page` makes the page again."""
    write_text(out / "map.html", campaign_page(found, title, commands))
    write_sealed(out / "map.json", {**campaign_map_json(found), "title": title, "commands": list(commands)})


def rewrite_campaign_map_page(out: pathlib.Path) -> None:
    """Write the page of a campaign's map again, from what was written beside it."""
    found, title, commands = read_campaign_map(out / "map.json")
    write_text(out / "map.html", campaign_page(found, title, commands))
