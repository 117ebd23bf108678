"""The program of a workload of labelled examples: its network on its table of them."""

import functools
import pathlib
from typing import TYPE_CHECKING

import jax
import numpy as np

from ..data.clicks import ClickBatches
from ..explicit.batch_source import read_alike
from ..explicit.engine import explicit_program
from ..explicit.optimizers import keras_sgd
from ..models.layer import Layer
from ..models.loss import binary_cross_entropy
from ..seam.measure import Measure
from ..seam.program import Program

if TYPE_CHECKING:  # the description of a workload is no part of what computes its bits
    from ..data.click_logs import ClickLogInfo
    from .click import ClickWorkload

TOLERANCE = 0.005  # half a point of accuracy; ours (docs/science.md, Outcomes)


def click_program(
    workload: "ClickWorkload",
    network: Layer,
    log: "ClickLogInfo",
    supported: frozenset[str] | None = None,
    devices: int | None = None,
    data_dir: pathlib.Path | None = None,
    reductions: frozenset[str] = frozenset(),
) -> Program:
    """The program of a workload.  Its metric is the accuracy of the decision.

    Args:
      network, log: what the workload names.
      supported, devices, data_dir, reductions: as in `Workload.program`.
    """
    w = workload
    clicks = functools.cache(lambda: read_alike(lambda: log.load(data_dir, w.tables)))
    return explicit_program(
        network,
        keras_sgd(w.learning_rate),
        jax.ShapeDtypeStruct((log.numbers + len(log.sizes),), np.int32),
        workers=w.workers,
        batch_size=w.batch_size,
        steps_per_epoch=w.steps_per_epoch,
        seed=w.seed,
        batches=lambda: ClickBatches(clicks(), w.seed, w.workers, w.batch_size),
        measure=lambda: Measure("accuracy", "higher", clicks().chance, TOLERANCE, (0.0, 1.0)),
        data=lambda: clicks().sha256,
        supported=supported,
        devices=devices,
        reductions=reductions,
        head=binary_cross_entropy,
        tables=frozenset(f"emb_{k}/table" for k in range(len(log.sizes))),
    )
