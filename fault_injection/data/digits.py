"""The embedded default: scikit-learn's handwritten digits, enlarged to the size of CIFAR-10's images."""

import importlib.metadata
import pathlib

import numpy as np

from .images import Images, normalisation


def load_digits(folder: pathlib.Path | None = None) -> Images:
    """Load 1437 training and 360 test images; every fifth image, from the first on, is a test image.

    The 8×8 grey images become 32×32×3: each pixel is repeated 4×4 times in three channels.

    Args:
      folder: ignored, because the images come with scikit-learn.

    Reference: Alpaydin and Kaynak, Optical Recognition of Handwritten Digits, UCI, 1998
    (the test part, as distributed with scikit-learn).

    >>> digits = load_digits()
    >>> digits.test_images.shape, digits.test_images.dtype
    ((360, 32, 32, 3), dtype('uint8'))
    """
    # Importing scikit-learn takes a second, and its file is all that is wanted: 64 pixels and a label in each line.
    file = importlib.metadata.distribution("scikit-learn").locate_file("sklearn/datasets/data/digits.csv.gz")
    table = np.loadtxt(str(file), delimiter=",")
    images = table[:, :-1].reshape(-1, 8, 8).astype(np.uint8)  # 0 … 16
    images = images.repeat(4, axis=1).repeat(4, axis=2)[..., None].repeat(3, axis=3)
    labels = table[:, -1].astype(np.int32)
    test = np.arange(len(labels)) % 5 == 0
    return Images(images[~test], labels[~test], images[test], labels[test], normalisation(images[~test]))
