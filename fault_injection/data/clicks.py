"""What a table of labelled examples is once it is read, and its batches, addressed by (seed, epoch, step, worker)."""

import dataclasses
from collections.abc import Callable, Iterator

import numpy as np

# First part of a random stream's address, as those of images and texts (0 to 2).
EXAMPLES = 3
EVALUATED = 1 << 17  # test examples that an evaluation looks at, at most
TEST_BATCH = 2048  # examples of a test batch, at most, rounded up to a multiple of the workers


@dataclasses.dataclass(frozen=True)
class Clicks:
    """A training part and a test part of examples with D numbers, S categories and a label.

    Attributes:
      train, test: [N,1 + D+S] int32 as they are stored, perhaps memory-mapped: the label, 1 or 0, then the columns.
      columns: turns stored columns [...,D+S] into those that a network takes, see `models.layers.interaction.columns`.
      positive: share of the training examples whose label is 1.
      sha256: hash of everything stored, part of what a golden run is filed under.

    >>> part = np.zeros((4, 3), np.int32)
    >>> Clicks(part, part, columns=lambda stored: stored, positive=0.25, sha256="").chance
    0.75
    """

    train: np.ndarray
    test: np.ndarray
    columns: Callable[[np.ndarray], np.ndarray]
    positive: float
    sha256: str

    @property
    def chance(self) -> float:
        """Accuracy of guessing: the share of the commoner training label."""
        return max(self.positive, 1 - self.positive)


@dataclasses.dataclass(frozen=True)
class ClickBatches:
    """The batches of one workload; each is a pure function of its address.

    Attributes:
      clicks: the examples.
      seed: of the examples that a batch has.
      workers: data-parallel replicas, R.
      batch_size: over all workers, R·b.

    >>> part = np.zeros((9, 4), np.int32)
    >>> clicks = Clicks(part, part, columns=lambda stored: stored, positive=0.0, sha256="")
    >>> batch = ClickBatches(clicks, seed=123, workers=2, batch_size=6).train(epoch=7, step=3)
    >>> {name: (array.shape, array.dtype.name) for name, array in batch.items()}
    {'input': ((2, 3, 3), 'int32'), 'target': ((2, 3), 'int32')}
    """

    clicks: Clicks
    seed: int
    workers: int
    batch_size: int

    def train(self, epoch: int, step: int) -> dict[str, np.ndarray]:
        """The batch of one training step: examples drawn uniformly from the training part.

        So an epoch is a number of steps, and goes through nothing: an order of 45 million would be
        drawn anew for each.

        Args:
          epoch, step: counted from 0.

        Returns:
          `input` [R,b,D+S] int32 and `target` [R,b] int32.
        """
        each = self.batch_size // self.workers
        rows = [
            np.random.default_rng([self.seed, EXAMPLES, epoch, step, worker]).integers(0, len(self.clicks.train), each)
            for worker in range(self.workers)
        ]
        return self._read(self.clicks.train, np.stack(rows))

    def test(self) -> Iterator[dict[str, np.ndarray]]:
        """The test part as batches of one shape: all examples in order, or evenly spread ones where it is long.

        Yields:
          `input` [R,m,D+S] int32, `target` [R,m] int32, and `weight` [R,m] float32, which is 1, or
          0 where the last batch is padded.
        """
        there = len(self.clicks.test)
        count = min(there, EVALUATED)
        each = -(-min(count, TEST_BATCH) // self.workers)
        for first in range(0, count, each * self.workers):
            places = np.arange(first, first + each * self.workers).reshape(self.workers, each)
            rows = np.minimum(places, count - 1) * there // count
            yield {**self._read(self.clicks.test, rows), "weight": (places < count).astype(np.float32)}

    def _read(self, part: np.ndarray, rows: np.ndarray) -> dict[str, np.ndarray]:
        """The examples of `rows` [R,b]."""
        stored = part[rows]  # a copy, of these alone
        return {"input": self.clicks.columns(stored[..., 1:]), "target": np.ascontiguousarray(stored[..., 0])}
