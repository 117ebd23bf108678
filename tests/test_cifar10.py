"""CIFAR-10 in every layout is the same images; what is damaged, or not CIFAR-10, is named."""

import codecs
import contextlib
import itertools
import os
import pathlib
import pickle
import tarfile

import numpy as np
import pytest
from cifar10_copies import RECORD

from fault_injection.commands.main import main
from fault_injection.data import cifar10
from fault_injection.data.cifar10 import find_cifar10, load_cifar10
from fault_injection.data.pickles import as_bytes, as_pixels, read_pickle
from fault_injection.machine.errors import InputError


@pytest.fixture
def binary(copies, tmp_path):
    """A copy of the binary layout that a test may damage."""
    folder = tmp_path / "cifar-10-batches-bin"
    folder.mkdir()
    for file in copies[0]["binary"].iterdir():
        (folder / file.name).symlink_to(file)
    return folder


def replaced(file: pathlib.Path, content: bytes) -> None:
    file.unlink()
    file.write_bytes(content)


# ---- Layouts ------------------------------------------------------------------------------


def test_the_images_are_the_records_in_their_order(copies, images):
    records = copies[1].reshape(-1, RECORD)
    labels = np.concatenate([images.train_labels, images.test_labels])
    assert labels.dtype == np.int32 and (labels == records[:, 0]).all()
    assert len(images.train_images) == 50_000 and len(images.test_images) == 10_000
    for n in (0, 9_999, 10_000, 49_999, 50_000, 59_999):
        pixels = images.train_images[n] if n < 50_000 else images.test_images[n - 50_000]
        assert pixels.shape == (32, 32, 3) and pixels.dtype == np.uint8
        red, green, blue = records[n, 1:].reshape(3, 32, 32)
        assert all((pixels[..., i] == plane).all() for i, plane in enumerate((red, green, blue)))


@pytest.mark.parametrize("layout", ["python", "python archive"])  # the binary archive is the one that is downloaded
def test_every_layout_gives_the_same_images(copies, images, layout):
    assert load_cifar10(copies[0][layout]).sha256 == images.sha256


def test_a_copy_is_found_in_a_folder_and_one_level_down(copies, tmp_path):
    binary = copies[0]["binary"]
    assert find_cifar10(binary) == find_cifar10(binary.parent) == binary
    (tmp_path / "data").symlink_to(binary.parent)
    assert find_cifar10(tmp_path) is not None


def test_without_a_folder_the_usual_places_are_searched(copies, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("FAULT_INJECTION_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("FAULT_INJECTION_DATA", raising=False)
    assert find_cifar10() is None
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "data").symlink_to(copies[0]["binary"].parent)
    assert find_cifar10() == tmp_path / "cache" / "data" / "cifar-10-batches-bin"
    monkeypatch.setenv("FAULT_INJECTION_DATA", str(copies[0]["python"]))
    assert find_cifar10() == copies[0]["python"]


# ---- Damage -------------------------------------------------------------------------------


def test_a_label_out_of_range_is_named(binary):
    content = bytearray((binary / "data_batch_2.bin").read_bytes())
    content[3 * RECORD] = 17
    replaced(binary / "data_batch_2.bin", content)
    with pytest.raises(InputError, match=r"data_batch_2.bin: label 17 in record 3, expected 0 to 9"):
        load_cifar10(binary)


@pytest.mark.parametrize("size, shown", [(30_720_000, "30,720,000"), (0, "0"), (30_730_001, "30,730,001")])
def test_a_wrong_size_is_named(binary, size, shown):
    replaced(binary / "test_batch.bin", bytes(size))
    with pytest.raises(InputError, match=f"test_batch.bin: {shown} bytes, expected 30,730,000"):
        load_cifar10(binary)


def test_a_missing_file_is_named(binary):
    (binary / "data_batch_3.bin").unlink()
    with pytest.raises(InputError, match="data_batch_3 missing, expected the six files"):
        load_cifar10(binary)


@pytest.mark.parametrize("where", [0.001, 0.5, 0.999])
@pytest.mark.parametrize("damage", ["truncated", "altered"])
def test_a_damaged_archive_is_named(copies, tmp_path, damage, where):
    content = bytearray(copies[0]["binary archive"].read_bytes())
    at = int(len(content) * where)
    if damage == "truncated":
        del content[at:]
    else:
        content[at : at + 8] = bytes(byte ^ 255 for byte in content[at : at + 8])
    path = tmp_path / "cifar-10-binary.tar.gz"
    path.write_bytes(content)
    with pytest.raises(InputError) as raised:
        load_cifar10(tmp_path)
    assert str(raised.value).startswith(str(path))


def test_an_archive_of_something_else_is_named(tmp_path):
    for name, content in (("text.tar.gz", b"no archive"), ("empty.tar.gz", b"")):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(InputError, match=name):
            load_cifar10(tmp_path / name)
    with tarfile.open(tmp_path / "cifar-100.tar.gz", "w:gz") as archive:
        archive.addfile(tarfile.TarInfo("cifar-100-python/train"))
    with pytest.raises(InputError, match="an archive of CIFAR-100, expected CIFAR-10"):
        load_cifar10(tmp_path / "cifar-100.tar.gz")


def test_a_folder_of_something_else_is_told_what_was_looked_for(tmp_path):
    with pytest.raises(InputError, match=r"holds no CIFAR-10; looked for cifar-10-batches-bin/"):
        load_cifar10(tmp_path)
    for name in ("train", "test", "meta"):
        (tmp_path / name).touch()
    with pytest.raises(InputError, match=r"holds no CIFAR-10 \(but CIFAR-100\)"):
        load_cifar10(tmp_path)
    with pytest.raises(InputError, match="no such folder or archive"):
        load_cifar10(tmp_path / "nowhere")


# ---- The python layout --------------------------------------------------------------------

PIXELS = np.arange(24, dtype=np.uint8).reshape(4, 6)


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("order", "CF")
def test_arrays_of_every_protocol_are_read_without_numpys_help(protocol, order):
    array = np.array(PIXELS, order=order)
    found = read_pickle(pickle.dumps({b"data": array, "labels": [1], b"name": b"caf\xe9"}, protocol))
    assert (as_pixels(found[b"data"]) == array).all()
    assert found[b"labels"] == [1] and as_bytes(found[b"name"]) == b"caf\xe9"


def test_a_pickle_of_python_2_is_read():
    """As NumPy under Python 2 wrote the official files: strings of bytes, and the old name of `_reconstruct`."""
    content = (
        b"\x80\x02}q\x01(U\x04dataq\x02cnumpy.core.multiarray\n_reconstruct\nq\x03cnumpy\nndarray\nq\x04K\x00\x85"
        b"U\x01b\x87Rq\x05(K\x01K\x02K\x03\x86cnumpy\ndtype\nq\x06U\x02u1K\x00K\x01\x87Rq\x07(K\x03U\x01|NNNJ\xff\xff"
        b"\xff\xffJ\xff\xff\xff\xffK\x00tb\x89U\x06abcdefq\x08tbU\x06labelsq\x09]q\x0a(K\x05K\x06eu."
    )
    found = read_pickle(content)
    assert as_pixels(found[b"data"]).tolist() == [[97, 98, 99], [100, 101, 102]]
    assert found[b"labels"] == [5, 6]


class Calls:
    """An object whose pickle calls a function."""

    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


@pytest.mark.parametrize("function", [os.system, os.mkdir, np.save, np.lib.format.open_memmap, eval, getattr])
def test_what_a_pickle_would_execute_is_refused_by_name(tmp_path, function):
    path = tmp_path / "mark"
    arguments = {np.save: (path, PIXELS), os.mkdir: (path,)}.get(function, (f"touch {path}",))
    with pytest.raises(ValueError, match=rf"it names \S+\.{function.__name__}, .*nothing was run"):
        read_pickle(pickle.dumps({b"data": Calls(function, *arguments), b"labels": []}))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "value",
    [
        PIXELS.astype(np.float32),
        PIXELS.astype(np.int8),
        [1, 2],
        None,
        np.dtype("u1"),
        Calls(codecs.encode, "text", "rot13"),
        Calls(np.ndarray, (1 << 40,)),
        Calls(np.dtype, "u1"),
    ],
)
def test_what_is_no_array_of_bytes_is_refused(value):
    found = read_pickle(pickle.dumps({b"data": value}))
    with pytest.raises(ValueError):
        as_pixels(found[b"data"])


def test_a_pickle_cut_or_altered_anywhere_is_refused_or_read():
    sound = pickle.dumps({b"data": PIXELS, b"labels": [1, 2]}, 4)
    for content in itertools.chain(
        (sound[:at] for at in range(len(sound))),
        (sound[:at] + bytes([sound[at] ^ 1 << bit]) + sound[at + 1 :] for at in range(len(sound)) for bit in range(8)),
    ):
        with contextlib.suppress(ValueError):
            found = read_pickle(content)
            if b"data" in found:
                as_pixels(found[b"data"])


BATCH = {"labels": [0] * 10_000, "data": np.zeros((10_000, 3072), np.uint8)}


@pytest.mark.parametrize(
    "change, message",
    [
        ({"labels": [0] * 9_999}, "9,999 labels, expected 10,000"),
        ({"labels": [0] * 9_999 + [10]}, "label 10 in record 9999"),
        ({"labels": [0] * 9_999 + [1 << 80]}, "in record 9999"),
        ({"labels": "0" * 10_000}, "'labels' holds a str, expected a list of whole numbers"),
        ({"data": np.zeros((10_000, 3073), np.uint8)}, r"shape \(10000, 3073\), expected \(10000, 3072\)"),
        ({"fine_labels": []}, "a file of CIFAR-100"),
    ],
)
def test_a_batch_with_something_else_in_it_is_named(tmp_path, change, message):
    (tmp_path / "data_batch_1").write_bytes(pickle.dumps(BATCH | change))
    with pytest.raises(InputError, match=f"data_batch_1: .*{message}"):
        load_cifar10(tmp_path)


def test_a_batch_without_labels_and_one_cut_short_are_named(tmp_path):
    content = pickle.dumps({"data": BATCH["data"]})
    for damaged, message in ((content, "no entry 'labels'"), (content[:-100], "the pickle cannot be read")):
        (tmp_path / "data_batch_1").write_bytes(damaged)
        with pytest.raises(InputError, match=message):
            load_cifar10(tmp_path)


# ---- Download and command line ----------------------------------------------------------


def test_offline_and_absent_one_line_names_the_three_ways(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("FAULT_INJECTION_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("FAULT_INJECTION_DATA", raising=False)
    monkeypatch.setattr(cifar10, "URL", "http://127.0.0.1:9/cifar-10-binary.tar.gz")
    with pytest.raises(InputError) as raised:
        load_cifar10()
    message = str(raised.value)
    assert "\n" not in message and message.count("--data-dir") == 2
    assert all(way in message for way in ("cifar-10-python.tar.gz", "tensorflow-datasets", "with network"))


def test_a_download_is_then_read(copies, images, tmp_path, monkeypatch):
    def bring(url, path, md5, size):
        path.parent.mkdir(parents=True)
        path.symlink_to(copies[0]["binary archive"])

    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("FAULT_INJECTION_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("FAULT_INJECTION_DATA", raising=False)
    monkeypatch.setattr(cifar10, "download", bring)
    assert load_cifar10().sha256 == images.sha256
    assert find_cifar10() == tmp_path / "cache" / "data" / cifar10.ARCHIVES[0]  # and not downloaded again


def test_data_dir_reaches_the_reader(copies, repository, tmp_path, capsys):
    file = repository / "injections" / "published" / "resnet18-masked.csv"
    command = ["replay", "--file", str(file), "--cache", str(tmp_path / "cache"), "--check", "--data-dir"]
    assert main([*command, str(copies[0]["binary"])]) == 0
    assert "none of it has been made yet" in capsys.readouterr().out
    assert main([*command, str(tmp_path)]) == 2
    message = capsys.readouterr().err
    assert message.count("\n") == 1 and "holds no CIFAR-10" in message
