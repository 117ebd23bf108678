"""The embedded default: scikit-learn's handwritten digits, enlarged to the size of CIFAR-10's images."""

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
    from sklearn.datasets import load_digits as bundled  # slow to import

    digits = bundled()
    images = digits.images.astype(np.uint8)  # 0 … 16
    images = images.repeat(4, axis=1).repeat(4, axis=2)[..., None].repeat(3, axis=3)
    labels = digits.target.astype(np.int32)
    test = np.arange(len(labels)) % 5 == 0
    return Images(images[~test], labels[~test], images[test], labels[test], normalisation(images[~test]))
