"""What every image dataset is once it is read."""

import dataclasses
import hashlib

import numpy as np


@dataclasses.dataclass(frozen=True)
class Images:
    """Images [N,32,32,3] float32, normalised, and labels [N] int32, in a training and a test part."""

    train_images: np.ndarray
    train_labels: np.ndarray
    test_images: np.ndarray
    test_labels: np.ndarray

    @property
    def sha256(self) -> str:
        """Hash of every pixel and label, part of what a golden run is filed under."""
        digest = hashlib.sha256()
        for field in dataclasses.fields(self):
            array = np.ascontiguousarray(getattr(self, field.name))
            digest.update(f"{field.name} {array.dtype} {array.shape} ".encode() + array.tobytes())
        return digest.hexdigest()


def normalised(train: np.ndarray, test: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Both parts minus the one mean and over the one standard deviation of the whole training part.

    Reference: docs/science.md, Published set-up.
    """
    mean, deviation = train.mean(dtype=np.float64), train.std(dtype=np.float64)
    return tuple(((part - mean) / deviation).astype(np.float32) for part in (train, test))
