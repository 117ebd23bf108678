"""Checkpoints of one array, of several files, and those that are named and not read."""

import json
import pathlib
import shutil

import h5py
import numpy as np
import pytest
from checkpoints import some_arrays
from command_line import said
from gguf_files import of_models, write_gguf
from mutations import npy, sharded

from fault_injection.checkpoints import hdf5
from fault_injection.checkpoints.formats import open_checkpoint
from fault_injection.machine.errors import InputError


def test_one_array_is_altered_and_its_log_goes_to_an_archive_of_it(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    array = np.load(npy(tmp_path))
    np.savez("a.npz", array)
    assert said(capsys, "alter", "a.npy", "--out", "b.npy", "--count", 5, "--log", "log.json")[0] == 0
    assert said(capsys, "alter", "a.npz", "--out", "b.npz", "--replay", "log.json")[0] == 0
    new = np.load("b.npy")
    assert (new.view("u4") != array.view("u4")).sum() == 5
    with np.load("b.npz") as stored:
        assert np.array_equal(stored["arr_0"].view("u4"), new.view("u4"))
    assert said(capsys, "alter", "b.npy", "--in-place", "--replay", "log.json")[0] == 0
    assert pathlib.Path("b.npy").read_bytes() == pathlib.Path("a.npy").read_bytes()


def test_one_array_of_objects_is_refused(tmp_path):
    np.save(tmp_path / "a.npy", np.array([{}], object))
    with pytest.raises(InputError, match="nothing is ever unpickled"):
        open_checkpoint(tmp_path / "a.npy")


KINDS = {"safetensors": "safetensors", "PyTorch": "bin"}


@pytest.mark.parametrize("kind", KINDS)
def test_several_files_are_one_checkpoint_by_their_folder_or_their_index(tmp_path, capsys, monkeypatch, kind):
    monkeypatch.chdir(tmp_path)
    path = sharded(tmp_path, kind, KINDS[kind])
    index = path / f"model.{KINDS[kind]}.index.json"
    for number, given in enumerate((path, index)):
        how = ("--count", 9, "--log", f"{number}.json")
        assert said(capsys, "alter", given, "--out", f"new{number}", *how)[0] == 0
    assert (
        json.loads(pathlib.Path("0.json").read_text())["alterations"]
        == (json.loads(pathlib.Path("1.json").read_text())["alterations"])
    )
    for file in path.iterdir():
        assert (tmp_path / "new0" / file.name).read_bytes() == (tmp_path / "new1" / file.name).read_bytes()
    out = said(capsys, "diff", index, tmp_path / "new1" / index.name)[1]
    assert "9 elements differ, in 9 bits" in out
    assert said(capsys, "alter", "new0", "--out", "back", "--replay", "0.json")[0] == 0
    for file in path.iterdir():
        assert (tmp_path / "back" / file.name).read_bytes() == file.read_bytes()
    code, _, err = said(capsys, "alter", index, "--in-place")
    assert (code, err.count("\n")) == (2, 1) and "cannot be replaced at once" in err
    assert set(open_checkpoint(index).arrays) == set(some_arrays())


def test_of_two_indexes_one_is_named(tmp_path):
    path = sharded(tmp_path)
    index = path / "model.safetensors.index.json"
    shutil.copy(index, path / "other.safetensors.index.json")
    with pytest.raises(InputError, match="has several indexes"):
        open_checkpoint(path)
    assert set(open_checkpoint(index).arrays) == set(some_arrays())


@pytest.mark.parametrize(
    "name, content, why",
    [
        ("a.gguf", b"GGUF" + bytes(20), "no sound GGUF checkpoint: version 0, expected one of"),
        ("__0_0.distcp", b"PK", "distributed form, which is not read here; what to do: python -m torch.distributed"),
        ("m.index", bytes(40) + bytes.fromhex("57fb808b247547db"), "no sound TensorFlow checkpoint: "),
        ("m.data-00000-of-00001", b"abcdefgh", "name its index, m.index"),
    ],
)
def test_what_is_not_read_is_named_with_what_to_do(tmp_path, name, content, why):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=why):
        open_checkpoint(tmp_path / name)
    if name.endswith(("index", "distcp")):
        (tmp_path / ".metadata").touch()
        with pytest.raises(InputError, match=why):
            open_checkpoint(tmp_path)


@pytest.mark.parametrize("chunks", [(512, 1024), (512, 16), (8, 1024)])
def test_the_chunks_that_are_passed_again_and_again_stay_decompressed(tmp_path, monkeypatch, chunks):
    """In the room that HDF5 has for them; pieces of a dataset are read by rows, and are smaller than its chunks."""
    monkeypatch.setattr(hdf5, "CACHE", 1024)
    array = np.random.default_rng(0).normal(size=(1024, 1024)).astype(np.float32)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("w", data=array, chunks=chunks, compression="gzip", compression_opts=1)
    checkpoint = open_checkpoint(tmp_path / "a.h5")
    with checkpoint._opened("w") as file:
        room = file.id.get_access_plist().get_cache()[2]
    assert room == 4 * chunks[0] * 1024
    assert np.array_equal(checkpoint.array("w"), array)


@pytest.mark.parametrize("order, alignment", [("<", 32), ("<", 128), (">", 32)])
def test_gguf_is_altered_bit_by_bit_and_its_blocks_are_left(tmp_path, capsys, monkeypatch, order, alignment):
    monkeypatch.chdir(tmp_path)
    arrays, path = of_models(), tmp_path / "a.gguf"
    write_gguf(path, arrays, order, alignment)
    opened = open_checkpoint(path)
    assert list(opened.arrays) == list(arrays) and [*opened.raw] == ["GGUF metadata", "blocks"]
    for name, array in arrays.items():
        assert opened.array(name).dtype == array.dtype and opened.array(name).tobytes() == array.tobytes(), name
    code, out, err = said(capsys, "alter", path, "--out", "b.gguf", "--count", 9, "--log", "log.json")
    assert code == 0 and "blocks" in out + err  # it is named
    new, found = open_checkpoint(tmp_path / "b.gguf"), 0
    for name in arrays:
        one, other = (each.array(name).view(opened.arrays[name].word) for each in (opened, new))
        found += sum(int(word).bit_count() for word in (one ^ other).ravel())
    assert found == 9
    assert "9 elements differ, in 9 bits" in said(capsys, "diff", path, "b.gguf")[1]
    assert said(capsys, "alter", "b.gguf", "--in-place", "--replay", "log.json")[0] == 0
    assert pathlib.Path("b.gguf").read_bytes() == path.read_bytes()


def test_gguf_is_what_the_formats_own_package_says(tmp_path, capsys, monkeypatch):
    gguf = pytest.importorskip("gguf")
    monkeypatch.chdir(tmp_path)
    arrays = of_models()
    writer = gguf.GGUFWriter("a.gguf", "llama")
    writer.add_array("tokens", ["a", "b"])
    for name, array in arrays.items():
        if array.dtype == "bfloat16":
            writer.add_tensor(name, array.view(np.uint8), raw_dtype=gguf.GGMLQuantizationType.BF16)
        else:
            writer.add_tensor(name, array)
    rows = np.arange(256, dtype=np.float32).reshape(4, 64)
    kinds = [gguf.GGMLQuantizationType.Q8_0, gguf.GGMLQuantizationType.Q4_0]
    for kind in kinds:
        writer.add_tensor(kind.name, gguf.quantize(rows, kind), raw_dtype=kind)
    for write in (
        writer.write_header_to_file,
        writer.write_kv_data_to_file,
        writer.write_tensors_to_file,
        writer.close,
    ):
        write()
    assert said(capsys, "alter", "a.gguf", "--out", "b.gguf", "--count", 20, "--seed", 3)[0] == 0
    opened, read = open_checkpoint(pathlib.Path("b.gguf")), gguf.GGUFReader("b.gguf")
    assert [one.name for one in read.tensors] == [*arrays, *(kind.name for kind in kinds)]
    changed = 0
    for tensor in read.tensors:
        if tensor.name not in arrays:
            assert opened.raw[tensor.name].text == f"{tensor.name} [4, 64]"
            continue
        array = arrays[tensor.name]
        theirs = np.ascontiguousarray(tensor.data).view(np.uint8)
        assert opened.array(tensor.name).tobytes() == theirs.tobytes(), tensor.name
        changed += int(np.unpackbits(theirs.ravel() ^ array.view(np.uint8).ravel()).sum())
    assert changed == 20
