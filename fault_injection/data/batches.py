"""Batches of a dataset, addressed by (seed, epoch, step, worker)."""

import dataclasses
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
        count = len(self.images.train_labels)
        order = np.random.default_rng([self.seed, ORDER, epoch]).permutation(count)
        rows = np.arange(step * self.batch_size, (step + 1) * self.batch_size) % count
        mine = order[rows].reshape(self.workers, -1)
        image = self.images.train_images[mine]
        for worker in range(self.workers):
            random = np.random.default_rng([self.seed, AUGMENTATION, epoch, step, worker])
            image[worker] = augment(image[worker], self.augmentation, random)
        return {"image": image, "label": self.images.train_labels[mine]}

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
                "image": self.images.test_images[mine],
                "label": self.images.test_labels[mine],
                "weight": weight.reshape(self.workers, each),
            }


def augment(images: np.ndarray, kind: str, random: np.random.Generator) -> np.ndarray:
    """Published augmentation of one worker's images [b,H,W,C].

    `flip+crop` mirrors each image left-right and top-bottom with probability ½ each, pads by
    6 zeros on every side and crops at one position for all images; `crop` does not mirror.
    """
    if kind == "none":
        return images
    _, height, width, _ = images.shape
    top, left = random.integers(0, 2 * PADDING + 1, 2)
    if kind == "flip+crop":
        across, down = random.integers(0, 2, (2, len(images), 1, 1, 1), bool)
        images = np.where(across, images[:, :, ::-1], images)
        images = np.where(down, images[:, ::-1], images)
    padded = np.pad(images, [(0, 0), (PADDING, PADDING), (PADDING, PADDING), (0, 0)])
    return padded[:, top : top + height, left : left + width]
