"""A copy prepared by tensorflow-datasets is read without TensorFlow; what is damaged in it is named."""

import io
import json
import struct
import sys

import numpy as np
import pytest

from fault_injection.data import tfds
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


@pytest.fixture
def prepared(records, tmp_path, monkeypatch):
    """A prepared copy of 1/100 of the images: 50 of them over and over, the training part in two shards."""
    monkeypatch.setattr(tfds, "COUNTS", {"train": 500, "test": 100})
    folder = tmp_path / "cifar10" / "3.0.2"
    folder.mkdir(parents=True)
    (folder / "dataset_info.json").write_text(json.dumps({"name": "cifar10", "fileFormat": "tfrecord"}))
    for name, count in (("train.tfrecord-00000-of-00002", 6), ("train.tfrecord-00001-of-00002", 4)):
        (folder / f"cifar10-{name}").write_bytes(b"".join(records) * count)
    (folder / "cifar10-test.tfrecord-00000-of-00001").write_bytes(b"".join(records) * 2)
    return folder


def test_a_prepared_copy_is_read_without_tensorflow(prepared, images):
    found = load_cifar10(prepared.parents[1])
    assert "tensorflow" not in sys.modules
    assert (found.train_images.reshape(10, 50, 32, 32, 3) == images.train_images[:50]).all()
    assert (found.test_images.reshape(2, 50, 32, 32, 3) == images.train_images[:50]).all()
    assert (found.train_labels == np.arange(500) % 10).all()
    assert all(find_cifar10(place) == prepared for place in (prepared, *prepared.parents[:2]))


def test_an_image_too_many_is_named(prepared, records):
    with (prepared / "cifar10-test.tfrecord-00000-of-00001").open("ab") as file:
        file.write(records[0])
    with pytest.raises(InputError, match=r"-00000-of-00001: record 100: more images than the 100 of split test"):
        load_cifar10(prepared)


GREY = np.zeros((32, 32), np.uint8)


def flipped(record):
    return record[:40] + bytes([record[40] ^ 1]) + record[41:]


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda r: r[0] + flipped(r[1]), "the checksum of record 1 does not match"),
        (lambda r: b"\xff" + r[0][1:], "the checksum of the length of record 0 does not match"),
        (lambda r: r[0] + r[1][:-3], "the file ends within record 1"),
        (lambda r: r[0][:5], "the file ends within the length of record 0"),
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
    with pytest.raises(InputError, match="-00000-of-00002: the file is missing"):
        load_cifar10(tmp_path)
    info.write_text('{"name": "cifar10", "fileFormat": "array_record"}')
    with pytest.raises(InputError, match="cifar10 in format array_record, expected cifar10 in tfrecord"):
        load_cifar10(tmp_path)
    info.write_text("{")
    with pytest.raises(InputError, match="the file is damaged"):
        load_cifar10(tmp_path)
    monkeypatch.setitem(sys.modules, "google_crc32c", None)
    with pytest.raises(InputError, match=r"pip install -e '\.\[tfds\]'"):
        load_cifar10(tmp_path)
