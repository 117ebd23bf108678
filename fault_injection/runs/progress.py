"""How far a run is, shown to the person at the terminal."""

import time
from collections.abc import Callable
from typing import Any, Self

from ..machine.processes import leading
from ..machine.progress_bar import progress_bar
from ..seam.leaves import State
from ..seam.report import StepReport
from .records import Epoch
from .steps import Address, Observer


class Progress(Observer):
    """A bar with one unit per step; a context that closes it.

    Args:
      name: of the run.
      total: steps of it.
      metric: name of the metric, shown beside the loss; empty for none.
      golden: the golden record of an epoch, for the golden figures beside the run's own.
    """

    def __init__(self, name: str, total: int, metric: str = "", golden: Callable[[int], Epoch] | None = None):
        self._bar = progress_bar(total=total, desc=name, unit="step", mininterval=0.5, disable=not leading())
        self._metric, self._golden = metric if metric != "loss" else "", golden
        self.compiling()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._bar.close()

    def compiling(self, what: str = "the step") -> None:
        """Say that the next step has to be compiled first, or loaded."""
        self._bar.set_postfix_str(f"compiling {what}")

    def beside(self, name: str) -> Observer:
        """Shows the steps of another run in the same bar: one that this run waits for."""
        return _Beside(self._bar, name)

    def after_step(self, at: Address, state: State, report: StepReport) -> None:
        figures = f"epoch {at.epoch}, loss {report.loss:.3f}"
        if self._metric:
            figures += f", {self._metric} {report.metric:.3f}"
        if self._golden:
            record = self._golden(at.epoch)
            metric = f", {record['metric'][at.step]:.3f}" if self._metric else ""
            figures += f" (golden {record['loss'][at.step]:.3f}{metric})"
        self._bar.set_postfix_str(figures, refresh=False)
        self._bar.update()


class _Beside(Observer):
    """See `Progress.beside`."""

    def __init__(self, bar: Any, name: str):
        self._bar, self._name = bar, name

    def after_step(self, at: Address, state: State, report: StepReport) -> None:
        self._bar.set_postfix_str(f"{self._name} of epoch {at.epoch}, loss {report.loss:.3f}", refresh=False)
        self._bar.update()


class Pace(Observer):
    """Measures what a step takes, evaluations and files included, but for the first, which is compiled."""

    def __init__(self) -> None:
        self._begun = self._last = 0.0
        self._steps = -1

    def after_step(self, at: Address, state: State, report: StepReport) -> None:
        self._last = time.monotonic()
        self._begun = self._begun or self._last
        self._steps += 1

    @property
    def seconds_per_step(self) -> float | None:
        """Mean over the steps so far; None before there are two."""
        return (self._last - self._begun) / self._steps if self._steps > 0 else None
