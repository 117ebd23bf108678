"""CIFAR-10 as tensorflow-datasets prepares it, read without TensorFlow.

A prepared copy is a folder with `dataset_info.json` and shards of TFRecords.  Each record is
a `tf.train.Example` whose image is a PNG.  The images are the official ones in another order.

Reference: https://www.tensorflow.org/tutorials/load_data/tfrecord#tfrecords_format_details.
"""

import io
import json
import pathlib
import struct
import types
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO

import numpy as np

from ..machine.errors import InputError
from ..machine.extras import import_extra
from .images import Images, normalisation

INFO = "dataset_info.json"
COUNTS = {"train": 50_000, "test": 10_000}


def prepared_copies(folder: pathlib.Path) -> list[pathlib.Path]:
    """Prepared copies: `folder` itself, folders in it, and folders in its `cifar10`; newest version first."""
    found = [path.parent for pattern in (INFO, f"*/{INFO}", f"cifar10/*/{INFO}") for path in folder.glob(pattern)]
    return sorted((path for path in found if any(path.glob("cifar10-*"))), key=lambda path: path.name, reverse=True)


def read_tfds(folder: pathlib.Path) -> Images:
    """Read a prepared copy.

    Args:
      folder: of one version, such as `cifar10/3.0.2`.

    Raises:
      InputError: the extra `tfds` is not installed, or a file is missing, damaged or not CIFAR-10.
      OSError: a file cannot be read.
    """
    what = "copies that tensorflow-datasets prepared"
    crc32c = import_extra("google_crc32c", "tfds", what, folder).value
    image = import_extra("PIL.Image", "tfds", what, folder)
    try:
        info = json.loads((folder / INFO).read_bytes())
        name, file_format = info["name"], info.get("fileFormat", "tfrecord")
    except (ValueError, TypeError, KeyError, AttributeError):
        raise InputError("the file is damaged, expected the description of a dataset", folder / INFO) from None
    if (name, file_format) != ("cifar10", "tfrecord"):
        raise InputError(f"dataset {name} in format {file_format}, expected cifar10 in tfrecord", folder / INFO)

    parts = []
    for split, count in COUNTS.items():
        pixels, labels = np.empty((count, 32, 32, 3), np.uint8), np.empty(count, np.int32)
        row = 0
        for shard in _shards(folder, split):
            for number, record in enumerate(_records(shard, crc32c)):
                try:
                    if row == count:
                        raise ValueError(f"more images than the {count:,} of split {split}")
                    pixels[row], labels[row] = _example(record, image)
                except (ValueError, LookupError, TypeError, OSError, SyntaxError) as error:  # ours and Pillow's
                    raise InputError(f"record {number}: {error}", shard) from None
                row += 1
        if row != count:
            raise InputError(f"{row:,} images in split {split}, expected {count:,}", folder)
        parts.append((pixels, labels))
    (train, train_labels), (test, test_labels) = parts
    return Images(train, train_labels, test, test_labels, normalisation(train))


def _shards(folder: pathlib.Path, split: str) -> list[pathlib.Path]:
    """The files of a split; raises InputError where one is missing."""
    found = sorted(folder.glob(f"cifar10-{split}.tfrecord-?????-of-?????"))
    total = found[0].name[-5:] if found else "00001"
    expected = [folder / f"cifar10-{split}.tfrecord-{i:05}-of-{total}" for i in range(int(total))]
    for path in expected:
        if path not in found:
            raise InputError("the file is missing", path)
    return expected


def _records(path: pathlib.Path, crc32c: Callable[[bytes], int]) -> Iterator[bytes]:
    """The records of a TFRecord file, each of which is stored as length, checksum, data, checksum."""

    def checked(file: BinaryIO, size: int, what: str) -> bytes:
        data, checksum = file.read(size), file.read(4)
        if len(data) < size or len(checksum) < 4:
            raise InputError(f"the file ends within {what}", path)
        crc = crc32c(data)
        masked = ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
        if masked != struct.unpack("<I", checksum)[0]:
            raise InputError(f"the checksum of {what} does not match: the file is damaged", path)
        return data

    number = 0
    with path.open("rb") as file:
        while file.peek(1):
            length = struct.unpack("<Q", checked(file, 8, f"the length of record {number}"))[0]
            yield checked(file, length, f"record {number}")
            number += 1


def _example(record: bytes, Image: types.ModuleType) -> tuple[np.ndarray, int]:
    """Pixels [32,32,3] uint8 and label of a `tf.train.Example`, decoded with Pillow's module `Image`.

    Raises:
      ValueError, LookupError, TypeError: it is not an example of CIFAR-10.
      OSError, SyntaxError: Pillow cannot read its image.
    """
    features: dict[Any, Any] = {}
    for _, entries in _fields(record):  # Example: features = 1
        for _, entry in _fields(entries):  # Features: map entries = 1
            pair = dict(_fields(entry))  # key = 1, Feature = 2
            (kind, values), *_ = _fields(pair[2])  # Feature: bytes = 1, floats = 2, integers = 3
            features[pair[1]] = kind, dict(_fields(values)).get(1)
    (_, encoded), (_, label) = features.get(b"image", (0, None)), features.get(b"label", (0, None))
    if isinstance(label, bytes):  # repeated integers are packed
        label = _varint(label, 0)[0]
    if not isinstance(encoded, bytes) or not isinstance(label, int):
        raise ValueError(f"features {sorted(features)}, expected an image and a label")
    if label > 9:
        raise ValueError(f"label {label}, expected 0 to 9")
    image = Image.open(io.BytesIO(encoded), formats=["PNG"])
    if (image.size, image.mode) != ((32, 32), "RGB"):
        raise ValueError(f"an image of {image.size[0]}×{image.size[1]} {image.mode}, expected 32×32 RGB")
    return np.asarray(image), label


def _fields(message: bytes) -> Iterator[tuple[int, Any]]:
    """Number and value of each field of a protocol buffer; raises ValueError or IndexError.

    Reference: https://protobuf.dev/programming-guides/encoding.
    """
    at = 0
    while at < len(message):
        tag, at = _varint(message, at)
        value, at = _varint(message, at)
        if tag & 7 == 2:  # a string or a message, after its length
            start, at = at, at + value
            if at > len(message):
                raise ValueError("a field is longer than its message")
            yield tag >> 3, message[start:at]
        elif tag & 7 == 0:
            yield tag >> 3, value
        else:
            raise ValueError(f"a field of wire type {tag & 7}, expected an image and a label")


def _varint(message: bytes, at: int) -> tuple[int, int]:
    """The integer at `at`, seven bits in each byte, the lowest first; and where it ends."""
    value = shift = 0
    while True:
        byte = message[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7
