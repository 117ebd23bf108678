"""The picture of a replay: loss and accuracy of both runs, the fault marked."""

import os

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import LogFormatter, MaxNLocator

from ..machine.files import write_atomically

GOLDEN, FAULTY, FAULT = "#0072b2", "#d55e00", "#444444"  # told apart by the colour-blind


def draw_curves(
    path: str | os.PathLike,
    title: str,
    tables: dict[str, dict[str, np.ndarray]],
    fault_at: float,
    steps_per_epoch: int,
) -> None:
    """Draw both runs over epochs and write a PNG.

    Args:
      tables: columns (`record.columns`) of `golden` and `faulty`.
      fault_at: the fault's place on the axis of epochs.
      steps_per_epoch: a step's training figures stand at its own fraction of the epoch.
    """
    with matplotlib.rc_context({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False}):
        figure = Figure(figsize=(6.4, 5.0), dpi=200, layout="constrained")
        loss, accuracy = figure.subplots(2, 1, sharex=True)
        for label, colour in (("golden", GOLDEN), ("faulty", FAULTY)):
            run = tables[label]
            at = run["steps/epoch"] + run["steps/step"] / steps_per_epoch
            ended = run["epochs/epoch"] + 1
            finite = np.isfinite(run["steps/loss"])
            style = {"color": colour, "lw": 1.0, "alpha": 0.8}
            loss.plot(at[finite], run["steps/loss"][finite], label=f"{label}, train", **style)
            accuracy.plot(at, run["steps/accuracy"], label=f"{label}, train", **style)
            dots = {
                "color": colour,
                "marker": "o",
                "ms": 3,
                "lw": 0,
                "markeredgecolor": "white",
                "markeredgewidth": 0.3,
            }
            loss.plot(ended, run["epochs/valid_loss"], label=f"{label}, test", **dots)
            accuracy.plot(ended, run["epochs/valid_accuracy"], label=f"{label}, test", **dots)
            if not finite.all():
                first = at[~finite][0]
                accuracy.plot(
                    first, run["steps/accuracy"][~finite][0], "x", color=colour, ms=8, mew=2, label="loss is not finite"
                )
        for axes in (loss, accuracy):
            axes.axvline(fault_at, color=FAULT, lw=0.8, ls="--", label="fault")
            axes.grid(alpha=0.25, lw=0.5)
            axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
        loss.set_ylabel("loss")
        loss.set_yscale("log")
        loss.yaxis.set_minor_formatter(LogFormatter())  # where no power of ten is in sight: 2.4, not 2.4×10⁰
        accuracy.set_ylabel("accuracy")
        accuracy.set_ylim(0, 1.02)
        accuracy.set_xlabel("epoch")
        figure.suptitle(title, fontsize=10)
        figure.legend(
            *accuracy.get_legend_handles_labels(), fontsize=8, ncols=3, frameon=False, loc="outside lower center"
        )
        write_atomically(path, lambda file: figure.savefig(file, format="png", metadata={"Software": None}))
