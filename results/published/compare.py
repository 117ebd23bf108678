"""The three published examples of `resnet18`, published and ours: a table (printed) and `comparison.png`.

Reads what `reproduce_injections.py` wrote beside this script, and `tests/data/published_traces.json`.
"""

import json
import pathlib

import numpy as np
from matplotlib.figure import Figure

HERE = pathlib.Path(__file__).resolve().parent
PUBLISHED = json.loads((HERE.parents[1] / "tests" / "data" / "published_traces.json").read_text())
EXAMPLES = {"masked": "Masked", "slow_degrade": "SlowDegrade", "immediate_infs_nans": "Immediate INFs/NaNs"}
EPOCHS, STEPS = 80, 49  # of the published training; an epoch of ours has as many steps
AFTER = 20  # steps shown after the fault
LAST = 3  # epochs whose mean is "the end"


def published(name):
    """Epochs, training and validation accuracies of a published trace."""
    return np.array(PUBLISHED[name]["epochs"], float).reshape(-1, 3).T


def ours(name):
    """Our record, verdict and provenance of an example."""
    outcome, provenance = (json.loads((HERE / name / f"{part}.json").read_text()) for part in ("outcome", "provenance"))
    return dict(np.load(HERE / name / "record.npz")), outcome, provenance


def row(name, expected, verdict, theirs, mine):
    """A line of the table; `theirs` and `mine` are training and test accuracies by epoch."""
    cells = [", ".join(map(_end, pair)) for pair in zip(theirs, mine, strict=True)]
    print(f"| {name} | {expected} | {verdict} | {' | '.join(cells)} |")


def _end(accuracies):
    return f"{np.mean(accuracies[-LAST:]):.3f}" if len(accuracies) else "none"


def draw(axes, name):
    """Training accuracy by epoch above, by step around the fault below."""
    above, below = axes
    record, outcome, provenance = ours(name)
    rows = dict(line.split(",", 1) for line in provenance["injection"])
    epoch, step, epochs = int(rows["target_epoch"]), int(rows["target_step"]), provenance["workload"]["epochs"]
    for run, colour in (("golden", "0.6"), ("faulty", "C3")):
        x = (record[f"{run}/epochs/epoch"] + 1) / epochs
        above.plot(x, record[f"{run}/epochs/train_accuracy"], colour, label=f"ours, {run}")
        since = (record[f"{run}/steps/epoch"] - epoch) * STEPS + record[f"{run}/steps/step"] - step
        near = (since >= -step) & (since <= AFTER)
        below.plot(since[near], record[f"{run}/steps/accuracy"][near], colour)
    for run, line in (("fault_free", "k:"), (name, "C0--")):
        at, train, _ = published(run)
        above.plot((at + 1) / EPOCHS, train, line, label=f"published, {'golden' if run == 'fault_free' else 'faulty'}")
    theirs = PUBLISHED[name]
    since = np.arange(len(theirs["steps"])) - theirs["step"]
    below.plot(since[since <= AFTER], np.array(theirs["steps"], float)[since <= AFTER, 1], "C0--")
    above.axvline((theirs["epoch"] + theirs["step"] / STEPS) / EPOCHS, color="k", linewidth=0.5)
    below.axvline(0, color="k", linewidth=0.5)
    above.set(title=f"{name}\nours: {outcome['outcome']}", xlabel="part of the training", ylim=(0, 1))
    below.set(xlabel="steps since the fault", ylim=(0, 1))


def main():
    print("| example | expected | ours | training accuracy at the end: published, ours | test: published, ours |")
    print("|---|---|---|---|---|")
    figure = Figure(figsize=(12, 6), dpi=110, layout="constrained")
    axes = figure.subplots(2, len(EXAMPLES))
    for column, (name, expected) in enumerate(EXAMPLES.items()):
        record, outcome, _ = ours(name)
        golden, faulty = (
            [record[f"{run}/epochs/{part}_accuracy"] for part in ("train", "valid")] for run in ("golden", "faulty")
        )
        if column == 0:
            row("fault-free", "", "", published("fault_free")[1:], golden)
        mine = faulty if outcome["first_nonfinite"] is None else [[], []]
        row(f"`{name}`", expected, outcome["outcome"], published(name)[1:], mine)
        draw(axes[:, column], name)
    axes[0, 0].set_ylabel("training accuracy of the epoch")
    axes[1, 0].set_ylabel("training accuracy of the step")
    axes[0, 0].legend(fontsize="small")
    figure.savefig(HERE / "comparison.png")


if __name__ == "__main__":
    main()
