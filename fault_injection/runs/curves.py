"""The picture of a replay: loss and metric of the golden run and of faulty ones, the faults marked."""

import os
from collections.abc import Mapping, Sequence

import matplotlib
import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogFormatter, MaxNLocator
from numpy.typing import ArrayLike

from ..machine.files import write_atomically
from ..seam.measure import Measure

Columns = Mapping[str, np.ndarray]  # columns of a run: `steps/…` with one row per step, `epochs/…` with one per epoch

# Told apart by the colour-blind (Okabe and Ito, 2002); the golden run has the first.
GOLDEN, FAULT = "#0072b2", "#444444"
FAULTY = ("#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")


def draw_curves(
    path: str | os.PathLike[str],
    title: str,
    golden: Columns,
    faulty: Mapping[str, Columns],
    fault_at: Mapping[str, Sequence[float]],
    steps_per_epoch: int,
    measure: Measure,
) -> None:
    """Draw the golden run and faulty ones over epochs, loss above metric, and write a PNG.

    Args:
      golden, faulty: columns of the golden run and of each faulty run by its name: `steps/epoch`,
        `steps/step`, `steps/loss`, `steps/<metric>`, `epochs/epoch`, `epochs/valid_loss` and
        `epochs/valid_<metric>`. The runs may begin at different epochs.
      fault_at: each faulty run's faults on the axis of epochs: their epochs, and their steps as a fraction.
      steps_per_epoch: a step's figures stand at its own fraction of the epoch.
      measure: the metric. If it is the loss, there is one panel.
    """
    names = list(dict.fromkeys(("loss", measure.name)))
    runs: dict[str, tuple[Columns, str]] = {"golden": (golden, GOLDEN)}
    runs |= {name: (table, FAULTY[i % len(FAULTY)]) for i, (name, table) in enumerate(faulty.items())}
    with matplotlib.rc_context({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False}):
        figure = Figure(figsize=(6.4, 1.0 + 2.0 * len(names)), dpi=200, layout="constrained")
        panels = dict(zip(names, np.atleast_1d(figure.subplots(len(names), 1, sharex=True)), strict=True))
        for name, (run, colour) in runs.items():
            _draw_run(panels, run, name, colour, steps_per_epoch, alone=len(faulty) == 1)
        # One grey line where the faults are at one place, else each in its run's colour.
        if len(set(fault_at.values())) == 1:
            marks = [(at, FAULT) for at in next(iter(fault_at.values()))]
        else:
            marks = [(at, runs[name][1]) for name, each in fault_at.items() for at in each]
        for axes in panels.values():
            for i, (at, colour) in enumerate(marks):
                axes.axvline(at, color=colour, lw=0.8, ls="--", label="" if i else "fault")
            axes.grid(alpha=0.25, lw=0.5)
            axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
        for name, axes in panels.items():
            axes.set_ylabel(name)
            if name == "loss":
                axes.set_yscale("log")
                axes.yaxis.set_minor_formatter(LogFormatter())  # where no power of ten is in sight: 2.4, not 2.4×10⁰
            elif measure.limits:
                axes.set_ylim(0, 1.02)
        lowest = panels[names[-1]]
        lowest.set_xlabel("epoch")
        figure.suptitle(title, fontsize=10)
        if len(faulty) != 1:
            _dots(lowest, [], [], FAULT, "test, after each epoch")
        handles, labels = lowest.get_legend_handles_labels()
        legend: dict[str, Artist] = {}
        for text, handle in zip(labels, handles, strict=True):
            legend.setdefault(text, handle)
        columns = 2 if len(faulty) > 1 else 3
        figure.legend(
            legend.values(), legend.keys(), fontsize=8, ncols=columns, frameon=False, loc="outside lower center"
        )
        write_atomically(path, lambda file: figure.savefig(file, format="png", metadata={"Software": None}))


def draw_panels(
    path: str | os.PathLike[str],
    title: str,
    runs: Mapping[str, tuple[Columns, Columns]],
    fault_at: float,
    steps_per_epoch: int,
    measure: Measure,
) -> None:
    """Draw several pairs of a golden and a faulty run, a panel for each with the loss over epochs, and write a PNG.

    Args:
      runs: columns of the golden and the faulty run by the panel's name, see `draw_curves`.
      fault_at: the fault on the axis of epochs.
    """
    with matplotlib.rc_context({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False}):
        figure = Figure(figsize=(6.4, 1.0 + 1.5 * len(runs)), dpi=200, layout="constrained")
        panels = np.atleast_1d(figure.subplots(len(runs), 1, sharex=True, sharey=True))
        for axes, (name, pair) in zip(panels, runs.items(), strict=True):
            for run, of, colour in zip(pair, ("golden", "faulty"), (GOLDEN, FAULTY[0]), strict=True):
                _draw_run({"loss": axes}, run, of, colour, steps_per_epoch, alone=True)
            axes.axvline(fault_at, color=FAULT, lw=0.8, ls="--", label="fault")
            axes.grid(alpha=0.25, lw=0.5)
            axes.set_yscale("log")
            axes.yaxis.set_minor_formatter(LogFormatter())
            axes.set_ylabel("loss")
            axes.set_title(name, fontsize=9, loc="left")
        panels[-1].set_xlabel("epoch")
        panels[-1].xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
        figure.suptitle(title, fontsize=10)
        legend = {
            text: handle for axes in panels for handle, text in zip(*axes.get_legend_handles_labels(), strict=True)
        }
        figure.legend(legend.values(), legend.keys(), fontsize=8, ncols=3, frameon=False, loc="outside lower center")
        write_atomically(path, lambda file: figure.savefig(file, format="png", metadata={"Software": None}))


def _draw_run(
    panels: Mapping[str, Axes], run: Columns, name: str, colour: str, steps_per_epoch: int, alone: bool
) -> None:
    """Draw one run: lines for training, dots for the test after each epoch, a cross where the loss ceases."""
    at = run["steps/epoch"] + run["steps/step"] / steps_per_epoch
    finite = np.isfinite(run["steps/loss"])
    for metric, axes in panels.items():
        shown = finite if metric == "loss" else np.ones_like(finite)
        label = f"{name}, train" if alone else name
        axes.plot(at[shown], run[f"steps/{metric}"][shown], color=colour, lw=1.0, alpha=0.8, label=label)
        label = f"{name}, test" if alone else ""
        _dots(axes, run["epochs/epoch"] + 1, run[f"epochs/valid_{metric}"], colour, label)
    if not finite.all():
        metric, axes = list(panels.items())[-1]
        first = int(np.argmin(finite))
        # At the last value that can be drawn, or near the bottom where there is none.
        level = np.asarray(run[f"steps/{metric}"])[: first + 1]
        drawn = level[np.isfinite(level)]
        y, transform = (drawn[-1], axes.transData) if len(drawn) else (0.05, axes.get_xaxis_transform())
        axes.plot(at[first], y, "x", color=colour, ms=8, mew=2, label="loss is not finite", transform=transform)


def _dots(axes: Axes, x: ArrayLike, y: ArrayLike, colour: str, label: str) -> None:
    axes.plot(x, y, color=colour, marker="o", ms=3, lw=0, markeredgecolor="white", markeredgewidth=0.3, label=label)
