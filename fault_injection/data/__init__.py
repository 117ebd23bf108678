"""Datasets of images [32,32,3], float32.

A batch is a pure function of its address, so that any batch can be produced alone.

>>> DATASETS["cifar10"].train, DATASETS["cifar10"].classes
(50000, 10)
"""

import dataclasses
import pathlib
from collections.abc import Callable

from .batches import Batches
from .cifar10 import find_cifar10, load_cifar10
from .digits import load_digits
from .images import Images

__all__ = ["DATASETS", "Batches", "DatasetInfo", "Images"]


@dataclasses.dataclass(frozen=True)
class DatasetInfo:
    """What is known of a dataset before it is read, and how to read it.

    Attributes:
      train, test: numbers of examples.
      classes: number of labels, which are 0 to `classes` − 1.
      load: reads the dataset from the folder given, or from where it looks by default; raises
        InputError or OSError.
      find: whether `load` would find it without the network; raises InputError.
    """

    train: int
    test: int
    classes: int
    load: Callable[[pathlib.Path | None], Images]
    find: Callable[[pathlib.Path | None], object] = lambda folder: True


DATASETS: dict[str, DatasetInfo] = {
    "digits": DatasetInfo(train=1437, test=360, classes=10, load=load_digits),
    "cifar10": DatasetInfo(50_000, 10_000, classes=10, load=load_cifar10, find=find_cifar10),
}
