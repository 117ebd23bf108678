"""A training of one's own: what a user writes, and the workload that it becomes."""

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np  # noqa: F401  in the example

from ..seam.measure import Measure
from .instrument import ALL
from .step_forms import Arguments


@dataclasses.dataclass(frozen=True)
class Training:
    """A training as it is: nothing of its step is rewritten.

    A function that returns one is a workload: `FILE.py:FUNCTION` names it.  If the function has an argument `seed`,
    it gets the workload's.

    Attributes:
      init: the state before the first step: any pytree.
      step: `(state, batch) -> state, metrics`, pure.  It may also take the elements of a state or batch that is a
        tuple, return the elements of such a state, or the metrics first, or change modules of Flax NNX in place.  The
        metrics have `loss` and the metric's name, as a mapping, dataclass or named tuple; or they are the loss alone,
        which may stand beside the others.  Of arrays the mean counts.  If it returns the state alone, what `evaluate`
        gives of the new state are its metrics.
      batch: the batch of (epoch, step), the same whenever it is asked for.
      steps_per_epoch, epochs: length of the training.
      evaluate: the same metrics of a state on test data.
      metric: by what runs are compared.
      roles: what leaves of the state are, by patterns of their names, where it does not show: `parameters`,
        `statistics`, `running_variance`, `history:MOMENT` or `other`.
      sites: patterns of the sites that a plan draws from; all by default.
      primitives, turns: as `instrument` takes them.
      predict, tests: `(state, batch) -> logits [n,…,C]`, and what gives the batches of the test data: what `pvf` judges
        by single answers.  Without them it judges by `evaluate`.
      arguments: what the step takes, made of a state and a batch, where it takes something else than these and their
        elements: `lambda state, batch: (state["params"], batch["image"], state["key"])`.
      load: `path -> state`: the state that a checkpoint of one's own has, with the leaves, shapes and dtypes that
        `init` gives.  `continue` and `[start]` of a plan read with it what they restart from.

    >>> def training(seed: int = 0) -> Training:
    ...     def step(state, batch):
    ...         return {"w": state["w"] - 0.1 * batch @ state["w"]}, {"loss": state["w"].sum()}
    ...     measure = Measure("loss", "lower", chance=1.0, tolerance=0.01)
    ...     init = lambda: {"w": np.ones((2, 1), np.float32)}
    ...     batch = lambda epoch, step: np.eye(2, dtype=np.float32)
    ...     return Training(init, step, batch, 4, 2, lambda state: {"loss": state["w"].sum()}, measure)
    >>> training().epochs
    2
    """

    init: Callable[[], Any]
    step: Callable[..., Any]
    batch: Callable[[int, int], Any]
    steps_per_epoch: int
    epochs: int
    evaluate: Callable[[Any], Any]
    metric: Measure
    roles: Mapping[str, str] = dataclasses.field(default_factory=dict)
    sites: str | Sequence[str] = ALL
    primitives: Sequence[str] = ()
    turns: int = 1
    predict: Callable[[Any, Any], Any] | None = None
    tests: Callable[[], Sequence[Any]] | None = None
    arguments: Arguments | None = None
    load: Callable[[os.PathLike[str]], Any] | None = None
