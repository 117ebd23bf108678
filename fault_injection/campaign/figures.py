"""Figures of a page.  A painter draws on axes that it is given; `picture` makes a part of a page of it."""

import io
import operator
import pathlib
from collections.abc import Callable, Iterable, Mapping, Sequence

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from ..machine.files import write_atomically
from .page import Picture, Section
from .rates import Rate

# Told apart by the colour-blind.
SERIES = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#000000", "#8c6d31")
MARKERS, LINES = "osD^v", ("-", "--", ":", "-.")  # each round of colours has its own
LEGEND = 88  # characters of a legend's row


def picture(query: str, caption: str, alt: str, paint: Callable[[Axes], None], height: float = 3.2) -> Picture:
    """What `paint` draws, as a part of a page.

    Args:
      query, caption, alt: as of `Picture`.
      height: in inches; the width is 7.2.
    """
    with matplotlib.rc_context({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False}):
        figure = Figure(figsize=(7.2, height), dpi=160, layout="constrained")
        paint(figure.subplots())
        file = io.BytesIO()
        figure.savefig(file, format="png", metadata={"Software": None})
    return Picture(query, caption, alt, file.getvalue())


def _columns(labels: Iterable[str], most: int = 4) -> int:
    """Columns of a legend that is as wide as the figure: the names of outcomes are long."""
    return min(most, max(1, LEGEND // max((len(label) for label in labels), default=1)))


def legend(axes: Axes, columns: int = 4) -> None:
    """A legend above the axes."""
    handles, labels = axes.get_legend_handles_labels()
    figure = axes.get_figure(root=True)
    assert figure is not None  # the axes stand in one
    fitting = _columns(labels, columns)
    figure.legend(handles, labels, fontsize=8, ncols=fitting, frameon=False, loc="outside upper left")


def _points(
    axes: Axes,
    i: int,
    name: str,
    x: np.ndarray,
    y: np.ndarray,
    xerr: np.ndarray | None = None,
    yerr: np.ndarray | None = None,
) -> None:
    """The points of series `i`, with their intervals along one axis."""
    turn, colour = divmod(i, len(SERIES))
    style, of = MARKERS[turn % len(MARKERS)], SERIES[colour]
    axes.errorbar(x, y, yerr, xerr, fmt=style, ms=3.5, lw=0.9, capsize=1.5, color=of, label=name)


def _errors(found: Iterable[Rate]) -> np.ndarray:
    """How far intervals reach below and above their rates, [2, n]."""
    return np.maximum(0, np.array([[rate.share - rate.low, rate.high - rate.share] for rate in found]).T)


def height(names: Sequence[str], series: Mapping[str, object]) -> float:
    """How high `side_by_side` has to be, in inches, for all series of a row to stand apart."""
    rows_of_legend = -(-len(series) // _columns(series))
    return 0.8 + 0.17 * rows_of_legend + len(names) * max(0.3, 0.09 * (len(series) + 1))


def rates(axes: Axes, series: Mapping[str, Mapping[int, Rate]], label: str) -> None:
    """Rates with their intervals over a whole number, series side by side."""
    for i, (name, found) in enumerate(series.items()):
        places = np.array(list(found)) + 0.24 * (i - (len(series) - 1) / 2)
        share = np.array([rate.share for rate in found.values()])
        _points(axes, i, name, places, share, yerr=_errors(found.values()))
    if len(series) > 1:
        legend(axes)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.yaxis.set_major_formatter(PercentFormatter(1))
    highest = max(rate.high for found in series.values() for rate in found.values())
    axes.set_ylim(-0.02 * highest, min(1.02, 1.06 * highest))
    axes.set_ylabel("not masked")
    axes.set_xlabel(label)
    axes.grid(alpha=0.25, lw=0.5)


def side_by_side(axes: Axes, names: Sequence[str], series: Mapping[str, Mapping[str, Rate]]) -> None:
    """Rates with their intervals: one row per name, series in their colours."""
    apart = min(0.2, 0.8 / len(series))
    for i, (label, found) in enumerate(series.items()):
        rows = np.array([names.index(name) + apart * (i - (len(series) - 1) / 2) for name in found])
        share = np.array([rate.share for rate in found.values()])
        if found:
            _points(axes, i, label, share, rows, xerr=_errors(found.values()))
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.45, -0.55)  # the first at the top
    for name in range(1, len(names)):
        axes.axhline(name - 0.5, color="#bbbbbb", lw=0.5)
    axes.set_xlim(left=0)
    axes.xaxis.set_major_formatter(PercentFormatter(1))
    axes.set_xlabel("not masked")
    axes.grid(axis="x", alpha=0.25, lw=0.5)
    legend(axes)


def write(folder: pathlib.Path, sections: Sequence[Section]) -> None:
    """Write the figures of a page as PNG files, called as their sections, of which each has one at most."""
    for section in sections:
        for part in section.parts:
            if isinstance(part, Picture):
                write_atomically(folder / f"{section.key}.png", operator.methodcaller("write", part.png))
