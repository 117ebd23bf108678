"""The figures of a campaign's report.  A painter draws on axes that it is given; `draw` makes a PNG of it."""

import io
import pathlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import IO

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from ...machine.files import write_atomically
from ...runs.curves import FAULTY
from ...runs.outcome import IMMEDIATE, LOW_TEST, MASKED, OUTCOMES, SHARP, SHARP_SLOW, SHORT_TERM, SLOW, UNDECIDED
from ...seam.measure import Measure
from ..rates import Rate
from .facts import Group
from .page import Picture, Section

# Told apart by the colour-blind; masked is pale, so that what is not stands out.
COLOURS = {
    MASKED: "#d9d9d9",
    IMMEDIATE: "#d55e00",
    SHORT_TERM: "#e69f00",
    SLOW: "#0072b2",
    SHARP_SLOW: "#56b4e9",
    SHARP: "#009e73",
    LOW_TEST: "#cc79a7",
    UNDECIDED: "#000000",
}
SERIES = (
    COLOURS[SLOW],
    COLOURS[IMMEDIATE],
    COLOURS[SHARP],
    COLOURS[LOW_TEST],
    "#56b4e9",
    "#e69f00",
    "#000000",
    "#8c6d31",
)
MARKERS, LINES = "osD^v", ("-", "--", ":", "-.")  # each round of colours has its own
LEGEND = 88  # characters of a legend's row
SMALLEST, LARGEST = 1e-2, 1e38  # ratios beyond these are drawn there


def picture(paint: Callable[[Axes], None], height: float = 3.2) -> bytes:
    """What `paint` draws, as PNG.

    Args:
      height: in inches; the width is 7.2.
    """
    with matplotlib.rc_context({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False}):
        figure = Figure(figsize=(7.2, height), dpi=160, layout="constrained")
        paint(figure.subplots())
        file = io.BytesIO()
        figure.savefig(file, format="png", metadata={"Software": None})
    return file.getvalue()


def _columns(labels: Iterable[str], most: int = 4) -> int:
    """Columns of a legend that is as wide as the figure: the names of outcomes are long."""
    return min(most, max(1, LEGEND // max((len(label) for label in labels), default=1)))


def _legend(axes: Axes, columns: int = 4) -> None:
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


def bars(axes: Axes, groups: Sequence[Group]) -> None:
    """Shares of outcomes: one bar per group, with the number of experiments after its name."""
    names = [f"{group.name}  ({group.counts.total():,})" for group in groups]
    start = np.zeros(len(names))
    for outcome in OUTCOMES:
        share = np.array([group.counts[outcome] / max(1, group.counts.total()) for group in groups])
        if share.any():
            axes.barh(names, share, left=start, color=COLOURS[outcome], label=outcome, height=0.8)
            start += share
    axes.set_ylim(len(names) - 0.45, -0.55)  # the first group at the top
    axes.set_xlim(0, 1)
    axes.xaxis.set_major_formatter(PercentFormatter(1))
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel("share of experiments")
    _legend(axes)


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
        _legend(axes)
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
    _legend(axes)


def write(folder: pathlib.Path, sections: Sequence[Section]) -> None:
    """Write the figures of a page as PNG files, called as their sections, of which each has one at most."""
    for section in sections:
        for picture in (part for part in section.parts if isinstance(part, Picture)):

            def put(file: IO[bytes], png: bytes = picture.png) -> None:
                file.write(png)

            write_atomically(folder / f"{section.key}.png", put)


def latencies(axes: Axes, counts: Mapping[int, int]) -> None:
    """How many experiments met their first non-finite value after how many steps."""
    drawn = axes.bar(list(counts), list(counts.values()), width=0.8, color=COLOURS[IMMEDIATE])
    axes.bar_label(drawn, fontsize=7, padding=1)
    axes.set_yscale("log")
    axes.set_ylim(0.7)
    axes.set_xlim(-0.7, max(5, *counts) + 0.7)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("steps from the fault to the first non-finite value")
    axes.set_ylabel("experiments")


def reached(axes: Axes, counts: Mapping[str, tuple[Mapping[int, int], int]]) -> None:
    """The share of all experiments that has met a non-finite value, against the number of steps since the fault.

    Args:
      counts: by name, how many met it after how many steps, and how many experiments there are.
    """
    last = max(2, *(step for steps, _ in counts.values() for step in steps))
    for i, (name, (steps, total)) in enumerate(counts.items()):
        within = np.cumsum([steps.get(step, 0) for step in range(last + 1)]) / max(1, total)
        turn, colour = divmod(i, len(SERIES))
        line = LINES[turn % len(LINES)]
        axes.step(np.arange(last + 1) + 1, within, line, where="post", lw=1.2, color=SERIES[colour], label=name)
    axes.set_xscale("log")
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter(PercentFormatter(1))
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.set_xlabel("steps, that of the fault included")
    axes.set_ylabel("not finite")
    axes.grid(alpha=0.25, lw=0.5)
    _legend(axes)


def necessary(axes: Axes, history: np.ndarray, variance: np.ndarray, outcomes: Sequence[str], margin: float) -> None:
    """One point per experiment: its largest optimizer history and running variance, coloured by outcome.

    Args:
      history, variance: float64 [n], in units of the golden run's largest.
      outcomes: of the n experiments.
      margin: from where on a value counts as large.
    """
    for outcome in OUTCOMES:
        chosen = np.array([name == outcome for name in outcomes], bool)
        if chosen.any():
            colour = "#999999" if outcome == MASKED else COLOURS[outcome]  # points have to be darker than bars
            x, y = (
                np.clip(np.nan_to_num(v[chosen], nan=LARGEST, posinf=LARGEST), SMALLEST, LARGEST)
                for v in (history, variance)
            )
            axes.plot(x, y, "o", ms=3.5, alpha=0.7, mew=0, color=colour, label=f"{outcome} ({chosen.sum()})")
    axes.axvline(margin, color="#444444", lw=0.8, ls="--")
    axes.axhline(margin, color="#444444", lw=0.8, ls="--")
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("optimizer history / largest of the golden run")
    axes.set_ylabel("running variance / largest of the golden run")
    _legend(axes)


def courses(axes: Axes, curves: Mapping[str, np.ndarray], measure: Measure) -> None:
    """The metric in training from the fault on: one line per experiment, a cross where the loss ceases to be finite.

    Args:
      curves: loss and metric, as `facts.decode` gives them, by the experiment's name.
    """
    metrics = {name: curve[:, -1] for name, curve in curves.items()}
    for i, (name, metric) in enumerate(metrics.items()):
        colour = FAULTY[i % len(FAULTY)]
        axes.plot(np.arange(len(metric)), metric, lw=1.0, color=colour, label=name)
        if not np.isfinite(curves[name][-1]).all():
            at = metric[np.isfinite(metric)]
            axes.plot(len(metric) - 1, at[-1] if len(at) else np.nan, "x", ms=6, mew=1.5, color=colour)
    values = np.concatenate(list(metrics.values()))
    values = values[np.isfinite(values)]
    if measure.better == "higher" and len(values) and values.min() >= 0 and values.max() <= 1:
        axes.set_ylim(-0.02, 1.02)
    elif measure.better == "lower" and len(values) and values.min() > 0:
        axes.set_yscale("log")
    axes.set_xlabel("steps from the fault")
    axes.set_ylabel(f"training {measure.name}")
    axes.grid(alpha=0.25, lw=0.5)
    _legend(axes, 3)
