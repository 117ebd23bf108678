"""The picture of a map: rows are tensors in the order of the computation, columns are steps, or kinds of experiments.

It is SVG, written as text.  Of one map a cell's colour is the difference relative to the tensor.  A reader who points
at a cell is told the numbers.
"""

import html
import itertools
import re
from collections.abc import Collection, Sequence
from typing import NamedTuple

import numpy as np

from ...campaign.page import Markup
from ...campaign.wording import number
from ...runs.fault_map import RESULTS, FaultMap, MapRow
from .sentences import share

CELL, LABEL, TOP = 11, 290, 34  # pixels: a cell's side, the width of names, the height of the numbers of steps
MOST_ROWS = 80  # above which rows are folded
EXPONENTS = (-6, -4, -2, -1, 0, 2)  # of ten: the bounds between colours
COLOURS = ("#fde9c9", "#fdd49e", "#fdbb84", "#fc8d59", "#e34a33", "#b30000", "#6a0010")
NONFINITE, APART = "#000000", 8  # colour of what is not finite; pixels between kinds of rows, or groups of columns


class Band(NamedTuple):
    """One row of the picture: a tensor, or all tensors of one kind of one layer.

    Attributes:
      label: what it is called.
      kind: see `fault_map.KINDS`.
      rows: places of its tensors in the map.
    """

    label: str
    kind: str
    rows: tuple[int, ...]


def bands(rows: Sequence[MapRow], most: int = MOST_ROWS, alone: Collection[str] = ()) -> list[Band]:
    """The rows of the picture: all tensors, or neighbours folded into one row where they are too many.

    Neighbours of one kind are folded by layer; where that leaves too many rows, by what the names of layers begin with.
    Results of operations of one layer are neighbours whatever their roles are.

    Args:
      most: rows; a picture has more where nothing is left to fold.
      alone: names of what is never folded: what is struck.

    >>> rows = [MapRow(f"m/block_{b}_conv{c}/kernel", "history", f"block_{b}_conv{c}", 9) for b in "12" for c in "123"]
    >>> [band.label for band in bands(rows, 2)], len(bands(rows, 6))
    (['m/block_1 (3)', 'm/block_2 (3)'], 6)
    """
    single = [Band(row.name, row.kind, (place,)) for place, row in enumerate(rows)]
    if len(single) <= most:
        return single
    deepest = max(len(_ENDS.findall(row.layer)) for row in rows)
    for depth in range(deepest, -1, -1):
        made = _folded(rows, depth, alone)
        if len(made) <= most:
            break
    return made


def _folded(rows: Sequence[MapRow], depth: int, alone: Collection[str]) -> list[Band]:
    """Neighbours of one kind as one band where the first parts of their layers' names, `depth` + 1, are the same."""
    made: list[Band] = []

    def key(place: int) -> tuple[str, str, bool]:
        row = rows[place]
        return row.kind, row.name if row.name in alone else _group(row, depth), row.name in alone

    for (kind, label, _), places in itertools.groupby(range(len(rows)), key):
        those = tuple(places)
        label = rows[those[0]].name if len(those) == 1 else f"{label} ({len(those)})"
        made.append(Band(label, kind, those))
    return made


_ENDS = re.compile(r"[_/.]")  # of the parts of a layer's name


def _group(row: MapRow, depth: int) -> str:
    """The name of a row up to a part of its layer's name."""
    ends = [found.start() for found in _ENDS.finditer(row.layer)]
    layer = row.layer[: ends[depth]] if depth < len(ends) else row.layer
    before = row.name.partition(row.layer)[0] if row.layer else row.name
    before = "" if row.kind in RESULTS and row.layer else before  # the roles of a layer's operations alternate
    return f"{before}{layer}"


class Shade(NamedTuple):
    """What is shown of a band in one step.

    Attributes:
      share: of its elements, that differ.
      relative: the largest of its tensors' root-mean-square differences, relative to the tensor.
      nonfinite: elements that are not finite, where the golden ones are.
    """

    share: float
    relative: float
    nonfinite: int

    @property
    def colour(self) -> int:
        """Which of `COLOURS`; −1 where nothing differs, the number of colours where something is not finite."""
        if self.nonfinite:
            return len(COLOURS)
        if not self.share:
            return -1
        return sum(self.relative >= 10.0**bound for bound in EXPONENTS)


def cells(found: FaultMap, shown: Sequence[Band]) -> list[list[Shade]]:
    """What is shown of each band in each step."""
    more, relative = np.maximum(found.nonfinite - found.golden_nonfinite, 0), found.relative_rms
    made = []
    for band in shown:
        rows = list(band.rows)
        size = max(sum(found.rows[row].size for row in rows), 1)
        differs, lost = found.differs[rows].sum(axis=0) / size, more[rows].sum(axis=0)
        top = relative[rows].max(axis=0)
        made.append([Shade(float(a), float(b), int(n)) for a, b, n in zip(differs, top, lost, strict=True)])
    return made


def heat_map(found: FaultMap, most: int = MOST_ROWS) -> Markup:
    """The picture of one map.  Cells of one step are a group, so that a page can show step after step.

    Args:
      most: rows, see `bands`.
    """
    shown = bands(found.rows, most, found.struck)
    values, steps, struck = cells(found, shown), range(len(found.steps)), found.struck
    tiles = [
        [
            Tile(
                "" if (colour := shade.colour) < 0 else NONFINITE if colour == len(COLOURS) else COLOURS[colour],
                f"{share(shade.share)}, {number(shade.relative)}"
                + (f", {shade.nonfinite} not finite" if shade.nonfinite else ""),
                framed=any(step in struck.get(found.rows[one].name, ()) for one in band.rows),
            )
            for step, shade in zip(steps, shades, strict=True)
        ]
        for band, shades in zip(shown, values, strict=True)
    ]
    heads = [Head(str(step) if step % 5 == 0 else "") for step in steps]
    first = f"steps after epoch {found.steps[0].epoch}, step {found.steps[0].step}"
    return drawn(found.rows, shown, heads, tiles, first)


class Tile(NamedTuple):
    """A cell of a picture.

    Attributes:
      colour: empty where nothing is drawn.
      told: to who points at it.
      framed: a fault strikes there.
    """

    colour: str
    told: str
    framed: bool = False


class Head(NamedTuple):
    """What stands above a column.

    Attributes:
      text: written upwards where it is longer than a number of steps.
      apart: whether the column stands apart from the one before.
    """

    text: str
    apart: bool = False


def drawn(
    rows: Sequence[MapRow], shown: Sequence[Band], heads: Sequence[Head], tiles: Sequence[Sequence[Tile]], title: str
) -> Markup:
    """A picture as one SVG element.

    Args:
      rows: all tensors, which the bands are of.
      heads: of the columns.
      tiles: by band and column.
      title: above the columns.
    """
    upwards = max((len(head.text) for head in heads), default=0) > 4
    top = TOP + (max(len(head.text) for head in heads) * 5 if upwards else 0)
    tops, at = [], top
    for place, band in enumerate(shown):
        at += APART if place and shown[place - 1].kind != band.kind else 0
        tops.append(at)
        at += CELL
    lefts, x = [], LABEL
    for head in heads:
        x += APART if head.apart else 0
        lefts.append(x)
        x += CELL
    width, height = x + 90, at + 8
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'role="img" aria-label="{len(shown)} rows, {len(heads)} columns" font-family="sans-serif" font-size="9">'
        f'<text x="{LABEL}" y="12" fill="currentColor">{html.escape(title)}</text>'
    ]
    for band, y, row in zip(shown, tops, tiles, strict=True):
        weight = ' font-weight="bold"' if any(tile.framed for tile in row) else ""
        parts.append(
            f'<text x="{LABEL - 5}" y="{y + 9}" text-anchor="end" fill="currentColor"{weight}>'
            f"{html.escape(short(band.label))}"
            f"<title>{html.escape(', '.join(rows[one].name for one in band.rows))}</title></text>"
        )
    for place, y in enumerate(tops):
        if not place or shown[place - 1].kind != shown[place].kind:
            parts.append(f'<text x="{x + 6}" y="{y + 9}" fill="currentColor" opacity=".7">{shown[place].kind}</text>')
    for column, (head, left) in enumerate(zip(heads, lefts, strict=True)):
        parts.append(f'<g class="step" data-step="{column}">')
        if head.text:
            turned = f' transform="rotate(-90 {left + 9} {top - 8})"' if upwards else ""
            anchor = left + 9 if upwards else left + 1
            parts.append(
                f'<text x="{anchor}" y="{top - 8}" fill="currentColor"{turned}>{html.escape(head.text)}</text>'
            )
        for row, y in zip(tiles, tops, strict=True):
            tile = row[column]
            if tile.colour:
                parts.append(
                    f'<rect x="{left}" y="{y}" width="{CELL - 1}" height="{CELL - 1}" fill="{tile.colour}">'
                    f"<title>{html.escape(tile.told)}</title></rect>"
                )
            if tile.framed:
                parts.append(
                    f'<rect x="{left - 1}" y="{y - 1}" width="{CELL + 1}" height="{CELL + 1}" fill="none" '
                    'stroke="#0072b2" stroke-width="2"/>'
                )
        parts.append("</g>")
    return Markup("".join([*parts, "</svg>"]))


def short(name: str) -> str:
    """A name that fits beside the picture; the whole one is told to who points at it."""
    return name if len(name) <= 52 else f"{name[:20]}…{name[-31:]}"


def legend() -> Markup:
    """What the colours of one map mean."""
    return keys(meanings())


def meanings() -> list[tuple[str, str]]:
    """The colours of one map, each with what it means."""
    lows = [f"10^{bound} to 10^{above}" for bound, above in itertools.pairwise(EXPONENTS)]
    said = zip(COLOURS, [f"below 10^{EXPONENTS[0]}", *lows, f"10^{EXPONENTS[-1]} and more"], strict=True)
    return [*said, (NONFINITE, "not finite")]


def keys(said: Sequence[tuple[str, str]]) -> Markup:
    """What colours mean, as a line of text with samples."""
    samples = "".join(
        f'<span class="key"><i style="background:{colour}"></i>{html.escape(text)}</span>' for colour, text in said
    )
    return Markup(f'<p class="keys">{samples}</p>')
