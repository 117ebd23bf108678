"""CIFAR-10: found on disk in one of its layouts, or downloaded."""

import pathlib

from ..machine.environment import cache_folder, data_folder
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
    """Load 50,000 training and 10,000 test images: a copy on disk, or else a download.

    The images come in the official order, except from a copy prepared by tensorflow-datasets,
    which shuffles them.  Such a copy counts as another dataset (`Images.sha256`), and its
    golden runs are others.

    Args:
      folder: a copy, or a folder that contains one; None searches where `find_cifar10` does.

    Raises:
      InputError: there is no copy and no download, or a file is damaged; the message names it.
      OSError: a file cannot be read or written.
    """
    found = find_cifar10(folder) or _download()
    return read_tfds(found) if prepared_copies(found) == [found] else read_official(found)


def find_cifar10(folder: pathlib.Path | None = None) -> pathlib.Path | None:
    """Find a copy of CIFAR-10 on this machine.

    Args:
      folder: a copy, or a folder that contains one.  None searches two places:
        `$FAULT_INJECTION_DATA` (by default `data` in the cache), then `~/tensorflow_datasets`.

    Returns:
      A folder or an archive in one of the official layouts, or the folder of a prepared copy.
      None where no folder was given and there is no copy.

    Raises:
      InputError: the folder given does not exist or holds no copy.
    """
    if folder is None:
        homes = (data_folder(), pathlib.Path.home() / "tensorflow_datasets")
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
    """The first copy at `place` or one level down; official copies go first, unpacked before packed."""
    if not place.is_dir():
        return place if place.is_file() else None
    inside = (place, *sorted(path for path in place.iterdir() if path.is_dir()))
    official = [path for path in inside if is_official(path)]
    archives = [path / name for path in inside for name in ARCHIVES if (path / name).is_file()]
    return next(iter(official + archives + prepared_copies(place)), None)


def _is_cifar100(folder: pathlib.Path) -> bool:
    names = {path.name for path in folder.iterdir()}
    return bool(names & {"fine_label_names.txt", "cifar100"} or {"train", "test", "meta"} <= names) or any(
        name.startswith("cifar-100") for name in names
    )


def _download() -> pathlib.Path:
    """Download the official archive into the cache; returns its path."""
    path = cache_folder() / "data" / ARCHIVES[0]
    try:
        download(URL, path, MD5, BYTES)
    except Unreachable as error:
        raise InputError(
            f"the images of dataset 'cifar10' are not on this machine, and {error}. Three ways out: give --data-dir "
            f"the folder of {ARCHIVES[0]} or {ARCHIVES[1]}, packed or unpacked; give --data-dir a copy prepared by "
            "tensorflow-datasets; or run once with network. (With the row dataset,digits the workload runs on "
            "embedded images instead; add width,8 batch_size,128 epochs,20.)"
        ) from None
    return path
