"""The picture of a log: values, what they were compared with, and alarms."""

import pathlib

import numpy as np
from matplotlib.figure import Figure

from ..machine.files import write_atomically
from .examination import Examined, Material

MOST = 12  # tensors in one picture: those with alarms first
VALUE, THRESHOLD, ALARM = "#0072b2", "#e69f00", "#d55e00"  # told apart by the colour-blind (Okabe and Ito, 2002)


def draw_log(path: pathlib.Path, title: str, given: Material, found: Examined) -> str:
    """Draw the values of a log over its steps, one panel per tensor; returns what is left out, as text.

    Args:
      path: of the picture; its suffix says the format.
    """
    log, gone = given.log, given.following.superseded
    alarmed = [alarm.tensor for _, alarm in found.alarms] + [each.tensor for each in found.symptoms]
    ranked = sorted(log.tensors, key=lambda name: name not in alarmed)[:MOST]
    names = [name for name in log.tensors if name in ranked]
    figure = Figure(figsize=(7.2, 1.0 + 1.9 * len(names)), layout="constrained")
    panels = np.atleast_1d(figure.subplots(len(names), 1, sharex=True))
    for axes, name in zip(panels, names, strict=True):
        rows = np.flatnonzero((log.tensor == log.tensors.index(name)) & ~gone)
        rows = rows[np.argsort(log.steps[rows], kind="stable")]
        steps, values = log.steps[rows], log.values[rows]
        finite = values[np.isfinite(values)]
        axes.plot(steps, values, ".-", color=VALUE, lw=0.8, ms=2, label="value")
        if found.seen is not None:
            threshold = found.seen.threshold[rows]
            axes.plot(steps, np.where(np.isfinite(threshold), threshold, np.nan), color=THRESHOLD, label="threshold")
        at = [alarm for _, alarm in found.alarms if alarm.tensor == name]
        top = float(finite.max()) if len(finite) else 1.0
        heights = [alarm.value if np.isfinite(alarm.value) else top for alarm in at]
        axes.plot([alarm.step for alarm in at], heights, "v", color=ALARM, ms=6, label="alarm")
        for each in found.symptoms:
            if each.tensor == name:
                axes.axvline(each.step, color=ALARM, ls="--", lw=1.0, label="alarm: " + each.why[:40])
        if len(finite) and finite.min() > 0 and finite.max() > 30 * np.median(finite):
            axes.set_yscale("log")
        axes.set_ylabel(name[:40].replace("$", r"\$"))
        axes.grid(alpha=0.25, lw=0.5)
        axes.legend(fontsize=7, loc="best")
    panels[-1].set_xlabel("step")
    panels[0].set_title(title.replace("$", r"\$"), fontsize=10)
    suffix = path.suffix[1:]
    write_atomically(path, lambda file: figure.savefig(file, format=suffix, dpi=110))
    return f"{len(log.tensors) - MOST} tensor(s) without room are not drawn" if len(log.tensors) > MOST else ""
