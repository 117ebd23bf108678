"""Where a program's batches come from."""

from collections.abc import Callable, Iterator
from typing import Protocol, TypeVar

import jax
import numpy as np

from ..machine.errors import InputError
from ..machine.processes import from_leader


class BatchSource(Protocol):
    """The batches of a dataset: trees of arrays with the keys `input` and `target`, and the workers as leading axis.

    `input` is [R,b,…] as the network takes it, `target` [R,b,…] as the loss head takes it.
    """

    def train(self, epoch: int, step: int) -> dict[str, np.ndarray]:
        """The batch of one step; a pure function of its address."""

    def test(self) -> Iterator[dict[str, np.ndarray]]:
        """The test data as batches of one shape, with `weight`, shaped as `target`: 0 where they are padded, else 1."""


class Hashed(Protocol):
    """Data that have been read, with a hash of them."""

    @property
    def sha256(self) -> str:
        """Of all that a run sees of the data."""


Data = TypeVar("Data", bound=Hashed)


def read_alike(load: Callable[[], Data]) -> Data:
    """What `load` reads.

    Raises:
      InputError: two processes have read different data; or as `load`.
    """
    data = load()
    if from_leader(lambda: data.sha256) != data.sha256:
        raise InputError(f"process {jax.process_index()} has read other data of this dataset than process 0")
    return data
