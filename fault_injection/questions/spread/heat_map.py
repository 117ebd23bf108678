"""The picture of a map: rows are tensors in the order of the computation, columns are steps.

It is SVG, written as text: one cell a tensor and step, its colour the difference relative to the tensor.  A reader who
points at a cell is told the numbers.
"""

import html
import itertools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ...campaign.page import Markup
from ...runs.fault_map import FaultMap
from .sentences import number, share

CELL, LABEL, TOP = 11, 290, 34  # pixels: a cell's side, the width of names, the height of the numbers of steps
MOST_ROWS = 80  # above which rows of one layer are folded into one
EXPONENTS = (-6, -4, -2, -1, 0, 2)  # of ten: the bounds between colours
COLOURS = ("#fde9c9", "#fdd49e", "#fdbb84", "#fc8d59", "#e34a33", "#b30000", "#6a0010")
NONFINITE, NEW_KIND = "#000000", 8  # colour of what is not finite; pixels between kinds of rows


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


def bands(found: FaultMap, folded: bool) -> list[Band]:
    """The rows of the picture; where it is folded, neighbours of one kind and layer are one."""
    made: list[Band] = []
    for place, row in enumerate(found.rows):
        same = made and folded and made[-1].kind == row.kind and found.rows[made[-1].rows[0]].layer == row.layer
        if same:
            made[-1] = made[-1]._replace(rows=(*made[-1].rows, place))
        else:
            made.append(Band(row.name, row.kind, (place,)))
    return [
        band if len(band.rows) == 1 else band._replace(label=f"{found.rows[band.rows[0]].layer} ({len(band.rows)})")
        for band in made
    ]


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


def heat_map(found: FaultMap, folded: bool) -> Markup:
    """The picture as one SVG element.  Cells of one step are a group, so that a page can show step after step."""
    shown = bands(found, folded)
    values, steps = cells(found, shown), range(len(found.steps))
    tops, at = [], TOP
    for place, band in enumerate(shown):
        at += NEW_KIND if place and shown[place - 1].kind != band.kind else 0
        tops.append(at)
        at += CELL
    width, height = LABEL + 90 + CELL * len(steps), at + 8
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'role="img" aria-label="Differences of {len(shown)} rows in {len(steps)} steps" font-family="sans-serif" '
        'font-size="9">'
    ]
    struck = found.struck
    for band, top in zip(shown, tops, strict=True):
        hit = any(found.rows[row].name in struck for row in band.rows)
        weight = ' font-weight="bold"' if hit else ""
        parts.append(
            f'<text x="{LABEL - 5}" y="{top + 9}" text-anchor="end" fill="currentColor"{weight}>{_label(band.label)}'
            f"<title>{html.escape(_names(found, band))}</title></text>"
        )
    for place, top in enumerate(tops):
        if not place or shown[place - 1].kind != shown[place].kind:
            x = LABEL + CELL * len(steps) + 6
            parts.append(f'<text x="{x}" y="{top + 9}" fill="currentColor" opacity=".7">{shown[place].kind}</text>')
    for step in steps:
        x = LABEL + CELL * step
        parts.append(f'<g class="step" data-step="{step}">')
        if step % 5 == 0:
            parts.append(f'<text x="{x + 1}" y="{TOP - 8}" fill="currentColor">{step}</text>')
        for row, top in enumerate(tops):
            cell = values[row][step]
            if (colour := cell.colour) >= 0:
                fill = NONFINITE if colour == len(COLOURS) else COLOURS[colour]
                parts.append(
                    f'<rect x="{x}" y="{top}" width="{CELL - 1}" height="{CELL - 1}" fill="{fill}">'
                    f"<title>{share(cell.share)}, {number(cell.relative)}"
                    f"{f', {cell.nonfinite} not finite' if cell.nonfinite else ''}</title></rect>"
                )
            if any(step in struck.get(found.rows[one].name, ()) for one in shown[row].rows):
                parts.append(
                    f'<rect x="{x - 1}" y="{top - 1}" width="{CELL + 1}" height="{CELL + 1}" fill="none" '
                    'stroke="#0072b2" stroke-width="2"/>'
                )
        parts.append("</g>")
    first = f"steps after epoch {found.steps[0].epoch}, step {found.steps[0].step}"
    parts.append(f'<text x="{LABEL}" y="{TOP - 22}" fill="currentColor">{first}</text></svg>')
    return Markup("".join(parts))


def _label(name: str) -> str:
    """A name that fits beside the picture; the whole one is told to who points at it."""
    return html.escape(name if len(name) <= 52 else f"{name[:20]}…{name[-31:]}")


def _names(found: FaultMap, band: Band) -> str:
    names = [found.rows[row].name for row in band.rows]
    return ", ".join(names)


def legend() -> Markup:
    """What the colours mean, as a line of text with samples."""
    lows = [f"10^{bound} to 10^{above}" for bound, above in itertools.pairwise(EXPONENTS)]
    said = zip(COLOURS, [f"below 10^{EXPONENTS[0]}", *lows, f"10^{EXPONENTS[-1]} and more"], strict=True)
    samples = "".join(
        f'<span class="key"><i style="background:{colour}"></i>{html.escape(text)}</span>'
        for colour, text in [*said, (NONFINITE, "not finite")]
    )
    return Markup(f'<p class="keys">{samples}</p>')
