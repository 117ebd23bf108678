"""Workloads: a named network, dataset, optimizer and schedule; the published ones by name."""

import dataclasses
import operator
from typing import Any

import optax

from models.layer import Layer
from models.networks import NETWORKS

from .optimizers import keras_adam, keras_sgd

AUGMENTATIONS = ("flip+crop", "crop", "none")


@dataclasses.dataclass(frozen=True)
class Workload:
    """Everything that determines a fault-free training run, apart from the machine.

    Attributes:
      name: published name.
      network: key of `models.NETWORKS`.
      optimizer: key of `OPTIMIZERS`.
      learning_rate, end_learning_rate, decay_steps: linear decay from the first to the
        second in that many steps.
      dataset: key of `fault_injection.data.DATASETS`.
      width: channels of the first convolution; all others are in proportion.
      blocks: repeated parts of each stage, at most as many as published.
      dropout: rate, where the network has its dropout.
      augmentation: one of `AUGMENTATIONS`.
      workers: data-parallel replicas.
      batch_size: global, a multiple of `workers`.
      epochs: length of the training.
      seed: of initialisation, data order, augmentation and dropout.
      twin: 0, or the number of a twin: a run whose start differs by one unit in the last place.
    """

    name: str
    network: str = "resnet18"
    optimizer: str = "adam"
    learning_rate: float = 1e-3
    end_learning_rate: float = 1e-4
    decay_steps: int = 5000
    dataset: str = "cifar10"
    width: int = 64
    blocks: tuple[int, ...] = (2, 2, 2, 2)
    dropout: float = 0.15
    augmentation: str = "flip+crop"
    workers: int = 8
    batch_size: int = 1024
    epochs: int = 80
    seed: int = 123
    twin: int = 0

    @property
    def worker_batch(self) -> int:
        """Images of one worker in one step: the b of every operand's shape."""
        return self.batch_size // self.workers


# docs/science.md, Published set-up (He et al., ISCA 2023, artifact).
WORKLOADS = {
    workload.name: workload
    for workload in (
        Workload("resnet18"),
        Workload("resnet18_nobn", network="resnet18_nobn"),
        Workload(
            "resnet18_sgd",
            optimizer="sgd",
            learning_rate=0.1,
            end_learning_rate=1e-3,
            decay_steps=2000,
            dropout=0.0,
        ),
        Workload(
            "effnet",
            network="effnet",
            learning_rate=2e-3,
            end_learning_rate=5e-4,
            decay_steps=2000,
            width=32,
            blocks=(1, 2, 2, 3, 3, 4, 1),
            dropout=0.0,
        ),
        Workload("densenet", network="densenet", blocks=(6, 12, 24, 16), dropout=0.5),
        Workload("nfnet", network="nfnet", learning_rate=1e-2, dropout=0.0),
    )
}

OPTIMIZERS = {"adam": keras_adam, "sgd": keras_sgd}

# What a dataset changes in the published options.  Digits are not symmetric, and dropout makes
# twins differ by several points, which would drown most verdicts.
DATASET_OPTIONS: dict[str, dict[str, Any]] = {"digits": {"dropout": 0.0, "augmentation": "crop"}, "cifar10": {}}


def embedded(name: str) -> dict[str, Any]:
    """Options of the embedded default of workload `name`, small enough for two cores."""
    blocks = tuple(min(count, 2) for count in WORKLOADS[name].blocks)
    return {"dataset": "digits", "width": 8, "blocks": blocks, "batch_size": 128, "epochs": 20}


def make_workload(name: str, **options) -> Workload:
    """The published workload `name` with `options` replaced; what the dataset implies comes first."""
    implied = DATASET_OPTIONS[options.get("dataset", WORKLOADS[name].dataset)]
    return dataclasses.replace(WORKLOADS[name], **(implied | options))


def contradiction(workload: Workload) -> tuple[str, str] | None:
    """An option that does not go with the others, and what is wrong with it; None if there is none."""
    published = WORKLOADS[workload.name].blocks
    if len(workload.blocks) != len(published) or any(map(operator.gt, workload.blocks, published)):
        expected = f"{len(published)} counts, from 1 each to the published {format_option(published)}"
        return "blocks", f"blocks {format_option(workload.blocks)} of {workload.name}; expected {expected}"
    if workload.batch_size % workload.workers:
        return "batch_size", f"batch_size {workload.batch_size} is not a multiple of the {workload.workers} workers"
    return None


def format_option(value: object) -> object:
    """An option's value as it stands in a file: blocks as 2/2/2/2, others as they are."""
    return "/".join(map(str, value)) if isinstance(value, tuple) else value


def make_network(workload: Workload) -> Layer:
    """The workload's network."""
    return NETWORKS[workload.network](width=workload.width, blocks=workload.blocks, dropout_rate=workload.dropout)


def make_optimizer(workload: Workload) -> optax.GradientTransformation:
    """The workload's optimizer with its schedule."""
    schedule = optax.polynomial_schedule(
        workload.learning_rate, workload.end_learning_rate, power=1, transition_steps=workload.decay_steps
    )
    return OPTIMIZERS[workload.optimizer](schedule)
