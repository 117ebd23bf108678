"""How far a run is, shown to the person at the terminal."""

from collections.abc import Callable
from typing import Self

from tqdm import tqdm

from ..machine.processes import leading
from ..training.program import State, StepReport
from .follow import Address, Observer
from .records import Epoch


class Progress(Observer):
    """A bar with one unit per step; a context that closes it.

    Args:
      name: of the run.
      total: steps of it.
      metric: name of the metric; shown where it is given.
      golden: the golden record of an epoch, for the golden figures beside the run's own.
    """

    def __init__(self, name: str, total: int, metric: str = "", golden: Callable[[int], Epoch] | None = None):
        self._bar = tqdm(total=total, desc=name, unit="step", mininterval=0.5, disable=not leading())
        self._metric, self._golden = metric, golden
        self.compiling()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._bar.close()

    def compiling(self, what: str = "the step") -> None:
        """Say that the next step has to be compiled first, or loaded."""
        self._bar.set_postfix_str(f"compiling {what}")

    def after_step(self, at: Address, state: State, report: StepReport) -> None:
        """Show the step's figures."""
        figures = f"epoch {at.epoch}, loss {report.loss:.3f}"
        if self._metric:
            figures += f", {self._metric} {report.metric:.3f}"
        if self._golden:
            record = self._golden(at.epoch)
            figures += f" (golden {record['loss'][at.step]:.3f}, {record['metric'][at.step]:.3f})"
        self._bar.set_postfix_str(figures, refresh=False)
        self._bar.update()
