"""The recipe of an image workload: its network on its images."""

import pathlib
from typing import Any

import jax
import numpy as np
import optax

from ..data import DATASETS
from ..data.batches import Batches
from ..data.images import SHAPE
from ..explicit.batch_source import OpenData
from ..explicit.optimizers import keras_adam, keras_sgd
from ..explicit.recipe import Recipe
from ..models.networks import NETWORKS
from ..seam.measure import Measure

TOLERANCE = 0.02  # two points of accuracy; ours (docs/science.md, Outcomes)
OPTIMIZERS = {"adam": keras_adam, "sgd": keras_sgd}


def image_recipe(w: Any, data_dir: pathlib.Path | None) -> Recipe:
    """The recipe of an `ImageWorkload`.  Its learning rate falls linearly; its metric is the accuracy."""

    def data() -> OpenData:
        images = DATASETS[w.dataset].load(data_dir)
        measure = Measure("accuracy", "higher", images.chance, TOLERANCE, (0.0, 1.0))
        return OpenData(Batches(images, w.seed, w.workers, w.batch_size, w.augmentation), measure, images.sha256)

    network = NETWORKS[w.network](width=w.width, blocks=w.blocks, dropout_rate=w.dropout)
    schedule = optax.polynomial_schedule(w.learning_rate, w.end_learning_rate, power=1, transition_steps=w.decay_steps)
    return Recipe(
        network,
        OPTIMIZERS[w.optimizer](schedule),
        jax.ShapeDtypeStruct(SHAPE, np.float32),
        data,
        **w.shared,
        rate=schedule,
    )
