"""Datasets: `batch(address)` is a pure function, so that any batch can be produced alone."""

import dataclasses
from collections.abc import Callable

from .batches import Batches
from .digits import load_digits
from .images import Images

__all__ = ["DATASETS", "Batches", "DatasetInfo", "Images"]


@dataclasses.dataclass(frozen=True)
class DatasetInfo:
    """What can be known of a dataset without reading it, and how to read it."""

    train: int
    test: int
    load: Callable[[], Images]


def _no_cifar10() -> Images:
    raise FileNotFoundError(
        "the images of dataset 'cifar10' cannot be read by this version; "
        "to run on the embedded images, add the row dataset,digits (and width,8 batch_size,128 epochs,20)"
    )


DATASETS = {
    "digits": DatasetInfo(train=1437, test=360, load=load_digits),
    "cifar10": DatasetInfo(train=50_000, test=10_000, load=_no_cifar10),
}
