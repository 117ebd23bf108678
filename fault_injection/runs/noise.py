"""Final metrics of a golden run, and how far those of its twins spread."""

import contextlib
import itertools
from collections.abc import Collection

import numpy as np

from ..machine.processes import from_leader
from .golden_run import Golden
from .outcome import Noise
from .records import Epoch


def final_metrics(records: Collection[Epoch]) -> tuple[float, float]:
    """The metric at the end on training and test data: means over the records given, the last epochs of a run."""
    train, test = (float(np.mean([r[name] for r in records])) for name in ("train_metric", "valid_metric"))
    return train, test


def noise_floor(golden: Golden, epochs: int, window: int, twins: int | None = None) -> Noise | None:
    """How far the final metrics of the golden run and its twins spread; None where fewer than two twins were run.

    Args:
      epochs: length of the runs.
      window: the final metric is a mean over the last this many epochs.
      twins: how many are looked at, of those that have been started; None for all.
    """
    last = range(max(0, epochs - window), epochs)
    numbers = itertools.count(1) if twins is None else range(1, twins + 1)

    def finals() -> list[tuple[float, float]]:
        found = []
        started = itertools.takewhile(lambda twin: twin.folder.exists(), map(golden.twin_run, numbers))
        for run in (golden, *started):
            with contextlib.suppress(FileNotFoundError):  # a twin not made to the end; a damaged one is named
                found.append(final_metrics([run.fetch_record(epoch) for epoch in last]))
        return found

    found = from_leader(finals)
    if len(found) < 3:
        return None
    train, test = np.std(found, axis=0, ddof=1)
    return Noise(len(found) - 1, float(train), float(test))
