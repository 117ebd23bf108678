"""Batches of a dataset, addressed by (seed, epoch, step, worker)."""

import dataclasses
import functools
from collections.abc import Iterator

import numpy as np

from .images import Images

PADDING = 6  # zeros on each side before a random crop (docs/science.md, Published set-up)
TEST_BATCH = 1000  # examples of a test batch, at most, rounded up to a multiple of the workers
# First part of a random stream's address.  It tells order and augmentation apart: NumPy pads
# shorter addresses with zeros, so lengths alone do not.
ORDER, AUGMENTATION = 0, 1


def steps_per_epoch(examples: int, batch_size: int) -> int:
    """The nearest whole number of batches, at least 1.

    CIFAR-10 in batches of 1024, as published, and the digits in batches of 128:

    >>> steps_per_epoch(50_000, 1024), steps_per_epoch(1437, 128)
    (49, 11)
    """
    return max(1, round(examples / batch_size))


@dataclasses.dataclass(frozen=True)
class Batches:
    """The batches of one workload; each is a pure function of its address.

    Attributes:
      images: the dataset.
      seed: of order and augmentation.
      workers: data-parallel replicas, R.
      batch_size: over all workers, R·b.
      augmentation: `flip+crop`, `crop` or `none`.

    >>> from .digits import load_digits
    >>> batch = Batches(load_digits(), seed=123, workers=8, batch_size=128, augmentation="crop").train(epoch=7, step=3)
    >>> {name: (array.shape, array.dtype.name) for name, array in batch.items()}
    {'input': ((8, 16, 32, 32, 3), 'float32'), 'target': ((8, 16), 'int32')}
    """

    images: Images
    seed: int
    workers: int
    batch_size: int
    augmentation: str

    def train(self, epoch: int, step: int) -> dict[str, np.ndarray]:
        """The batch of one training step.

        An epoch goes through a permutation of the training images.  Where the last batch
        runs short, it is filled from the beginning of the permutation.

        Args:
          epoch, step: counted from 0.

        Returns:
          `input` [R,b,32,32,3] float32 and `target` [R,b] int32.
        """
        pixels, labels = self.images.train_images, self.images.train_labels
        rows = np.arange(step * self.batch_size, (step + 1) * self.batch_size) % len(labels)
        mine = permutation(self.seed, epoch, len(labels))[rows].reshape(self.workers, -1)
        images = np.zeros((*mine.shape, *pixels.shape[1:]), np.float32)
        for worker in range(self.workers):
            random = np.random.default_rng([self.seed, AUGMENTATION, epoch, step, worker])
            augment(pixels[mine[worker]], self.images.table, self.augmentation, random, images[worker])
        return {"input": images, "target": labels[mine]}

    def test(self) -> Iterator[dict[str, np.ndarray]]:
        """The test images, as batches of one shape.

        Yields:
          `input` [R,m,32,32,3] float32, `target` [R,m] int32, and `weight` [R,m] float32,
          which is 1, or 0 where the last batch is padded.
        """
        count = len(self.images.test_labels)
        each = -(-min(count, TEST_BATCH) // self.workers)
        size = each * self.workers
        for start in range(0, count, size):
            rows = np.arange(start, start + size)
            weight = (rows < count).astype(np.float32)
            mine = np.minimum(rows, count - 1).reshape(self.workers, each)
            yield {
                "input": self.images.table[self.images.test_images[mine]],
                "target": self.images.test_labels[mine],
                "weight": weight.reshape(self.workers, each),
            }


@functools.lru_cache(maxsize=2)
def permutation(seed: int, epoch: int, count: int) -> np.ndarray:
    """The order of an epoch, [count] integers, read-only; drawn once for all its steps.

    >>> sorted(permutation(123, 0, 5).tolist())
    [0, 1, 2, 3, 4]
    """
    order = np.random.default_rng([seed, ORDER, epoch]).permutation(count)
    order.flags.writeable = False
    return order


def augment(pixels: np.ndarray, table: np.ndarray, kind: str, random: np.random.Generator, out: np.ndarray) -> None:
    """Normalise the images of one worker, with the published augmentation.

    `flip+crop` mirrors each image left to right and top to bottom, with probability ½ each.
    Then it pads all images by 6 zeros on every side and crops them at one common position.
    `crop` does not mirror.  The zeros are zero after normalisation.

    Args:
      pixels: [b,H,W,C] uint8.
      table: [256] float32, the normalised value of each pixel value.
      kind: `flip+crop`, `crop` or `none`.
      random: the worker's generator for this step.
      out: [b,H,W,C] float32, zeros on entry; the result is written to it.
    """
    if kind == "none":
        out[:] = table.take(pixels)
        return
    _, height, width, _ = pixels.shape
    top, left = random.integers(0, 2 * PADDING + 1, 2)
    if kind == "flip+crop":
        across, down = random.integers(0, 2, (2, len(pixels)), bool)
        pixels = pixels.copy()
        pixels[across] = pixels[across, :, ::-1]
        pixels[down] = pixels[down, ::-1]
    to_rows, from_rows = window(top, height)
    to_columns, from_columns = window(left, width)
    # `take` takes two thirds of the time of indexing by uint8.
    out[:, to_rows, to_columns] = table.take(pixels[:, from_rows, from_columns])


def window(start: int, size: int) -> tuple[slice, slice]:
    """Where a window of `size` pixels lies along one axis of an image.

    Args:
      start: first pixel of the window, counted from the edge of the padding.
      size: of the window and of the image.

    Returns:
      Which pixels of the window are not padding, and which pixels of the image these are.

    >>> window(0, 32)
    (slice(6, 32, None), slice(0, 26, None))
    """
    shift = start - PADDING
    return slice(max(0, -shift), size - max(0, shift)), slice(max(0, shift), size - max(0, -shift))
