"""The program of a text workload: its network on its text."""

import functools
import pathlib
from typing import TYPE_CHECKING

import jax
import numpy as np
import optax

from ..data.tokens import TokenBatches
from ..explicit.batch_source import read_alike
from ..explicit.engine import explicit_program
from ..explicit.optimizers import clipped_adamw
from ..models.layer import Layer
from ..models.loss import nats_per_token
from ..seam.measure import Measure
from ..seam.program import Program

if TYPE_CHECKING:  # the description of a workload is no part of what computes its bits
    from ..data.texts import TextInfo
    from .text import TextWorkload

TOLERANCE = 0.02  # nats per token; ours (docs/science.md, Outcomes)
WARM_UP = 0.05  # share of the training in which the learning rate rises
DECAY = 0.1  # share of the learning rate that is left at the end


def text_program(
    workload: "TextWorkload",
    network: Layer,
    text: "TextInfo",
    supported: frozenset[str] | None = None,
    devices: int | None = None,
    data_dir: pathlib.Path | None = None,
    reductions: frozenset[str] = frozenset(),
) -> Program:
    """The program of a workload.  Its metric is its loss, in nats per token.

    Args:
      network, text: what the workload names.
      supported, devices, data_dir, reductions: as in `Workload.program`.
    """
    w = workload
    tokens = functools.cache(lambda: read_alike(lambda: text.load(data_dir, w.vocabulary, w.context)))
    return explicit_program(
        network,
        clipped_adamw(schedule(w.learning_rate, w.epochs * w.steps_per_epoch)),
        jax.ShapeDtypeStruct((w.context,), np.int32),
        workers=w.workers,
        batch_size=w.batch_size,
        steps_per_epoch=w.steps_per_epoch,
        seed=w.seed,
        batches=lambda: TokenBatches(tokens(), w.seed, w.workers, w.batch_size, w.context),
        measure=lambda: Measure("loss", "lower", tokens().chance, TOLERANCE),
        data=lambda: tokens().sha256,
        supported=supported,
        devices=devices,
        reductions=reductions,
        strategy=w.rules,
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
