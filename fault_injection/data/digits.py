"""The embedded default: scikit-learn's handwritten digits, brought to the size of CIFAR-10's images."""

import pathlib

import numpy as np

from .images import Images, normalisation


def load_digits(folder: pathlib.Path | None = None) -> Images:
    """1437 training and 360 test images, every fifth being a test image.

    The 8×8 grey images become 32×32×3 by repeating each pixel 4×4 times in three channels.
    They come with scikit-learn: `folder` is not looked at.

    Reference: Alpaydin and Kaynak, Optical Recognition of Handwritten Digits, UCI, 1998
    (the test part, as distributed with scikit-learn).
    """
    from sklearn.datasets import load_digits as bundled  # slow to import

    digits = bundled()
    images = digits.images.astype(np.uint8)  # 0 … 16
    images = images.repeat(4, axis=1).repeat(4, axis=2)[..., None].repeat(3, axis=3)
    labels = digits.target.astype(np.int32)
    test = np.arange(len(labels)) % 5 == 0
    return Images(images[~test], labels[~test], images[test], labels[test], normalisation(images[~test]))
