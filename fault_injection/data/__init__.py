"""Datasets: `batch(address)` is a pure function, so that any batch can be produced alone."""

import dataclasses
import pathlib
from collections.abc import Callable

import jax
import numpy as np

from .batches import Batches
from .cifar10 import find_cifar10, load_cifar10
from .digits import load_digits
from .images import Images

__all__ = ["DATASETS", "Batches", "DatasetInfo", "Images"]


@dataclasses.dataclass(frozen=True)
class DatasetInfo:
    """What can be known of a dataset without reading it, and how to read it.

    Attributes:
      train, test: numbers of images.
      load: reads it, from the folder given or where it looks by default; raises InputError or OSError.
      find: whether `load` would find it without the network; raises InputError.
    """

    train: int
    test: int
    load: Callable[[pathlib.Path | None], Images]
    example: jax.ShapeDtypeStruct = jax.ShapeDtypeStruct((32, 32, 3), np.float32)
    classes: int = 10
    find: Callable[[pathlib.Path | None], object] = lambda folder: True


DATASETS = {
    "digits": DatasetInfo(train=1437, test=360, load=load_digits),
    "cifar10": DatasetInfo(train=50_000, test=10_000, load=load_cifar10, find=find_cifar10),
}
