"""Figures of a page.  A painter draws on axes that it is given; `picture` makes a part of a page of it.

A figure is narrow, so that its text can be read on a telephone.  Rates have their intervals everywhere: as bars, or,
in a figure of more than `MOST` of them, as the text of a heat map.  No colour and no marker stands for two series.
"""

import io
import pathlib
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator, PercentFormatter

from ..machine.files import write_text
from .page import Picture, Section
from .svg import INK, Mark, page_svg, tell
from .wording import interval, percent

# Told apart by the colour-blind.
SERIES = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#8c6d31", INK)
MARKERS, LINES = "osD^vPX*", ("-", "--", ":", "-.")
WIDTH, TEXT = 4.8, 9.5  # inches, points: at 390 pixels a letter has ten
LEGEND, NAME = 52, 24  # characters of a legend's row, and of a line of a row's name
MOST = 40  # bars, or points with intervals
SLANTED = 44  # characters of a heat map's columns, side by side, from which on their names stand on a slant
STYLE: Any = {
    "font.size": TEXT,
    "font.sans-serif": ["DejaVu Sans", "Verdana"],  # each text of a figure names them all
    "axes.spines.top": False,
    "axes.spines.right": False,
    "svg.fonttype": "none",
    "svg.hashsalt": "figure",
    **{f"{name}.color": INK for name in ("text", "xtick", "ytick", "grid", "hatch")},
    **{f"axes.{name}": INK for name in ("edgecolor", "labelcolor")},
}


class Known(Protocol):
    """A share with its interval, fractions."""

    @property
    def share(self) -> float: ...
    @property
    def low(self) -> float: ...
    @property
    def high(self) -> float: ...


Series = Mapping[str, Mapping[str, Known]]  # of rows, by what a colour stands for


def picture(query: str, caption: str, alt: str, paint: Callable[[Axes], None], height: float = 2.6) -> Picture:
    """What `paint` draws, as a part of a page.

    Args:
      query, caption, alt: as of `Picture`.
      height: in inches; the width is `WIDTH`.
    """
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(WIDTH, height), layout="constrained")
        paint(figure.subplots())
        file = io.StringIO()
        # Not the content of the page's colours: its background shows.
        figure.savefig(file, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    return Picture(query, caption, alt, page_svg(file.getvalue(), alt))


def told(rate: Known) -> str:
    """A rate under the pointer."""
    return f"{percent(rate.share)} % {interval(rate.low, rate.high)}"


def legend(axes: Axes, most: int = 4) -> None:
    """A legend above the axes."""
    handles, labels = axes.get_legend_handles_labels()
    figure = axes.get_figure(root=True)
    assert figure is not None  # the axes stand in one
    columns = _columns(labels, most)
    figure.legend(handles, labels, fontsize=TEXT - 1, ncols=columns, frameon=False, loc="outside upper left")


def _columns(labels: Iterable[str], most: int = 4) -> int:
    """Columns of a legend that is as wide as the figure: the names of outcomes are long."""
    return min(most, max(1, LEGEND // (max((len(label) for label in labels), default=1) + 4)))


def legend_height(labels: Iterable[str], most: int = 4) -> float:
    """How high a legend is, in inches."""
    labels = list(labels)
    return 0.19 * -(-len(labels) // _columns(labels, most))


def lined(names: Iterable[str]) -> list[str]:
    """Names of rows, in lines that leave room for the figure.

    >>> lined(["conv1", "layers_0_post_attention_layernorm"])
    ['conv1', 'layers_0_post_attention_\\nlayernorm']
    """
    found = []
    for name in names:
        pieces = textwrap.wrap(name.replace("_", "_ ").replace("/", "/ "), NAME + 3)
        found.append("\n".join(piece.replace("_ ", "_").replace("/ ", "/") for piece in pieces))
    return found


def row_names(axes: Axes, names: Sequence[str]) -> None:
    """Name the rows of a figure, the first at the top."""
    axes.set_yticks(range(len(names)), lined(names), fontsize=TEXT - 1)
    axes.set_ylim(len(names) - 0.45, -0.55)
    axes.tick_params(axis="y", length=0)


def rows_height(names: Sequence[str], each: float) -> float:
    """How high rows are, in inches, if one needs `each` and its name."""
    return len(names) * max([each, *(0.15 * (1 + name.count("\n")) for name in lined(names))])


def rate_picture(query: str, caption: str, names: Sequence[str], series: Series, label: str) -> Picture:
    """Rates by row and series: points with intervals, or a heat map where these would be too many.

    Args:
      query, caption: as of `Picture`.
      names: of the rows, the first at the top.
      label: what the rates are of.
    """
    many = len(names) * len(series) > MOST or len(series) > len(SERIES)
    if many:
        alt = f"A heat map of the share {label}, one row each for {', '.join(names[:3])} and so on."
        rows = rows_height(names, 0.33 if len(series) == 3 else 0.18)
        # Of many columns the names stand on a slant, each letter a little higher.
        above = 0.065 * max(map(len, series)) if _slanted(series) else 0.15
        return picture(query, caption, alt, lambda axes: _heat(axes, names, series), 0.3 + above + rows)
    alt = f"Points with intervals of the share {label}, one row each for {', '.join(names[:3])} and so on."
    above = legend_height(series) if len(series) > 1 else 0.0
    rows = rows_height(names, max(0.22, 0.09 * (len(series) + 1)))
    return picture(query, caption, alt, lambda axes: _side_by_side(axes, names, series, label), 0.6 + above + rows)


def _slanted(names: Sequence[str] | Series) -> bool:
    """Whether names of columns are too long to stand side by side."""
    return max(map(len, names)) * len(names) > SLANTED


def _side_by_side(axes: Axes, names: Sequence[str], series: Series, label: str) -> None:
    apart = min(0.2, 0.8 / len(series))
    for i, (of, found) in enumerate(series.items()):
        rows = [names.index(name) + apart * (i - (len(series) - 1) / 2) for name in found]
        said = [f"{name}{f', {of}' if len(series) > 1 else ''}: {told(rate)}" for name, rate in found.items()]
        if found:
            _points(axes, i, of, [rate.share for rate in found.values()], rows, list(found.values()), said, "x")
    row_names(axes, names)
    if len(series) > 1:
        for at in range(1, len(names)):
            axes.axhline(at - 0.5, color=INK, alpha=0.25, lw=0.5)
        legend(axes)
    axes.set_xlim(left=0)
    axes.xaxis.set_major_locator(MaxNLocator(5))
    axes.xaxis.set_major_formatter(PercentFormatter(1))
    axes.set_xlabel(label)
    axes.grid(axis="x", alpha=0.25, lw=0.5)


def _points(
    axes: Axes,
    i: int,
    of: str,
    x: Sequence[float],
    y: Sequence[float],
    known: Sequence[Known],
    said: Sequence[str],
    along: str,
) -> None:
    """The points of series `i`, with their intervals along one axis."""
    ends = np.maximum(0, np.array([[rate.share - rate.low, rate.high - rate.share] for rate in known]).T)
    errors: dict[str, Any] = {f"{along}err": ends}
    style: dict[str, Any] = {"fmt": MARKERS[i], "ms": 3.5, "lw": 0.9, "capsize": 1.5, "color": SERIES[i], "label": of}
    drawn = axes.errorbar(x, y, **errors, **style)
    tell(drawn.lines[0], [Mark(one) for one in said])


def rates(
    axes: Axes, series: Mapping[str, Mapping[float, Known]], label: str, of: str, named: Callable[[float], str]
) -> None:
    """Rates with their intervals over a number, series side by side.

    Args:
      label: of the numbers.
      of: what the rates are of.
      named: a number in words.
    """
    for i, (name, found) in enumerate(series.items()):
        places = [at + 0.24 * (i - (len(series) - 1) / 2) for at in found]
        said = [f"{f'{name}, ' if len(series) > 1 else ''}{named(at)}: {told(rate)}" for at, rate in found.items()]
        _points(axes, i, name, places, [rate.share for rate in found.values()], list(found.values()), said, "y")
    if len(series) > 1:
        legend(axes)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.yaxis.set_major_formatter(PercentFormatter(1))
    highest = max(rate.high for found in series.values() for rate in found.values()) or 1
    axes.set_ylim(-0.02 * highest, min(1.02, 1.06 * highest))
    axes.set_ylabel(of)
    axes.set_xlabel(label)
    axes.grid(alpha=0.25, lw=0.5)


def _heat(axes: Axes, names: Sequence[str], series: Series) -> None:
    """A cell for each row and series, as dark as its rate is high; its text is the rate and the interval."""
    shares = [rate.share for found in series.values() for rate in found.values()]
    highest = max([share for share in shares if np.isfinite(share)], default=0) or 1
    for column, (of, found) in enumerate(series.items()):
        for name, rate in found.items():
            at, share = names.index(name), rate.share
            if not np.isfinite(share):
                continue
            colour = matplotlib.colormaps["Blues"](0.05 + 0.85 * share / highest)
            cell = Rectangle((column - 0.5, at - 0.5), 1, 1, facecolor=colour, edgecolor="none")
            tell(axes.add_patch(cell), [Mark(f"{name}, {of}: {told(rate)}")])
            ends = interval(rate.low, rate.high)
            text = f"{percent(share)} {ends}" if len(series) <= 2 else percent(share)
            if len(series) == 3:
                text += f"\n{ends}"
            ink = "#ffffff" if share / highest > 0.6 else "#000000"
            axes.text(column, at, text, color=ink, fontsize=TEXT - 1, ha="center", va="center")
    row_names(axes, names)
    axes.set_xlim(-0.5, len(series) - 0.5)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.xaxis.tick_top()
    slanted: dict[str, Any] = {"rotation": 60, "ha": "left", "rotation_mode": "anchor"} if _slanted(series) else {}
    axes.set_xticks(range(len(series)), list(series), fontsize=TEXT - 1, **slanted)
    axes.tick_params(axis="x", length=0)
    axes.spines[["left", "bottom"]].set_visible(False)


def spread(x: np.ndarray, y: np.ndarray, cells: tuple[int, int] = (110, 70)) -> tuple[np.ndarray, np.ndarray]:
    """Places of points, of which those that would hide each other are moved a little apart, on a spiral.

    Args:
      x, y: float64 [n], on scales that are drawn evenly.
      cells: how many points stand side by side along each axis.

    >>> x, _ = spread(np.zeros(3), np.zeros(3))
    >>> len(set(x.round(3).tolist()))
    3
    """
    width, height = (float(np.ptp(values)) or 1.0 for values in (x, y))
    seen: dict[tuple[int, int], int] = {}
    moved = np.stack([x, y], 1).astype(np.float64)
    for n, (at, up) in enumerate(zip(x, y, strict=True)):
        cell = round((at - x.min()) / width * cells[0]), round((up - y.min()) / height * cells[1])
        k = seen[cell] = seen.get(cell, -1) + 1
        radius, angle = 0.6 * np.sqrt(k), 2.4 * k
        moved[n] += radius * width / cells[0] * np.cos(angle), radius * height / cells[1] * np.sin(angle)
    return moved[:, 0], moved[:, 1]


def write(folder: pathlib.Path, sections: Sequence[Section]) -> None:
    """Write the figures of a page as SVG files, called as their sections, of which each has one at most."""
    for section in sections:
        for part in section.parts:
            if isinstance(part, Picture):
                # A page in the dark has a background of its own; what opens the file has none.
                start, end, rest = part.svg.partition(">")
                paper = '<rect width="100%" height="100%" fill="#ffffff"></rect>'
                write_text(folder / f"{section.key}.svg", f"{start}{end}{paper}{rest}\n")
