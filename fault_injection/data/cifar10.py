"""CIFAR-10: found in one of its layouts, or downloaded."""

import os
import pathlib

from ..machine.environment import cache_folder
from ..machine.errors import InputError
from .download import Unreachable, download
from .images import Images
from .official import is_official, read_official
from .tfds import prepared_copies, read_tfds

ARCHIVES = ("cifar-10-binary.tar.gz", "cifar-10-python.tar.gz")
URL = f"https://www.cs.toronto.edu/~kriz/{ARCHIVES[0]}"
MD5 = "c32a1d4ab5d03f1284b67883e8d13530"
BYTES = 170_052_171


def load_cifar10(folder: pathlib.Path | None = None) -> Images:
    """50,000 training and 10,000 test images, from `folder`, or from where `find_cifar10` looks, or downloaded.

    The order is the official one, except from a copy prepared by tensorflow-datasets, which
    shuffles: that is another data set (`Images.sha256`) and makes other golden runs.

    Raises:
      InputError: the images are nowhere, or a file is damaged; the message names it.
      OSError: a file cannot be read or written.
    """
    found = find_cifar10(folder) or _download()
    return read_tfds(found) if prepared_copies(found) == [found] else read_official(found)


def find_cifar10(folder: pathlib.Path | None = None) -> pathlib.Path | None:
    """A copy of CIFAR-10: a folder or archive of the official layouts, or the folder of a prepared copy.

    Args:
      folder: is a copy or contains one; by default `$FAULT_INJECTION_DATA`, else `data` in the
        cache; then `~/tensorflow_datasets`.

    Returns:
      None where there is none and no folder was given.

    Raises:
      InputError: a folder was given and holds none.
    """
    if folder is None:
        data = pathlib.Path(os.environ.get("FAULT_INJECTION_DATA") or cache_folder() / "data")
        homes = (data, pathlib.Path.home() / "tensorflow_datasets")
        return next((copy for home in homes if (copy := _copy_in(home))), None)
    if not folder.exists():
        raise InputError("no such folder or archive", folder)
    found = _copy_in(folder)
    if found is None:
        other = " (but CIFAR-100)" if _is_cifar100(folder) else ""
        raise InputError(
            f"holds no CIFAR-10{other}; looked for cifar-10-batches-bin/, cifar-10-batches-py/, {', '.join(ARCHIVES)} "
            "and cifar10/3.0.2/ of tensorflow-datasets",
            folder,
        )
    return found


def _copy_in(place: pathlib.Path) -> pathlib.Path | None:
    if not place.is_dir():
        return place if place.is_file() else None
    inside = (place, *sorted(path for path in place.iterdir() if path.is_dir()))
    official = [path for path in inside if is_official(path)]
    archives = [path / name for path in inside for name in ARCHIVES if (path / name).is_file()]
    return next(iter(official + archives + prepared_copies(place)), None)


def _is_cifar100(folder):
    names = {path.name for path in folder.iterdir()}
    return bool(names & {"fine_label_names.txt", "cifar100"} or {"train", "test", "meta"} <= names) or any(
        name.startswith("cifar-100") for name in names
    )


def _download() -> pathlib.Path:
    """Download the official archive into the cache."""
    path = cache_folder() / "data" / ARCHIVES[0]
    try:
        download(URL, path, MD5, BYTES)
    except Unreachable as error:
        raise InputError(
            f"the images of dataset 'cifar10' are not at hand, and cannot be downloaded ({error}). Three ways: "
            f"--data-dir with the folder of {ARCHIVES[0]} or {ARCHIVES[1]}, packed or unpacked; --data-dir with a copy "
            "prepared by tensorflow-datasets; or run once with network. (The row dataset,digits runs on embedded "
            "images instead, with width,8 batch_size,128 epochs,20.)"
        ) from None
    return path
