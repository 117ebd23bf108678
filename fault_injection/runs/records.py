"""What a replay writes: the published log, columns, verdict, provenance, picture."""

import dataclasses
import pathlib
from typing import Any

import numpy as np

from ..faults.injection import Injection
from ..machine.files import write_arrays, write_json, write_text
from ..training.session import Names
from .run_store import PER_EPOCH, Epoch

FIELDS = ("gradients", "params", "stats")


@dataclasses.dataclass(frozen=True)
class Run:
    """One run as far as it was recorded: its epochs in order, each starting with step 0.

    Attributes:
      first: number of the first epoch.
      epochs: their records; the last may have ended early.
      ended: how many of them ran to their end and were evaluated.
    """

    first: int
    epochs: list[Epoch]
    ended: int

    def column(self, name: str) -> np.ndarray:
        """A per-step column over all epochs."""
        return np.concatenate([epoch[name] for epoch in self.epochs])

    def epoch_column(self, name: str) -> np.ndarray:
        """A per-epoch column over the epochs that ended."""
        return np.array([epoch[name] for epoch in self.epochs[: self.ended]], np.float64)


def columns(run: Run, names: Names) -> dict[str, np.ndarray]:
    """A run as named columns: `steps/…` with a row a step, `epochs/…` with a row an epoch.

    `largest_<what>` are largest absolute values of the step's gradients, parameters,
    statistics, each moment of the optimizer's history, and the running variances.
    """
    magnitude = run.column("magnitude")
    largest = {what: [i for i, name in enumerate(names.magnitude) if name.startswith(f"{what}/")] for what in FIELDS}
    largest |= {f"history_{moment}": at for moment, at in names.history.items()}
    largest["running_variance"] = names.running_variance
    steps = {
        "epoch": np.concatenate([np.full(len(e["step"]), run.first + i) for i, e in enumerate(run.epochs)]),
        **{name: run.column(name) for name in ("step", "loss", "accuracy")},
        **{f"largest_{what}": worst(magnitude[:, at]) for what, at in largest.items() if at},
    }
    epochs = {"epoch": run.first + np.arange(run.ended), **{name: run.epoch_column(name) for name in PER_EPOCH}}
    return {f"steps/{k}": v for k, v in steps.items()} | {f"epochs/{k}": v for k, v in epochs.items()}


def worst(magnitude: np.ndarray) -> np.ndarray:
    """Largest magnitude along the last axis, NaN counting as the largest."""
    return np.where(np.isnan(magnitude).any(-1), np.nan, np.max(magnitude, -1, initial=0))


def published_log(injection: Injection, run: Run, old: np.ndarray, checkpoint: object, nonfinite: bool) -> str:
    """The log of the published artifact, line for line (docs/science.md, Log)."""
    w = injection.workload
    shape = injection.site.shapes[injection.operand]
    lines = [
        f"Inject to epoch: {injection.epoch}",
        f"Inject to step: {injection.step}",
        f"Load weights from {checkpoint}",
    ]
    for i, record in enumerate(run.epochs):
        epoch = run.first + i
        for step, loss, accuracy in zip(record["step"], record["loss"], record["accuracy"], strict=True):
            if (epoch, step) == (injection.epoch, injection.step):
                lines += [
                    f"Inject worker: {injection.worker}",
                    f"Inject layer: {injection.layer}",
                    f"Shape for target layer is {tuple(shape)}",
                ]
                lines += [
                    f"Position is {position}, Golden data is {float(before)!r}, inject data is {value!r}"
                    for position, before, value in zip(injection.positions, old, injection.values, strict=True)
                ]
            lines.append(
                f"Epoch: {epoch}/{w.epochs}, step: {step}/{injection.steps_per_epoch}, "
                f"loss: {loss:.5f}, accuracy: {accuracy:.5f}"
            )
        if i < run.ended:
            t = {name: float(record[name]) for name in PER_EPOCH}
            lines.append(
                f"End of epoch: {epoch}/{w.epochs}, train loss: {t['train_loss']:.5f}, "
                f"train accuracy: {t['train_accuracy']:.5f}, valid loss: {t['valid_loss']:.5f}, "
                f"valid accuracy: {t['valid_accuracy']:.5f}"
            )
    if nonfinite:
        lines.append("Encounter NaN! Terminate training!")
    return "\n".join(lines) + "\n"


def write_results(
    folder: pathlib.Path,
    name: str,
    log: str,
    tables: dict[str, dict[str, np.ndarray]],
    outcome: dict[str, Any],
    provenance: dict[str, Any],
    fault_at: float,
    steps_per_epoch: int,
) -> None:
    """Write everything of one replay to `folder`; `outcome.json` last: where it is, all is."""
    from .curves import Measure, draw_curves  # Matplotlib is slow to import

    (folder / "outcome.json").unlink(missing_ok=True)
    write_text(folder / f"replay_{name}.txt", log)
    write_arrays(folder / "record.npz", {f"{run}/{k}": v for run, table in tables.items() for k, v in table.items()})
    write_json(folder / "provenance.json", provenance)
    title = f"{name}: {outcome['outcome']}"
    faulty = {"faulty": tables["faulty"]}
    at = {"faulty": fault_at}
    draw_curves(folder / "curves.png", title, tables["golden"], faulty, at, steps_per_epoch, Measure())
    write_json(folder / "outcome.json", outcome)
