"""What every image dataset is once it is read."""

import dataclasses
import functools
import hashlib

import numpy as np

SHAPE = (32, 32, 3)  # of every image: height, width, channels


@dataclasses.dataclass(frozen=True)
class Images:
    """A training part and a test part of images with labels.

    Attributes:
      train_images, test_images: [N,32,32,3] uint8.
      train_labels, test_labels: [N] int32.
      table: [256] float32, the normalised value of each pixel value.  Pixels are looked up in
        it batch by batch, which takes a quarter of the memory of normalised images.
    """

    train_images: np.ndarray
    train_labels: np.ndarray
    test_images: np.ndarray
    test_labels: np.ndarray
    table: np.ndarray

    @functools.cached_property
    def sha256(self) -> str:
        """Hash of every pixel, label and normalised value, part of what a golden run is filed under."""
        digest = hashlib.sha256()
        for field in dataclasses.fields(self):
            array = np.ascontiguousarray(getattr(self, field.name))
            digest.update(f"{field.name} {array.dtype} {array.shape} ".encode())
            digest.update(array.ravel().data)
        return digest.hexdigest()

    @functools.cached_property
    def chance(self) -> float:
        """Accuracy of guessing: the share of the commonest training label.

        >>> images, labels = np.zeros((4, 32, 32, 3), np.uint8), np.array([7, 2, 7, 7], np.int32)
        >>> Images(images, labels, images, labels, normalisation(np.arange(2, dtype=np.uint8))).chance
        0.75
        """
        return float(np.bincount(self.train_labels).max() / len(self.train_labels))


def normalisation(train: np.ndarray) -> np.ndarray:
    """The normalised value of each pixel value: minus the mean, over the standard deviation.

    There is one mean and one standard deviation, over all pixels and channels of all
    training images.

    Args:
      train: training images, uint8 of any shape.

    Returns:
      [256] float32.

    Reference: docs/science.md, Published set-up.

    >>> normalisation(np.array([0, 2], np.uint8))[:3]
    array([-1.,  0.,  1.], dtype=float32)
    """
    values = np.arange(256)
    counts = np.zeros(256)
    for part in np.array_split(train, 50):  # bincount converts its argument to int64, hence in parts
        counts += np.bincount(part.ravel(), minlength=256)
    mean = np.average(values, weights=counts)
    deviation = np.sqrt(np.average((values - mean) ** 2, weights=counts))
    return ((values - mean) / deviation).astype(np.float32)
