"""The recipe of a workload of labelled examples: its network on its table of them."""

import pathlib
from typing import Any

import jax
import numpy as np

from ..data.click_logs import CLICK_LOGS
from ..data.clicks import ClickBatches
from ..explicit.batch_source import OpenData
from ..explicit.optimizers import keras_sgd
from ..explicit.recipe import Recipe
from ..models.loss import binary_cross_entropy
from ..models.networks.dlrm import dlrm
from ..seam.measure import Measure

TOLERANCE = 0.005  # half a point of accuracy; ours (docs/science.md, Outcomes)


def click_recipe(w: Any, data_dir: pathlib.Path | None) -> Recipe:
    """The recipe of a `ClickWorkload`.  Its metric is the accuracy of the decision."""
    log = CLICK_LOGS[w.dataset]

    def data() -> OpenData:
        clicks = log.load(data_dir, w.tables)
        measure = Measure("accuracy", "higher", clicks.chance, TOLERANCE, (0.0, 1.0))
        return OpenData(ClickBatches(clicks, w.seed, w.workers, w.batch_size), measure, clicks.sha256)

    return Recipe(
        dlrm(log.numbers, w.tables, w.dimension, w.bottom, w.top),
        keras_sgd(w.learning_rate),
        jax.ShapeDtypeStruct((log.numbers + len(log.sizes),), np.int32),
        data,
        **w.shared,
        rate=lambda done: w.learning_rate,
        head=binary_cross_entropy,
        tables=frozenset(f"emb_{k}/table" for k in range(len(log.sizes))),
    )
