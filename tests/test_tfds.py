"""A copy prepared by tensorflow-datasets is read without TensorFlow; what is damaged in it is named."""

import io
import json
import struct
import sys

import numpy as np
import pytest

from fault_injection.data.cifar10 import find_cifar10, load_cifar10
from fault_injection.machine.errors import InputError


def varint(value):
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def field(number, value):
    """A field of a protocol buffer that holds bytes."""
    return varint(number << 3 | 2) + varint(len(value)) + value


def example(**features):
    """A `tf.train.Example`; an integer feature is packed, as TensorFlow writes it."""
    entries = b""
    for name, value in features.items():
        feature = field(1, field(1, value)) if isinstance(value, bytes) else field(3, field(1, varint(value)))
        entries += field(1, field(1, name.encode()) + field(2, feature))
    return field(1, entries)


def framed(record):
    """A record of a TFRecord file."""
    crc32c = pytest.importorskip("google_crc32c")

    def checksum(data):
        crc = crc32c.value(data)
        return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) % 2**32)

    length = struct.pack("<Q", len(record))
    return length + checksum(length) + record + checksum(record)


def png(pixels):
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG", compress_level=1)
    return file.getvalue()


@pytest.fixture(scope="session")
def records(images):
    """Frames of 50 distinct images."""
    encoded = [png(pixels) for pixels in images.train_images[:50]]
    return [framed(example(id=b"train_%05d" % n, image=image, label=n % 10)) for n, image in enumerate(encoded)]


@pytest.fixture(scope="session")
def prepared(records, tmp_path_factory):
    """A prepared copy: 50 images over and over, the training part in two shards."""
    root = tmp_path_factory.mktemp("tensorflow_datasets")
    folder = root / "cifar10" / "3.0.2"
    folder.mkdir(parents=True)
    (folder / "dataset_info.json").write_text(json.dumps({"name": "cifar10", "fileFormat": "tfrecord"}))
    for name, count in (("train.tfrecord-00000-of-00002", 600), ("train.tfrecord-00001-of-00002", 400)):
        (folder / f"cifar10-{name}").write_bytes(b"".join(records) * count)
    (folder / "cifar10-test.tfrecord-00000-of-00001").write_bytes(b"".join(records) * 200)
    return root


def test_a_prepared_copy_is_read_without_tensorflow(prepared, images):
    found = load_cifar10(prepared)
    assert "tensorflow" not in sys.modules
    assert (found.train_images.reshape(1000, 50, 32, 32, 3) == images.train_images[:50]).all()
    assert (found.test_images.reshape(200, 50, 32, 32, 3) == images.train_images[:50]).all()
    assert (found.train_labels == np.arange(50_000) % 10).all()
    folder = prepared / "cifar10" / "3.0.2"
    assert find_cifar10(prepared) == find_cifar10(folder.parent) == find_cifar10(folder) == folder


GREY = np.zeros((32, 32), np.uint8)


def flipped(record):
    return record[:40] + bytes([record[40] ^ 1]) + record[41:]


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda r: r[0] + flipped(r[1]), "the checksum of record 1 does not fit"),
        (lambda r: b"\xff" + r[0][1:], "the checksum of the length of record 0 does not fit"),
        (lambda r: r[0] + r[1][:-3], "ends within record 1"),
        (lambda r: r[0][:5], "ends within the length of record 0"),
        (lambda r: r[0] + framed(example(image=png(GREY), label=3)), "record 1: an image of 32×32 L"),
        (lambda r: framed(example(image=b"JPEG", label=3)), "record 0: cannot identify image"),
        (lambda r: framed(example(image=png(GREY)[:60], label=3)), "record 0: "),
        (lambda r: framed(example(image=png(GREY), label=12)), "record 0: label 12, expected 0 to 9"),
        (lambda r: framed(example(image=png(GREY), coarse_label=1)), "expected an image and a label"),
        (lambda r: framed(b"\xff\xff\x03"), "record 0: "),
        (lambda r: b"".join(r), "50 images in split train, expected 50,000"),
    ],
)
def test_a_damaged_prepared_copy_is_named(records, tmp_path, make, message):
    (tmp_path / "dataset_info.json").write_text('{"name": "cifar10"}')
    (tmp_path / "cifar10-train.tfrecord-00000-of-00001").write_bytes(make(records))
    with pytest.raises(InputError, match=message):
        load_cifar10(tmp_path)


def test_a_missing_shard_another_format_and_a_missing_extra_are_named(tmp_path, monkeypatch):
    pytest.importorskip("google_crc32c")
    info = tmp_path / "dataset_info.json"
    info.write_text('{"name": "cifar10"}')
    (tmp_path / "cifar10-train.tfrecord-00001-of-00002").touch()
    with pytest.raises(InputError, match="-00000-of-00002: missing"):
        load_cifar10(tmp_path)
    info.write_text('{"name": "cifar10", "fileFormat": "array_record"}')
    with pytest.raises(InputError, match="cifar10 in format array_record, expected cifar10 in tfrecord"):
        load_cifar10(tmp_path)
    info.write_text("{")
    with pytest.raises(InputError, match="damaged"):
        load_cifar10(tmp_path)
    monkeypatch.setitem(sys.modules, "google_crc32c", None)
    with pytest.raises(InputError, match=r"pip install -e '\.\[tfds\]'"):
        load_cifar10(tmp_path)
