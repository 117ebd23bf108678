"""Batches of a dataset, addressed by (seed, epoch, step, worker)."""

import dataclasses
import functools
from collections.abc import Iterator

import numpy as np

from .images import Images

PADDING = 6  # zeros on each side before a random crop (docs/science.md, Published set-up)
TEST_BATCH = 1000
ORDER, AUGMENTATION = 0, 1  # tell random streams apart, whose shorter addresses NumPy pads with zeros


def steps_per_epoch(images: int, batch_size: int) -> int:
    """The nearest whole number of batches: 49 for CIFAR-10 at 1024, as published; 11 for digits at 128."""
    return max(1, round(images / batch_size))


@dataclasses.dataclass(frozen=True)
class Batches:
    """The batches of one workload; each is a pure function of its address.

    Attributes:
      images: the dataset.
      seed: of order and augmentation.
      workers, batch_size: as in the workload.
      augmentation: `flip+crop`, `crop` or `none`.
    """

    images: Images
    seed: int
    workers: int
    batch_size: int
    augmentation: str

    def train(self, epoch: int, step: int) -> dict[str, np.ndarray]:
        """`image` [R,b,32,32,3] float32 and `label` [R,b] int32 of one step.

        An epoch goes through a permutation of the training images.  Where the last batch
        runs short, it is filled from the permutation's beginning.
        """
        pixels, labels = self.images.train_images, self.images.train_labels
        rows = np.arange(step * self.batch_size, (step + 1) * self.batch_size) % len(labels)
        mine = permutation(self.seed, epoch, len(labels))[rows].reshape(self.workers, -1)
        image = np.zeros((*mine.shape, *pixels.shape[1:]), np.float32)
        for worker in range(self.workers):
            random = np.random.default_rng([self.seed, AUGMENTATION, epoch, step, worker])
            augment(pixels[mine[worker]], self.images.table, self.augmentation, random, image[worker])
        return {"input": image, "target": labels[mine]}

    def test(self) -> Iterator[dict[str, np.ndarray]]:
        """The test images as batches [R,m,…] of one shape, `weight` [R,m] being 0 where padded."""
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
    """The order of an epoch, drawn once for all its steps."""
    order = np.random.default_rng([seed, ORDER, epoch]).permutation(count)
    order.flags.writeable = False
    return order


def augment(pixels: np.ndarray, table: np.ndarray, kind: str, random: np.random.Generator, out: np.ndarray) -> None:
    """Published augmentation of one worker's images, and their normalisation.

    `flip+crop` mirrors each image left-right and top-bottom with probability ½ each, pads by
    6 zeros on every side and crops at one position for all images; `crop` does not mirror.
    The zeros are zero after normalisation.

    Args:
      pixels: [b,H,W,C] uint8.
      table: [256] float32, normalised values.
      kind: `flip+crop`, `crop` or `none`.
      out: [b,H,W,C] float32, zeros: filled.
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
    # `take` is half again as fast as indexing by uint8.
    out[:, to_rows, to_columns] = table.take(pixels[:, from_rows, from_columns])


def window(start: int, size: int) -> tuple[slice, slice]:
    """Where along an axis a window lies that starts at `start` of the padded images.

    Returns:
      Which pixels of the window are not padding, and which pixels of the image they are.
    """
    shift = start - PADDING
    return slice(max(0, -shift), size - max(0, shift)), slice(max(0, shift), size - max(0, -shift))
