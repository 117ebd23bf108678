"""What the figures of a report on outcomes show; `campaign.figures.picture` takes what one of these draws."""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator, PercentFormatter

from ....campaign.figures import LINES, SERIES, legend, row_names, spread
from ....campaign.rates import wilson
from ....campaign.svg import INK, Mark, tell
from ....campaign.wording import percent, plural
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
    UNDECIDED: INK,
}
MOST_LABELS = 12  # bars with numbers above them: more would hide each other
SMALLEST, LARGEST = 1e-2, 1e38  # ratios beyond these are drawn there


SHAPES = dict(zip(OUTCOMES, "os^vDPX*", strict=True))


# Sizes of a point that stands for so many experiments.
SIZES: Sequence[tuple[float, int, float]] = ((3, 1, 2), (4.5, 2, 10), (7, 10, 100), (10, 100, math.inf))


class Point(NamedTuple):
    """An experiment by what it reached soon after the fault.

    Attributes:
      number, outcome: of the experiment.
      history, variance: in units of the golden run's largest.
      said: the experiment in a line.
    """

    number: int
    outcome: str
    history: float
    variance: float
    said: str


def bars(axes: Axes, groups: Sequence[Group]) -> None:
    """Estimated shares of outcomes: one bar per group, with the number of experiments after its name.

    The line across the end of the masked ones is the interval of their share.
    """
    start = np.zeros(len(groups))
    estimated = [group.tally.shares() for group in groups]
    for outcome in OUTCOMES:
        share = np.array([shares[outcome] for shares in estimated])
        if share.any():
            drawn = axes.barh(range(len(groups)), share, left=start, color=COLOURS[outcome], label=outcome, height=0.8)
            for bar, group, part in zip(drawn, groups, share, strict=True):
                tell(bar, [Mark(f"{group.name}: {percent(part)} % {outcome}")])
            start += share
    known = [(at, group.rate) for at, group in enumerate(groups) if group.rate.total]
    ends = np.array([(at, 1 - r.high, 1 - r.share, 1 - r.low) for at, r in known]).reshape(-1, 4)
    at, low, middle, high = ends.T
    marks = axes.errorbar(middle, at, xerr=np.maximum(0, [middle - low, high - middle]), fmt="none", ecolor=INK, lw=0.9)
    said = "; ".join(f"{g.name}: not masked {percent(g.rate.share)} %" for g in groups if g.rate.total)
    tell(marks.lines[2][0], [Mark(f"Intervals of the share not masked. {said}")])
    row_names(axes, [f"{group.name} ({group.counts.total():,})" for group in groups])
    axes.set_xlim(0, 1)
    axes.xaxis.set_major_formatter(PercentFormatter(1))
    axes.set_xlabel("share; the line is the interval of the masked")
    legend(axes)


def latencies(axes: Axes, counts: Mapping[int, int]) -> None:
    """How many experiments met their first non-finite value after how many steps."""
    drawn = axes.bar(list(counts), list(counts.values()), width=0.8, color=COLOURS[IMMEDIATE])
    for bar, (after, n) in zip(drawn, counts.items(), strict=True):
        tell(bar, [Mark(f"{plural(n, 'experiment')} after {plural(after, 'step')}")])
    if len(counts) <= MOST_LABELS:
        axes.bar_label(drawn, fontsize=8, padding=1)
    axes.set_yscale("log")
    axes.set_ylim(0.7)
    axes.set_xlim(-0.7, max(5, *counts) + 0.7)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("steps from the fault to the first non-finite value")
    axes.set_ylabel("experiments")


def reached(axes: Axes, counts: Mapping[str, tuple[Mapping[int, int], int]]) -> None:
    """The share of all experiments that has met a non-finite value, against the number of steps since the fault.

    A band is Wilson's interval of the share at each step.

    Args:
      counts: by name, how many met it after how many steps, and how many experiments there are.
    """
    last = max(2, *(step for steps, _ in counts.values() for step in steps))
    for i, (name, (steps, total)) in enumerate(counts.items()):
        within = np.cumsum([steps.get(step, 0) for step in range(last + 1)]) / max(1, total)
        line, colour = LINES[i % len(LINES)], SERIES[i % len(SERIES)]
        (drawn,) = axes.step(np.arange(last + 1) + 1, within, line, where="post", lw=1.2, color=colour, label=name)
        tell(drawn, [Mark(f"{name}: {percent(within[-1])} % in the end")])
        ends = [wilson(round(share * total), total)[3:5] for share in within]
        low, high = np.array(ends).T
        axes.fill_between(np.arange(last + 1) + 1, low, high, step="post", color=colour, alpha=0.12, lw=0)
    axes.set_xscale("log")
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter(PercentFormatter(1))
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.set_xlabel("steps, that of the fault included")
    axes.set_ylabel("not finite")
    axes.grid(alpha=0.25, lw=0.5)
    legend(axes)


def necessary(axes: Axes, points: Sequence[Point], margin: float) -> None:
    """Experiments by the largest optimizer history and running variance that each reached, coloured by outcome.

    Those of one outcome at one place are one point, the larger the more they are; points of several outcomes that would
    hide each other stand a little apart.

    Args:
      margin: from where on a value counts as large.
    """
    places: dict[tuple[str, float, float], list[Point]] = {}
    for one in points:
        values = np.nan_to_num([one.history, one.variance], nan=LARGEST, posinf=LARGEST)
        x, y = np.log10(np.clip(values, SMALLEST, LARGEST)).round(1).tolist()
        places.setdefault((one.outcome, x, y), []).append(one)
    at = np.array([place[1:] for place in places], np.float64)
    x, y = (10**moved for moved in spread(at[:, 0], at[:, 1]))
    for outcome in OUTCOMES:
        here = [(i, ones) for i, ((name, _, _), ones) in enumerate(places.items()) if name == outcome]
        label = f"{outcome} ({sum(len(ones) for _, ones in here)})"
        for size, least, most in SIZES:
            chosen = [(i, ones) for i, ones in here if least <= len(ones) < most]
            if chosen:
                colour = "#999999" if outcome == MASKED else COLOURS[outcome]  # points have to be darker than bars
                i, shape = [i for i, _ in chosen], SHAPES[outcome]
                (drawn,) = axes.plot(x[i], y[i], shape, ms=size, alpha=0.7, mew=0, color=colour, label=label)
                tell(drawn, [Mark(_together(ones), ones[0].number) for _, ones in chosen])
                label = "_"  # an outcome stands in the legend once
    axes.axvline(margin, color=INK, alpha=0.7, lw=0.8, ls="--")
    axes.axhline(margin, color=INK, alpha=0.7, lw=0.8, ls="--")
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("optimizer history / largest of the golden run")
    axes.set_ylabel("running variance / golden run's")
    legend(axes)


def _together(ones: Sequence[Point]) -> str:
    """What the pointer shows of experiments at one place; a click shows the first."""
    first = ones[0].said
    return first if len(ones) == 1 else f"{plural(len(ones), 'experiment')} at one place, the first: {first}"


def courses(axes: Axes, curves: Mapping[int, tuple[str, np.ndarray]], measure: Measure) -> None:
    """The metric in training from the fault on: one line per experiment, a cross where the loss ceases to be finite.

    Args:
      curves: outcome, and loss and metric as `facts.decode` gives them, by the experiment's number.
    """
    metrics = {number: curve[:, -1] for number, (_, curve) in curves.items()}
    for i, (number, metric) in enumerate(metrics.items()):
        colour, line, name = SERIES[i % len(SERIES)], LINES[i % len(LINES)], f"{number}: {curves[number][0]}"
        (drawn,) = axes.plot(np.arange(len(metric)), metric, line, lw=1.2, color=colour, label=name)
        tell(drawn, [Mark(f"experiment {name}", number)])
        if not np.isfinite(curves[number][1][-1]).all():
            at = metric[np.isfinite(metric)]
            axes.plot(len(metric) - 1, at[-1] if len(at) else np.nan, "x", ms=6, mew=1.5, color=colour)
    values = np.concatenate(list(metrics.values()))
    values = values[np.isfinite(values)]
    if measure.better == "higher" and len(values) and values.min() >= 0 and values.max() <= 1:
        axes.set_ylim(-0.02, 1.02)
    elif measure.better == "lower" and len(values) and values.min() > 0:
        axes.set_yscale("log")
        axes.margins(y=0.12)  # or a power of ten at the top would touch the legend
    axes.set_xlabel("steps from the fault")
    axes.set_ylabel(f"training {measure.name}")
    axes.grid(alpha=0.25, lw=0.5)
    legend(axes, 2)
