"""The three published examples of `resnet18`, published and ours: a table (printed) and `comparison.png`.

Reads what `reproduce_injections.py` wrote beside this script, and the published traces in
`tests/data/published_traces.json`.
"""

import json
import pathlib

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

HERE = pathlib.Path(__file__).resolve().parent
PUBLISHED = json.loads((HERE.parents[1] / "tests" / "data" / "published_traces.json").read_text())["traces"]
EXAMPLES = {"masked": "Masked", "slow_degrade": "SlowDegrade", "immediate_infs_nans": "Immediate INFs/NaNs"}
AFTER = 20  # steps shown after the fault
EPOCHS, STEPS = 80, 49  # of the published training; an epoch of ours has as many steps


def published(name):
    """Columns of a published trace: by epoch, and by step around the fault."""
    trace = PUBLISHED[name]
    epochs = np.array(trace["epochs"], float).reshape(-1, 5).T
    steps = np.array(trace["steps_around_fault"], float).reshape(-1, 4).T
    return dict(zip(("epoch", "train_loss", "train", "test_loss", "test"), epochs, strict=True)), dict(
        zip(("epoch", "step", "loss", "accuracy"), steps, strict=True)
    )


def ours(name):
    """Columns of our record, and the verdict."""
    record = dict(np.load(HERE / name / "record.npz"))
    return record, json.loads((HERE / name / "outcome.json").read_text())


def end(epochs, key):
    """Mean over the last three epochs."""
    return f"{np.mean(epochs[key][-3:]):.3f}" if len(epochs[key]) >= 3 else "no end"


def place(name):
    """Epoch and step of our fault, and the length of our training."""
    provenance = json.loads((HERE / name / "provenance.json").read_text())
    rows = dict(line.split(",", 1) for line in provenance["injection"])
    return int(rows["target_epoch"]), int(rows["target_step"]), provenance["workload"]["epochs"]


def draw(axes, name):
    above, below = axes
    record, outcome = ours(name)
    epoch, step, epochs = place(name)
    for run, colour in (("golden", "0.6"), ("faulty", "C3")):
        x = (record[f"{run}/epochs/epoch"] + 1) / epochs
        above.plot(x, record[f"{run}/epochs/train_accuracy"], colour, label=f"ours, {run}")
        at = (record[f"{run}/steps/epoch"] - epoch) * STEPS + record[f"{run}/steps/step"] - step
        near = (at >= -step) & (at <= AFTER)
        below.plot(at[near], record[f"{run}/steps/accuracy"][near], colour)
    golden, _ = published("fault_free")
    theirs, their_steps = published(f"replay_inj_{name}")
    above.plot((golden["epoch"] + 1) / EPOCHS, golden["train"], "k:", label="published, golden")
    above.plot((theirs["epoch"] + 1) / EPOCHS, theirs["train"], "C0--", label="published, faulty")
    epoch, step = PUBLISHED[f"replay_inj_{name}"]["inject"]
    at = (their_steps["epoch"] - epoch) * STEPS + their_steps["step"] - step
    near = at <= AFTER
    below.plot(at[near], their_steps["accuracy"][near], "C0--")
    above.axvline((epoch + step / STEPS) / EPOCHS, color="k", linewidth=0.5)
    below.axvline(0, color="k", linewidth=0.5)
    above.set(title=f"{name}\nours: {outcome['outcome']}", xlabel="part of the training", ylim=(0, 1))
    below.set(xlabel="steps since the fault", ylim=(0, 1))


def accuracies(record, run):
    """Training and test accuracy by epoch, under the names of the published columns."""
    return {"train": record[f"{run}/epochs/train_accuracy"], "test": record[f"{run}/epochs/valid_accuracy"]}


def row(name, expected, verdict, theirs, mine):
    cells = [f"{end(theirs, key)}, {end(mine, key)}" for key in ("train", "test")]
    print(f"| {name} | {expected} | {verdict} | {cells[0]} | {cells[1]} |")


def main():
    print("| example | expected | ours | train at the end: published, ours | test: published, ours |")
    print("|---|---|---|---|---|")
    figure, axes = plt.subplots(2, len(EXAMPLES), figsize=(12, 6), layout="constrained")
    for column, (name, expected) in enumerate(EXAMPLES.items()):
        record, outcome = ours(name)
        if column == 0:
            row("fault-free", "", "", published("fault_free")[0], accuracies(record, "golden"))
        whole = outcome["first_nonfinite"] is None
        mine = accuracies(record, "faulty") if whole else {"train": [], "test": []}
        row(f"`{name}`", expected, outcome["outcome"], published(f"replay_inj_{name}")[0], mine)
        draw(axes[:, column], name)
    axes[0, 0].set_ylabel("training accuracy of the epoch")
    axes[1, 0].set_ylabel("training accuracy of the step")
    axes[0, 0].legend(fontsize="small")
    figure.savefig(HERE / "comparison.png", dpi=110)


if __name__ == "__main__":
    main()
