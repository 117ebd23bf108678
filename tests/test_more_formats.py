"""Checkpoints of one array, of several files, and those that are named and not read."""

import json
import pathlib
import shutil

import h5py
import numpy as np
import pytest
from checkpoints import some_arrays
from command_line import said
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
        ("a.gguf", b"GGUF" + bytes(20), "a checkpoint in GGUF, which is not read here"),
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
