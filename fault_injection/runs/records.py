"""What is recorded of a run: one record per epoch, made of columns."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from ..seam.leaves import Role, State
from ..seam.measure import Evaluation
from ..seam.program import Program
from ..seam.report import StepReport
from .steps import Address, Observer

Epoch = dict[str, np.ndarray]
PER_EPOCH = ("train_loss", "train_metric", "valid_loss", "valid_metric")
NOT_EVALUATED = Evaluation(np.nan, np.nan)


class StepRow(NamedTuple):
    """What is recorded of one step; see `StepReport`."""

    step: np.ndarray
    loss: np.ndarray
    metric: np.ndarray
    digest: np.ndarray
    magnitude: np.ndarray


PER_STEP = StepRow._fields


def epoch_record(rows: Sequence[StepRow], evaluation: Evaluation = NOT_EVALUATED) -> Epoch:
    """An epoch as columns: `PER_STEP` with one row per step, `PER_EPOCH` as scalars.

    Args:
      rows: of the epoch's steps from the first on.
      evaluation: on the test data after the epoch.
    """
    record = {name: np.stack(column) for name, column in zip(PER_STEP, zip(*rows, strict=True), strict=True)}
    # The epoch's training figures are means over its steps, because all batches have one size.
    means = [record[column].mean(dtype=np.float64) for column in ("loss", "metric")]
    return record | dict(zip(PER_EPOCH, map(np.asarray, [*means, *evaluation]), strict=True))


def abstract_record(program: Program) -> dict[str, tuple[int, ...]]:
    """Shapes of the columns of an epoch's record."""
    steps = program.steps_per_epoch
    wide = {"digest": (steps, len(program.state.leaves)), "magnitude": (steps, len(program.state.watched))}
    return {name: wide.get(name, (steps,)) for name in PER_STEP} | dict.fromkeys(PER_EPOCH, ())


def rows_of(record: Epoch, steps: int) -> list[StepRow]:
    """The rows of the first `steps` steps of a record."""
    return [StepRow(*(record[name][i] for name in PER_STEP)) for i in range(steps)]


def cut(record: Epoch, steps: int) -> Epoch:
    """The first steps of an epoch; the figures of the whole epoch stay."""
    return {name: column[:steps] if name in PER_STEP else column for name, column in record.items()}


@dataclasses.dataclass(frozen=True)
class Run:
    """One run as far as it was recorded: its epochs in order, each from step 0 on.

    Attributes:
      first: number of the first epoch.
      epochs: their records; the last one may have ended early.
      ended: how many of them ran to their end and were evaluated.
    """

    first: int
    epochs: tuple[Epoch, ...]
    ended: int

    def column(self, name: str) -> np.ndarray:
        """A per-step column over all epochs."""
        return np.concatenate([epoch[name] for epoch in self.epochs])

    def epoch_column(self, name: str) -> np.ndarray:
        """A per-epoch column over the epochs that ended."""
        return np.array([epoch[name] for epoch in self.epochs[: self.ended]], np.float64)


class Recorder(Observer):
    """Records a run.

    Args:
      before: what was recorded of it before, ending with a whole epoch.
      rows: of the epoch in which the recorded steps begin, the steps before them.
    """

    def __init__(self, before: Run, rows: Sequence[StepRow] = ()):
        self._before = before
        self._epochs: list[Epoch] = []
        self._rows = list(rows)

    def after_step(self, at: Address, state: State, report: StepReport) -> None:
        numbers = (report.loss, report.metric, report.digest, report.magnitude)
        self._rows.append(StepRow(*map(np.asarray, (np.int32(at.step), *numbers))))

    def after_epoch(self, epoch: int, state: State, evaluate: Callable[[], Evaluation]) -> None:
        self._epochs.append(epoch_record(self._rows, evaluate()))
        self._rows = []

    def undone(self, at: Address) -> None:
        first = self._before.first + len(self._before.epochs)
        while self._epochs and first + len(self._epochs) > at.epoch:
            record = self._epochs.pop()
            self._rows = rows_of(record, len(record["step"]))
        self._rows = self._rows[: at.step]

    @property
    def run(self) -> Run:
        """The run so far."""
        begun = [epoch_record(self._rows)] if self._rows else []
        ended = self._before.ended + len(self._epochs)
        return Run(self._before.first, (*self._before.epochs, *self._epochs, *begun), ended)


def run_columns(run: Run, program: Program, metric: str) -> dict[str, np.ndarray]:
    """A run as named columns: `steps/…` with one row per step, `epochs/…` with one row per epoch.

    The metric's columns have its name.  `largest_<what>` are largest absolute values in the
    step, of its gradients and of the state's leaves by their roles, each moment of the
    optimizer's history apart.
    """
    magnitude = run.column("magnitude")
    groups = {
        role.value: program.state.positions(role) for role in Role if role not in (Role.HISTORY, Role.KEPT, Role.OTHER)
    }
    groups |= {f"history_{moment}": program.state.positions(Role.HISTORY, moment) for moment in program.state.moments}
    steps = {
        "epoch": np.concatenate([np.full(len(e["step"]), run.first + i) for i, e in enumerate(run.epochs)]),
        "step": run.column("step"),
        metric: run.column("metric"),
        "loss": run.column("loss"),
        **{f"largest_{what}": peak(magnitude[:, at]) for what, at in groups.items() if at},
    }
    epochs = {"epoch": run.first + np.arange(run.ended)}
    for part in ("train", "valid"):
        epochs[f"{part}_{metric}"] = run.epoch_column(f"{part}_metric")
        epochs[f"{part}_loss"] = run.epoch_column(f"{part}_loss")
    return {f"steps/{k}": v for k, v in steps.items()} | {f"epochs/{k}": v for k, v in epochs.items()}


def peak(magnitude: np.ndarray) -> np.ndarray:
    """Largest magnitude along the last axis, NaN counting as the largest; 0 of none.

    >>> peak(np.array([[1.0, 2.0], [np.nan, 3.0]]))
    array([ 2., nan])
    """
    return np.max(magnitude, -1, initial=0)  # NumPy's maximum of a NaN is NaN
