"""The recipe of a text workload: its network on its text."""

import pathlib
from typing import Any

import jax
import numpy as np
import optax

from ..data.texts import TEXTS
from ..data.tokens import TokenBatches
from ..explicit.batch_source import OpenData
from ..explicit.optimizers import clipped_adamw
from ..explicit.recipe import Recipe
from ..models.loss import nats_per_token
from ..models.networks.transformer import transformer
from ..seam.measure import Measure

TOLERANCE = 0.02  # nats per token; ours (docs/science.md, Outcomes)
WARM_UP = 0.05  # share of the training in which the learning rate rises
DECAY = 0.1  # share of the learning rate that is left at the end


def text_recipe(w: Any, data_dir: pathlib.Path | None) -> Recipe:
    """The recipe of a `TextWorkload`.  Its metric is its loss, in nats per token."""

    def data() -> OpenData:
        tokens = TEXTS[w.dataset].load(data_dir, w.vocabulary, w.context)
        batches = TokenBatches(tokens, w.seed, w.workers, w.batch_size, w.context)
        return OpenData(batches, Measure("loss", "lower", tokens.chance, TOLERANCE), tokens.sha256)

    rate = schedule(w.learning_rate, w.epochs * w.steps_per_epoch)
    network = transformer(w.vocabulary, w.width, w.blocks, w.heads, w.kv_heads, w.tied == "yes")
    return Recipe(
        network,
        clipped_adamw(rate),
        jax.ShapeDtypeStruct((w.context,), np.int32),
        data,
        **w.shared,
        rate=rate,
        head=nats_per_token,
    )


def schedule(learning_rate: float, steps: int) -> optax.Schedule:
    """A linear rise to the learning rate in the first twentieth of the steps, then half a cosine to a tenth of it.

    >>> rate = schedule(1.0, 100)
    >>> [round(float(rate(step)), 3) for step in (0, 4, 5, 100)]
    [0.2, 0.84, 1.0, 0.1]
    """
    rise = max(1, round(WARM_UP * steps))
    return optax.warmup_cosine_decay_schedule(learning_rate / rise, learning_rate, rise, steps, DECAY * learning_rate)
