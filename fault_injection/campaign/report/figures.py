"""The figures of a campaign's report."""

import io
from collections.abc import Callable, Mapping, Sequence

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from ...runs.outcome import IMMEDIATE, LOW_TEST, MASKED, OUTCOMES, SHARP, SHARP_SLOW, SHORT_TERM, SLOW, UNDECIDED
from ..rates import Rate

# Told apart by the colour-blind; masked is pale, so that what is not stands out.
COLOURS = {
    MASKED: "#cccccc",
    IMMEDIATE: "#d55e00",
    SHORT_TERM: "#e69f00",
    SLOW: "#0072b2",
    SHARP_SLOW: "#56b4e9",
    SHARP: "#009e73",
    LOW_TEST: "#cc79a7",
    UNDECIDED: "#000000",
}


def draw(paint: Callable[..., object], *arguments: object, height: float = 3.2) -> bytes:
    """What `paint(axes, *arguments)` paints, as PNG."""
    with matplotlib.rc_context({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False}):
        figure = Figure(figsize=(7.2, height), dpi=160, layout="constrained")
        paint(figure.subplots(), *arguments)
        file = io.BytesIO()
        figure.savefig(file, format="png", metadata={"Software": None})
    return file.getvalue()


def bars(axes: Axes, counts: Mapping[str, Mapping[str, int]]) -> None:
    """Shares of outcomes, a bar a group, the number of experiments after its name."""
    names = [f"{name}  ({sum(of.values())})" for name, of in counts.items()]
    start = np.zeros(len(names))
    for outcome in OUTCOMES:
        share = np.array([of.get(outcome, 0) / max(1, sum(of.values())) for of in counts.values()])
        if share.any():
            axes.barh(names, share, left=start, color=COLOURS[outcome], label=outcome, height=0.8)
            start += share
    axes.invert_yaxis()
    axes.set_xlim(0, 1)
    axes.set_xlabel("share of experiments")
    axes.legend(fontsize=7, ncols=4, frameon=False, loc="lower center", bbox_to_anchor=(0.4, 1.0))


def rates(axes: Axes, series: Mapping[str, Mapping[int, Rate]], label: str) -> None:
    """Rates with their intervals over a whole number, series side by side."""
    for i, (name, found) in enumerate(series.items()):
        places = np.array(list(found)) + 0.24 * (i - (len(series) - 1) / 2)
        share = np.array([rate.share for rate in found.values()])
        error = np.array([[rate.share - rate.low, rate.high - rate.share] for rate in found.values()]).T
        colour = (COLOURS[SLOW], COLOURS[IMMEDIATE])[i]
        error = np.maximum(error, 0)
        axes.errorbar(places, share, yerr=error, fmt="o", ms=3, lw=0.8, capsize=1.5, color=colour, label=name)
    if len(series) > 1:
        axes.legend(fontsize=7, ncols=2, frameon=False, loc="lower center", bbox_to_anchor=(0.5, 1.0))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_ylim(0, 1.02)
    axes.set_ylabel("not masked")
    axes.set_xlabel(label)
    axes.grid(alpha=0.25, lw=0.5)


def latencies(axes: Axes, steps: Sequence[int], counts: Sequence[int]) -> None:
    """How long until the first non-finite value."""
    axes.bar(steps, counts, width=0.8, color=COLOURS[IMMEDIATE])
    axes.set_yscale("log")
    axes.set_ylim(0.7)
    axes.set_xlim(-0.7, max(5, *steps) + 0.7)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("steps from the fault to the first non-finite value")
    axes.set_ylabel("experiments")


def necessary(axes: Axes, history: np.ndarray, variance: np.ndarray, outcomes: Sequence[str], margin: float) -> None:
    """Largest history and variance within two steps of the fault, by outcome."""
    smallest = 1e-2  # what is smaller is drawn there
    for outcome in OUTCOMES:
        chosen = np.array([name == outcome for name in outcomes], bool)
        if chosen.any():
            x, y = (
                np.clip(np.nan_to_num(v[chosen], nan=1e38, posinf=1e38), smallest, 1e38) for v in (history, variance)
            )
            axes.plot(x, y, "o", ms=3, alpha=0.7, mew=0, color=COLOURS[outcome], label=f"{outcome} ({chosen.sum()})")
    axes.axvline(margin, color="#444444", lw=0.8, ls="--")
    axes.axhline(margin, color="#444444", lw=0.8, ls="--")
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("optimizer history, in units of the golden run's largest")
    axes.set_ylabel("running variance, likewise")
    axes.legend(fontsize=7, ncols=4, frameon=False, loc="lower center", bbox_to_anchor=(0.4, 1.0))


def courses(axes: Axes, curves: Mapping[str, np.ndarray]) -> None:
    """Training accuracy from the fault on, a line an experiment."""
    for label, accuracy in curves.items():
        axes.plot(np.arange(len(accuracy)), accuracy, lw=0.9, label=label)
    axes.set_xlabel("steps from the fault")
    axes.set_ylabel("training accuracy")
    axes.set_ylim(0, 1.02)
    axes.grid(alpha=0.25, lw=0.5)
    axes.legend(fontsize=7, ncols=3, frameon=False, loc="lower center", bbox_to_anchor=(0.5, 1.0))
