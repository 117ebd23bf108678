"""A report as one HTML file that needs nothing beside it."""

import base64
import dataclasses
import html
from collections.abc import Mapping, Sequence


@dataclasses.dataclass(frozen=True)
class Table:
    """A table of a report.

    Attributes:
      query: key of `QUERIES`, where its numbers come from.
      head: of its columns.
      rows: cells as text; all but the first of a row link to the query.
    """

    query: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclasses.dataclass(frozen=True)
class Section:
    """A section of a report.

    Attributes:
      title, text: its heading, and what to know before looking.
      tables: what it counts.
      pictures: query that they show, caption, PNG.
    """

    title: str
    text: str
    tables: Sequence[Table] = ()
    pictures: Sequence[tuple[str, str, bytes]] = ()


STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #222 }
table { border-collapse: collapse; margin: 1rem 0; font-variant-numeric: tabular-nums }
td, th { padding: .15rem .7rem; border-bottom: 1px solid #ddd; text-align: left; vertical-align: top }
td a { color: inherit; text-decoration: none; border-bottom: 1px dotted #999 }
figure { margin: 1rem 0 }
img { max-width: 100% }
figcaption { color: #666 }
pre { white-space: pre-wrap; background: #f6f6f6; padding: .5rem }
details table { font-size: 13px }
"""
LONG = 40  # rows from which a table is folded


def page(title: str, sections: Sequence[Section], queries: Mapping[str, str]) -> str:
    """The sections, and the queries that their tables link to, as HTML."""
    parts = [f"<h1>{html.escape(title)}</h1>"]
    for section in sections:
        parts += [f"<h2>{html.escape(section.title)}</h2>", f"<p>{html.escape(section.text)}</p>"]
        parts += [_figure(*picture) for picture in section.pictures]
        parts += map(_table, section.tables)
    parts.append("<h2>Queries</h2><p>What tables and figures above show links to its query on campaign.sqlite.</p>")
    parts += [f'<h3 id="{name}">{name}</h3><pre>{html.escape(sql)}</pre>' for name, sql in queries.items()]
    body = "\n".join(parts)
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{html.escape(title)}</title>'
        f"<style>{STYLE}</style></head>\n<body>\n{body}\n</body></html>\n"
    )


def _figure(query: str, caption: str, picture: bytes) -> str:
    data, text = base64.b64encode(picture).decode(), html.escape(caption)
    image = f'<img alt="{text}" src="data:image/png;base64,{data}">'
    return f"<figure>{image}<figcaption><a href="  # {query}">{text}</a></figcaption></figure>"


def _table(table: Table) -> str:
    def linked(cell):
        return f'<td><a href="#{table.query}">{html.escape(cell)}</a></td>' if cell else "<td></td>"

    head = "".join(f"<th>{html.escape(name)}</th>" for name in table.head)
    rows = [f"<tr><td>{html.escape(row[0])}</td>{''.join(map(linked, row[1:]))}</tr>" for row in table.rows]
    text = f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
    return f"<details><summary>{len(rows)} rows</summary>{text}</details>" if len(rows) > LONG else text
