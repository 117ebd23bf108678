"""A page of text, tables and figures as one HTML file that needs nothing beside it.

Markup is made by `element` alone, which is where text is escaped.
"""

import base64
import dataclasses
import html
from collections.abc import Iterable, Mapping, Sequence

from .rates import Rate

LONG = 30  # a table with more rows than this is folded


Cell = str | int | float | Rate | None


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
      png: content of the file.
    """

    query: str
    caption: str
    alt: str
    png: bytes


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
    """

    key: str
    title: str
    text: Sequence[str]
    parts: Sequence[Part] = ()


class Markup(str):
    """Text that is HTML already; every other text is escaped where it enters an element.

    >>> element("p", "a < b ", element("b", "c"), id="x")
    '<p id="x">a &lt; b <b>c</b></p>'
    """


def element(name: str, /, *children: str, **attributes: str) -> Markup:
    """An element with its children: `class_` stands for the attribute `class`, `aria_label` for `aria-label`."""
    given = "".join(f' {key.rstrip("_").replace("_", "-")}="{html.escape(value)}"' for key, value in attributes.items())
    if name in ("img", "meta"):
        return Markup(f"<{name}{given}>")
    return Markup(f"<{name}{given}>{joined_markup(children)}</{name}>")


def joined_markup(children: Iterable[str], between: str = "") -> Markup:
    """Children one after the other: markup as it is, text escaped."""
    return Markup(between.join(child if isinstance(child, Markup) else html.escape(child) for child in children))


STYLE = """
:root { color-scheme: light dark; --text: #1f2328; --faint: #59636e; --line: #d1d9e0; --shade: #f6f8fa; --link: #0969da;
  --back: #ffffff }
@media (prefers-color-scheme: dark) {
  :root { --text: #e6edf3; --faint: #9198a1; --line: #3d444d; --shade: #151b23; --link: #4493f8; --back: #0d1117 }
}
* { box-sizing: border-box }
body { font: 16px/1.55 system-ui, sans-serif; max-width: 60rem; margin: 0 auto; padding: 1.5rem 1rem 4rem;
  color: var(--text); background: var(--back); overflow-wrap: break-word }
h1 { font-size: 1.7rem; line-height: 1.25; margin: 0 0 1rem }
h2 { font-size: 1.25rem; margin: 2.8rem 0 .6rem; padding-top: .8rem; border-top: 1px solid var(--line) }
h3 { font-size: 1rem; margin: 1.4rem 0 .3rem }
p { margin: .6rem 0; max-width: 46rem }
a { color: var(--link) }
nav ul { list-style: none; margin: 1.5rem 0; padding: 0; columns: 12rem; font-size: .9rem }
.summary { background: var(--shade); border-left: 4px solid #d55e00; padding: .6rem 1.1rem }
.summary h2 { border: 0; margin: .2rem 0; padding: 0 }
.summary ul { margin: .5rem 0; padding-left: 1.1rem }
.summary li { margin: .45rem 0 }
.scroll { overflow-x: auto }
table { border-collapse: collapse; font-size: .875rem; line-height: 1.4; font-variant-numeric: tabular-nums;
  margin: 1.2rem 0; min-width: 20rem }
caption, figcaption, summary { text-align: left; color: var(--faint); font-size: .875rem; padding-bottom: .4rem }
caption a, figcaption a { white-space: nowrap }
th, td { padding: 0.25rem 1rem .25rem 0; border-bottom: 1px solid var(--line); text-align: left; vertical-align: top }
th { font-weight: 600 }
tbody th { font-weight: 400; white-space: nowrap }
thead th { border-bottom: 2px solid var(--line); vertical-align: bottom }
.number { text-align: right; white-space: nowrap }
code, pre { font: .85em/1.45 ui-monospace, monospace }
pre { white-space: pre-wrap; background: var(--shade); padding: .6rem .8rem; margin: .3rem 0 }
figure { margin: 1.2rem 0 }
figcaption { padding: .4rem 0 0 }
img { display: block; width: 100%; max-width: 46rem; height: auto; background: #fff }
details { margin: 1.2rem 0 }
summary { cursor: pointer }
"""


def page(
    title: str,
    summary: Sequence[str],
    sections: Sequence[Section],
    queries: Mapping[str, str],
    file: str = "campaign.sqlite",
) -> str:
    """The whole page: a summary, a table of contents, the sections, and the queries that they link to.

    Args:
      summary: its sentences.
      queries: SQL by name; there may be none.
      file: what they are queries on.
    """
    known = Section("queries", "Queries", (f"Every table and every figure links to its query on {file}.",))
    listed = [*sections, known] if queries else sections
    contents = [element("li", element("a", s.title, href=f"#{s.key}")) for s in listed]
    said = [element("li", sentence) for sentence in summary]
    body = [
        element("h1", title),
        element("section", element("h2", "Summary"), element("ul", *said), class_="summary"),
        element("nav", element("ul", *contents), aria_label="Contents"),
        *map(_section, sections),
        *([_section(known, [_query(name, sql) for name, sql in queries.items()])] if queries else []),
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
    data = base64.b64encode(picture.png).decode()
    image = element("img", alt=picture.alt, src=f"data:image/png;base64,{data}")
    return element("figure", image, element("figcaption", _caption(picture)))


def _table(table: Table) -> Markup:
    columns = {name: _kind([row[name] for row in table.rows]) for name in table.rows[0]}
    head = element("tr", *(element("th", name, scope="col", **kind) for name, kind in columns.items()))
    rows = []
    for row in table.rows:
        first, *others = columns.items()
        cells = [element("th", _cell(row[first[0]]), scope="row", **first[1])]
        cells += [element("td", _cell(row[name]), **kind) for name, kind in others]
        rows.append(element("tr", *cells))
    whole = element(
        "table",
        element("caption", _caption(table)),
        element("thead", head),
        Markup("\n"),
        element("tbody", joined_markup(rows, "\n")),
    )
    scrolled = element("div", whole, class_="scroll", tabindex="0", role="region", aria_label=table.caption)
    if len(rows) <= LONG:
        return scrolled
    return element("details", element("summary", f"Show {len(rows):,} rows: {table.caption}"), scrolled)


def _kind(cells: Sequence[Cell]) -> dict[str, str]:
    """The attributes of a column's cells: numbers stand at the right."""
    return {} if any(isinstance(cell, str) for cell in cells) else {"class_": "number"}


def _cell(cell: Cell) -> str:
    match cell:
        case None:
            return ""
        case Rate():
            return percent(cell)
        case int():
            return f"{cell:,}"
        case float():
            return f"{cell:,.1f}"
    return cell


def percent(rate: Rate) -> str:
    """A rate with its interval.

    >>> percent(Rate(1, 8, 0.125, 0.022, 0.471))
    '12.50% [2.20%, 47.10%]'
    >>> percent(Rate(1, 8, 0.125, 0.022, 0.93, guesses=5, unaudited=5))
    '12.50% [2.20%, 93.00%], no audit'
    """
    if not rate.total:
        return "none decided"
    unseen = ", no audit" if rate.guesses and not rate.audits else ""
    return f"{rate.share:.2%} [{rate.low:.2%}, {rate.high:.2%}]{unseen}"
