"""What the figures of a report on outcomes show; `campaign.figures.picture` makes a PNG of what one of these draws."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator, PercentFormatter

from ....campaign.figures import LINES, SERIES, legend
from ....runs.curves import FAULTY
from ....runs.outcome import IMMEDIATE, LOW_TEST, MASKED, OUTCOMES, SHARP, SHARP_SLOW, SHORT_TERM, SLOW, UNDECIDED
from ....seam.measure import Measure
from .facts import Group

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
SMALLEST, LARGEST = 1e-2, 1e38  # ratios beyond these are drawn there


def bars(axes: Axes, groups: Sequence[Group]) -> None:
    """Estimated shares of outcomes: one bar per group, with the number of experiments after its name."""
    names = [f"{group.name}  ({group.counts.total():,})" for group in groups]
    start = np.zeros(len(names))
    estimated = [group.tally.shares() for group in groups]
    for outcome in OUTCOMES:
        share = np.array([shares[outcome] for shares in estimated])
        if share.any():
            axes.barh(names, share, left=start, color=COLOURS[outcome], label=outcome, height=0.8)
            start += share
    axes.set_ylim(len(names) - 0.45, -0.55)  # the first group at the top
    axes.set_xlim(0, 1)
    axes.xaxis.set_major_formatter(PercentFormatter(1))
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel("share of experiments")
    legend(axes)


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
    legend(axes)


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
    legend(axes)


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
    legend(axes, 3)
