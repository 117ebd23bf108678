"""The program of an image workload: its network on its images."""

import functools
import pathlib
from collections.abc import Callable
from typing import TYPE_CHECKING

import optax

from ..data.batches import Batches
from ..explicit.batch_source import read_alike
from ..explicit.engine import explicit_program
from ..models.layer import Layer
from ..seam.measure import Measure
from ..seam.program import Program

if TYPE_CHECKING:  # the description of a workload is no part of what computes its bits
    from ..data import DatasetInfo
    from .image import ImageWorkload

TOLERANCE = 0.02  # two points of accuracy; ours (docs/science.md, Outcomes)


def image_program(
    workload: "ImageWorkload",
    network: Layer,
    optimizer: optax.GradientTransformation,
    dataset: "DatasetInfo",
    supported: frozenset[str] | None = None,
    devices: int | None = None,
    data_dir: pathlib.Path | None = None,
    reductions: frozenset[str] = frozenset(),
) -> Program:
    """The program of a workload.

    Args:
      network, optimizer, dataset: what the workload names.
      supported, devices, data_dir, reductions: as in `Workload.program`.
    """
    w = workload
    images = functools.cache(lambda: read_alike(lambda: dataset.load(data_dir)))
    return explicit_program(
        network,
        optimizer,
        dataset.example,
        workers=w.workers,
        batch_size=w.batch_size,
        steps_per_epoch=w.steps_per_epoch,
        seed=w.seed,
        batches=lambda: Batches(images(), w.seed, w.workers, w.batch_size, w.augmentation),
        measure=lambda: Measure("accuracy", "higher", images().chance, TOLERANCE, (0.0, 1.0)),
        data=lambda: images().sha256,
        supported=supported,
        devices=devices,
        reductions=reductions,
        strategy=w.rules,
    )


def scheduled(
    workload: "ImageWorkload", optimizer: Callable[[optax.Schedule], optax.GradientTransformation]
) -> optax.GradientTransformation:
    """The optimizer with the workload's schedule of the learning rate."""
    w = workload
    schedule = optax.polynomial_schedule(w.learning_rate, w.end_learning_rate, power=1, transition_steps=w.decay_steps)
    return optimizer(schedule)
