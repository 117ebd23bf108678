"""What every image dataset is once it is read."""

import dataclasses
import functools
import hashlib

import numpy as np


@dataclasses.dataclass(frozen=True)
class Images:
    """A training and a test part: pixels [N,32,32,3] uint8, labels [N] int32, and the pixels' meaning.

    Attributes:
      table: [256] float32, what each pixel value is normalised to (a quarter of the memory of
        normalised images).
    """

    train_images: np.ndarray
    train_labels: np.ndarray
    test_images: np.ndarray
    test_labels: np.ndarray
    table: np.ndarray

    @functools.cached_property
    def chance(self) -> float:
        """Accuracy of guessing: the share of the commonest training label."""
        return float(np.bincount(self.train_labels).max() / len(self.train_labels))

    @functools.cached_property
    def sha256(self) -> str:
        """Hash of every pixel, label and normalised value, part of what a golden run is filed under."""
        digest = hashlib.sha256()
        for field in dataclasses.fields(self):
            array = np.ascontiguousarray(getattr(self, field.name))
            digest.update(f"{field.name} {array.dtype} {array.shape} ".encode())
            digest.update(array.ravel().data)
        return digest.hexdigest()


def normalisation(train: np.ndarray) -> np.ndarray:
    """Table [256] float32: a pixel value minus the one mean and over the one standard deviation of all of `train`.

    Reference: docs/science.md, Published set-up.
    """
    values = np.arange(256)
    counts = np.zeros(256)
    for part in np.array_split(train, 50):  # bincount converts to int64: a part at a time
        counts += np.bincount(part.ravel(), minlength=256)
    mean = np.average(values, weights=counts)
    deviation = np.sqrt(np.average((values - mean) ** 2, weights=counts))
    return ((values - mean) / deviation).astype(np.float32)
