"""Where a program's batches come from."""

from collections.abc import Callable, Iterator
from typing import NamedTuple, Protocol

import jax
import numpy as np

from ..machine.errors import InputError
from ..machine.processes import from_leader
from ..seam.measure import Measure


class BatchSource(Protocol):
    """The batches of a dataset: trees of arrays with the keys `input` and `target`, and the workers as leading axis.

    `input` is [R,b,…] as the network takes it, `target` [R,b,…] as the loss head takes it.
    """

    def train(self, epoch: int, step: int) -> dict[str, np.ndarray]:
        """The batch of one step; a pure function of its address."""

    def test(self) -> Iterator[dict[str, np.ndarray]]:
        """The test data as batches of one shape, with `weight`, shaped as `target`: 0 where they are padded, else 1."""


class OpenData(NamedTuple):
    """Data that have been read.

    Attributes:
      batches: of them.
      measure: what the loss head measures of them.
      sha256: hash of all that a run sees of them.
    """

    batches: BatchSource
    measure: Measure
    sha256: str


def read_alike(load: Callable[[], OpenData]) -> OpenData:
    """What `load` reads.

    Raises:
      InputError: two processes have read different data; or as `load`.
    """
    data = load()
    if from_leader(lambda: data.sha256) != data.sha256:
        raise InputError(f"process {jax.process_index()} has read other data of this dataset than process 0")
    return data
