"""A page of text, tables and figures as one HTML file that needs nothing beside it.

Markup is made by `element` alone, which is where text is escaped.
"""

import dataclasses
import html
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from .box import Box
from .page_script import SCRIPT
from .page_style import STYLE
from .rates import Rate
from .wording import number, share

LONG = 30  # a table with more rows than this is folded
SHORT = 28  # a cell of more characters than this may have several lines


class Shown(NamedTuple):
    """A cell that names an experiment, whose curve and command a click shows."""

    number: int


Cell = str | int | float | Rate | Shown | None


class ClickedExperiment(NamedTuple):
    """What a click on an experiment shows.

    Attributes:
      said: what struck it, and what came of it.
      curve: of the measure, by steps from the fault: `(steps, value)`; a value that is not finite is None.
    """

    said: str
    curve: Sequence[tuple[int, float | None]]


class Experiments(NamedTuple):
    """The experiments that a page shows at a click.

    Attributes:
      folder: of the campaign, for the command that replays one.
      measure: what the curves are of.
      known: by number.
    """

    folder: str
    measure: str
    known: Mapping[int, ClickedExperiment]


@dataclasses.dataclass(frozen=True)
class Table:
    """A table of a page.

    Attributes:
      query: name of the query that its numbers come from; empty for none.
      caption: what it shows.
      rows: one mapping from column to cell per row, all with the same columns; at least one row.
        The first cell names the row.
    """

    query: str
    caption: str
    rows: Sequence[Mapping[str, Cell]]


@dataclasses.dataclass(frozen=True)
class Picture:
    """A figure of a page.

    Attributes:
      query: name of the query that it shows; empty for none.
      caption: what it shows.
      alt: what a reader who cannot see it is told.
      svg: the figure, an element of HTML.
    """

    query: str
    caption: str
    alt: str
    svg: str


@dataclasses.dataclass(frozen=True)
class Commands:
    """Lines that a reader may copy to a terminal.

    Attributes:
      caption: what they do.
      lines: the commands.
    """

    caption: str
    lines: Sequence[str]


Part = Table | Picture | Commands


@dataclasses.dataclass(frozen=True)
class Section:
    """A section of a page.

    Attributes:
      key: its address within the page.
      title: its heading.
      text: its paragraphs.
      parts: what it shows, in this order.
      without: why it has no content; such a section is left out, and named with this reason.
    """

    key: str
    title: str
    text: Sequence[str]
    parts: Sequence[Part] = ()
    without: str = ""


class Markup(str):
    """Text that is HTML already; every other text is escaped where it enters an element.

    >>> element("p", "a < b ", element("b", "c"), id="x")
    '<p id="x">a &lt; b <b>c</b></p>'
    """


def element(name: str, /, *children: str, **attributes: str) -> Markup:
    """An element with its children: `class_` stands for the attribute `class`, `aria_label` for `aria-label`."""
    given = "".join(f' {key.rstrip("_").replace("_", "-")}="{html.escape(value)}"' for key, value in attributes.items())
    if name in ("input", "meta", "wbr"):
        return Markup(f"<{name}{given}>")
    return Markup(f"<{name}{given}>{joined_markup(children)}</{name}>")


def joined_markup(children: Iterable[str], between: str = "") -> Markup:
    """Children one after the other: markup as it is, text escaped."""
    return Markup(between.join(child if isinstance(child, Markup) else html.escape(child) for child in children))


def page(
    title: str,
    box: Box,
    sections: Sequence[Section],
    queries: Mapping[str, str],
    file: str = "campaign.sqlite",
    experiments: Experiments | None = None,
) -> str:
    """The whole page: the answer, a table of contents, the sections, and the queries that they link to.

    Args:
      box: the answer that the reader came for.
      sections: those without content are left out, and named with the reason.
      queries: SQL by name; there may be none.
      file: what they are queries on.
      experiments: what a click on one shows; None where no part names one.
    """
    known = Section("queries", "Queries", (f"Every table and every figure links to its query on {file}.",))
    here = [section for section in sections if not section.without]
    listed = [*here, known] if queries else here
    contents = [element("li", element("a", s.title, href=f"#{s.key}")) for s in listed]
    said = [
        joined_markup([*([element("dt", one.question)] if one.question else []), element("dd", one.sentence)])
        for one in box
    ]
    body = [
        element("h1", title),
        element("section", element("h2", "Answer"), element("dl", *said), class_="summary"),
        element("nav", element("ul", *contents), aria_label="Contents"),
        *_left_out(sections),
        *map(_section, here),
        *([_section(known, [_query(name, sql) for name, sql in queries.items()])] if queries else []),
        *([] if experiments is None else [_embedded(experiments)]),
        element("script", Markup(SCRIPT)),
    ]
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("title", title),
        element("style", Markup(STYLE)),
    )
    whole = element("html", Markup("\n"), head, Markup("\n"), element("body", joined_markup(body, "\n")), lang="en")
    return f"<!doctype html>\n{whole}\n"


def _left_out(sections: Sequence[Section]) -> list[Markup]:
    """One paragraph that names the sections without content, and why; none where all have some."""
    reasons: dict[str, list[str]] = {}
    for section in sections:
        if section.without:
            reasons.setdefault(section.without, []).append(section.title)
    named = "; ".join(f"{', '.join(titles)} ({why})" for why, titles in reasons.items())
    return [element("p", f"Left out: {named}.", class_="left-out")] if named else []


def _embedded(experiments: Experiments) -> Markup:
    """What the script knows of experiments, as JSON that no text in it can end."""
    told = {"folder": experiments.folder, "measure": experiments.measure, "experiments": experiments.known}
    text = json.dumps(told, separators=(",", ":"), allow_nan=False)
    escaped = text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")
    return element("script", Markup(escaped), type="application/json", id="experiments")


def _section(section: Section, more: Sequence[Markup] = ()) -> Markup:
    parts = [_part(part) for part in section.parts]
    text = [element("p", paragraph) for paragraph in section.text]
    return element("section", joined_markup([element("h2", section.title), *text, *parts, *more], "\n"), id=section.key)


def _part(part: Part) -> Markup:
    match part:
        case Table():
            return _table(part)
        case Picture():
            return _figure(part)
        case Commands():
            return joined_markup([element("p", part.caption), element("pre", "\n".join(part.lines))])


def _query(name: str, sql: str) -> Markup:
    return joined_markup([element("h3", element("code", name), id=f"query-{name}"), element("pre", sql)])


def _caption(part: Table | Picture) -> Markup:
    if not part.query:
        return Markup(html.escape(part.caption))
    link = element("a", "query", href=f"#query-{part.query}")
    return joined_markup([part.caption, " (", link, ")"])


def _figure(picture: Picture) -> Markup:
    return element("figure", Markup(picture.svg), element("figcaption", _caption(picture)))


def _table(table: Table) -> Markup:
    columns = {name: _kind([row[name] for row in table.rows]) for name in table.rows[0]}
    head = element("tr", *(element("th", name, scope="col", **kind) for name, kind in columns.items()))
    rows = []
    for row in table.rows:
        first, *others = columns.items()
        cells = [element("th", _breakable(_cell(row[first[0]])), scope="row", **first[1])]
        cells += [element("td", _cell(row[name]), **kind) for name, kind in others]
        rows.append(element("tr", *cells))
    whole = element("table", element("thead", head), Markup("\n"), element("tbody", joined_markup(rows, "\n")))
    # The caption is no part of the table, so that it stays where the table is scrolled.
    made = wide(whole, table.caption, element("p", _caption(table), class_="caption"))
    if len(rows) <= LONG:
        return made
    return element("details", element("summary", f"Show {len(rows):,} rows: {table.caption}"), made)


def wide(content: Markup, label: str, *before: Markup) -> Markup:
    """What is scrolled where the page is narrower, with a hint that there is more.

    Args:
      label: what it is, for who does not see it.
      before: what stays above it.
    """
    tools = element("div", element("span", "more to the right →", class_="more"), class_="tools")
    scrolled = element("div", content, class_="scroll", tabindex="0", role="region", aria_label=label)
    return element("div", *before, tools, scrolled, class_="wide")


def _breakable(name: str) -> Markup:
    """The name of a row, which may go on in the next line after a stroke or a line below."""
    if isinstance(name, Markup):
        return name
    pieces = [Markup(html.escape(piece)) for piece in re.split(r"(?<=[_/])(?=.)", name)]
    return joined_markup(pieces, element("wbr"))


def _kind(cells: Sequence[Cell]) -> dict[str, str]:
    """The attributes of a column's cells: numbers stand at the right, and long text has room."""
    texts = [cell for cell in cells if isinstance(cell, str)]
    if not texts:
        return {"class_": "number"}
    return {"class_": "short" if max(map(len, texts)) <= SHORT else "long"}


def _cell(cell: Cell) -> str:
    match cell:
        case None:
            return ""
        case Rate():
            return share(cell)
        case Shown():
            return element("button", str(cell.number), type="button", data_experiment=str(cell.number))
        case int() | float():
            return number(cell)
    return cell
