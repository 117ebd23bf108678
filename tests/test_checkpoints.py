"""Checkpoints of every format: read by name, altered element by element, damaged, and never unpickled."""

import json
import pickle
import shutil
import struct
import zipfile
import zlib

import h5py
import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy
from checkpoints import BFLOAT16, FILES, SAME_BYTES, WRITERS, some_arrays, written
from flax import serialization
from hypothesis import given
from hypothesis import strategies as st
from whole import many

from fault_injection.checkpoints.alteration import Selection, draw_alteration
from fault_injection.checkpoints.checkpoint import Altered
from fault_injection.checkpoints.formats import open_checkpoint
from fault_injection.checkpoints.stored_zip import crc_of_flip
from fault_injection.commands.main import main
from fault_injection.machine.errors import InputError
from fault_injection.machine.files import read_arrays


def bits(array):
    return np.ascontiguousarray(array).view(f"u{array.dtype.itemsize}").reshape(-1)


def flips(arrays, seed=1):
    """Some elements of each array of floating-point numbers, and a bit of each."""
    rng, found = np.random.default_rng(seed), {}
    for name, array in arrays.items():
        if array.dtype.kind == "f":
            index = np.sort(rng.choice(array.size, min(4, array.size), replace=False))
            found[name] = (index, rng.integers(8 * array.dtype.itemsize, size=len(index)))
    return found


def flipped(arrays, chosen):
    """The arrays with these bits inverted, by NumPy."""
    new = {name: np.array(array) for name, array in arrays.items()}
    for name, (index, which) in chosen.items():
        words = bits(arrays[name]).copy()
        words[index] ^= words.dtype.type(1) << which.astype(words.dtype)
        new[name] = words.view(arrays[name].dtype).reshape(arrays[name].shape)
    return new


def changes(checkpoint, chosen):
    found = {}
    for name, (index, which) in chosen.items():
        words = checkpoint.words(name, index)
        found[name] = Altered(index, words, words ^ (words.dtype.type(1) << which.astype(words.dtype)))
    return found


def change(checkpoint, name, place, word):
    """One element of an array becomes a word."""
    index = np.array([place])
    return {name: Altered(index, checkpoint.words(name, index), np.array([word], checkpoint.arrays[name].word))}


def assert_same(checkpoint, arrays):
    assert set(checkpoint.arrays) == set(arrays)
    for name, array in arrays.items():
        found = checkpoint.array(name)
        assert (found.shape, found.dtype) == (array.shape, array.dtype), name
        assert np.array_equal(bits(found), bits(array)), name


@pytest.mark.parametrize("kind", WRITERS)
def test_a_log_of_alterations_gives_the_same_arrays_in_every_format(tmp_path, kind):
    arrays, chosen = some_arrays(), flips(some_arrays())
    source = written(tmp_path, kind)
    checkpoint = open_checkpoint(source)
    assert_same(checkpoint, arrays)
    checkpoint.write(tmp_path / "new", changes(checkpoint, chosen))
    altered = open_checkpoint(tmp_path / "new")
    assert_same(altered, flipped(arrays, chosen))
    assert_same(open_checkpoint(source), arrays)  # the input is as it was
    altered.write(tmp_path / "again", changes(altered, chosen))
    assert_same(open_checkpoint(tmp_path / "again"), arrays)
    if kind in SAME_BYTES:
        assert (tmp_path / "again").read_bytes() == source.read_bytes()


@pytest.mark.parametrize("kind", ["safetensors", "HDF5", "npz", "PyTorch"])
def test_only_the_bytes_altered_differ_but_for_checksums(tmp_path, kind):
    chosen = flips(some_arrays())
    source = written(tmp_path, kind)
    checkpoint = open_checkpoint(source)
    checkpoint.write(tmp_path / "new", changes(checkpoint, chosen))
    before, after = source.read_bytes(), (tmp_path / "new").read_bytes()
    assert len(before) == len(after)
    differ = sum(one != other for one, other in zip(before, after, strict=True))
    elements = sum(len(index) for index, _ in chosen.values())
    checksums = 8 * len(chosen) if kind in ("npz", "PyTorch") else 0  # two CRC-32 for each member
    assert elements <= differ <= elements + checksums


def test_the_libraries_of_the_formats_read_what_was_altered(tmp_path):
    chosen, expected = flips(some_arrays()), flipped(some_arrays(), flips(some_arrays()))
    found = {}
    for kind in ("npz", "ours", "safetensors", "HDF5", "HDF5 in chunks"):
        checkpoint = open_checkpoint(written(tmp_path, kind))
        checkpoint.write(tmp_path / f"new {kind}", changes(checkpoint, chosen))
    with np.load(tmp_path / "new npz") as stored:
        found["npz"] = {name: stored[name] for name in stored.files}
    assert zipfile.ZipFile(tmp_path / "new npz").testzip() is None
    found["ours"] = read_arrays(tmp_path / "new ours")  # which compares the checksum
    found["safetensors"] = safetensors.numpy.load_file(tmp_path / "new safetensors")
    for kind in ("HDF5", "HDF5 in chunks"):
        with h5py.File(tmp_path / f"new {kind}") as file:
            found[kind] = {name: file[name][()] for name in expected}
    for arrays in found.values():
        assert all(np.array_equal(bits(np.asarray(arrays[name])), bits(expected[name])) for name in expected)


@pytest.mark.parametrize("kind", ["npz", "safetensors", "msgpack", "PyTorch", "PyTorch, big-endian", "Orbax OCDBT"])
def test_bfloat16_is_read_and_altered(tmp_path, kind):
    arrays = {"params/w": np.arange(6, dtype=np.float32).reshape(2, 3).astype(BFLOAT16)}
    checkpoint = open_checkpoint(written(tmp_path, kind, arrays))
    assert checkpoint.arrays["params/w"].dtype == ml_dtypes.bfloat16
    checkpoint.write(tmp_path / "new", change(checkpoint, "params/w", 4, 0x7F80))
    assert open_checkpoint(tmp_path / "new").array("params/w").tolist() == [[0, 1, 2], [3, np.inf, 5]]


def test_other_orders_of_bytes_and_axes_are_read_as_their_numbers(tmp_path):
    numbers = np.arange(12, dtype=np.float32).reshape(3, 4)
    np.savez(tmp_path / "a.npz", big=numbers.astype(">f4"), columns=np.asfortranarray(numbers))
    checkpoint = open_checkpoint(tmp_path / "a.npz")
    minus = 0xC0800000  # -4
    checkpoint.write(tmp_path / "b.npz", change(checkpoint, "big", 6, minus) | change(checkpoint, "columns", 6, minus))
    expected = numbers.copy()
    expected[1, 2] = -4
    with np.load(tmp_path / "b.npz") as stored:
        for name in stored.files:
            assert np.array_equal(stored[name].astype(np.float32), expected)
            assert np.array_equal(open_checkpoint(tmp_path / "b.npz").array(name), expected)


@given(st.binary(min_size=1, max_size=400), st.data())
def test_the_crc_after_a_change_follows_from_the_change(content, data):
    at = data.draw(st.integers(0, len(content) - 1))
    flip = data.draw(st.binary(min_size=1, max_size=len(content) - at))
    changed = bytearray(content)
    for k, byte in enumerate(flip):
        changed[at + k] ^= byte
    assert zlib.crc32(content) ^ crc_of_flip(flip, len(content) - at - len(flip)) == zlib.crc32(changed)


# Damage.


def mutated(content, number):
    """A file with some damage: cut off, other bytes anywhere, other bytes near the beginning, or more bytes."""
    rng, found = np.random.default_rng(number), bytearray(content)
    where = int(rng.integers(len(found)))
    match number % 4:
        case 0:
            return found[:where]
        case 1:
            for at in rng.integers(len(found), size=rng.integers(1, 9)):
                found[at] = rng.integers(256)
        case 2:
            where %= 600
            found[where : where + 8] = rng.bytes(8)
        case 3:
            found[where:where] = rng.bytes(int(rng.integers(1, 40)))
    return found


def survive(path, content, out, numbers):
    """Open and alter damaged copies; each gives one line, or works."""
    refused = 0
    for number in numbers:
        path.write_bytes(mutated(content, number))
        try:
            checkpoint = open_checkpoint(path)
            altered = draw_alteration(checkpoint, Selection(count=1, seed=number))
            checkpoint.write(out, altered)
            out.unlink()
        except InputError as error:
            assert "\n" not in str(error)
            assert not out.exists()
            refused += 1
    return refused


@pytest.mark.parametrize("kind", FILES)
def test_a_thousand_damaged_files_give_one_line_each(tmp_path, kind):
    content = written(tmp_path, kind).read_bytes()
    assert survive(tmp_path / "damaged", content, tmp_path / "out", range(1000)) >= 250


@pytest.mark.parametrize("kind", [name for name in WRITERS if name.startswith("Orbax")])
@pytest.mark.parametrize("count", [40, pytest.param(many(400), marks=pytest.mark.slow)])
def test_a_damaged_folder_gives_one_line(tmp_path, kind, count):
    """Any of its files may be damaged; what Orbax does not need may be damaged without notice."""
    folder, out = written(tmp_path, kind), tmp_path / "out"
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.stat().st_size)
    refused = 0
    for number in range(count):
        path = files[number % len(files)]
        content = path.read_bytes()
        path.write_bytes(mutated(content, number))
        try:
            checkpoint = open_checkpoint(folder)
            altered = draw_alteration(checkpoint, Selection(share=1.0, seed=number))
            checkpoint.write(out, altered)
            shutil.rmtree(out)
        except InputError as error:
            assert "\n" not in str(error)
            assert not out.exists()
            refused += 1
        path.write_bytes(content)
    assert refused >= count / 4


HOSTILE = {  # headers of safetensors that lie
    "beyond the end": {"a": {"dtype": "F32", "shape": [100], "data_offsets": [0, 400]}},
    "in each other": {
        "a": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]},
        "b": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]},
    },
    "with a hole": {"a": {"dtype": "F32", "shape": [3], "data_offsets": [4, 16]}},
    "too large for its bytes": {"a": {"dtype": "F32", "shape": [2**40, 2**40], "data_offsets": [0, 16]}},
    "of negative shape": {"a": {"dtype": "F32", "shape": [-4], "data_offsets": [0, 16]}},
}


@pytest.mark.parametrize("what", HOSTILE)
def test_headers_that_lie_are_refused_as_the_library_refuses_them(tmp_path, what):
    header = json.dumps(HOSTILE[what]).encode()
    path = tmp_path / "a.safetensors"
    path.write_bytes(struct.pack("<Q", len(header)) + header + bytes(16))
    with pytest.raises(InputError, match="no sound safetensors checkpoint"):
        open_checkpoint(path)
    with pytest.raises(Exception, match=r"."):
        safetensors.numpy.load_file(path)


def test_nothing_is_unpickled(tmp_path):
    class Bomb:
        def __reduce__(self):
            return (tmp_path / "exploded").touch, ()

    np.savez(tmp_path / "a.npz", objects=np.array([Bomb()], object))
    (tmp_path / "a.pkl").write_bytes(pickle.dumps(Bomb()))
    with zipfile.ZipFile(tmp_path / "a.pt", "w") as archive:  # as PyTorch saves
        archive.writestr("archive/data.pkl", pickle.dumps(Bomb()))
    for name, why in {"a.npz": "ever unpickled", "a.pkl": "ever unpickled", "a.pt": "names builtins.getattr"}.items():
        with pytest.raises(InputError, match=why):
            open_checkpoint(tmp_path / name)
    assert not (tmp_path / "exploded").exists()


def test_members_of_an_archive_that_lie_in_each_other_are_refused(tmp_path):
    path = written(tmp_path, "npz")
    content = bytearray(path.read_bytes())
    with zipfile.ZipFile(path) as archive:
        second, at = archive.infolist()[1].header_offset, archive.start_dir
    content[at + 42 : at + 46] = second.to_bytes(4, "little")  # the first member's header is the second one's
    path.write_bytes(content)
    with pytest.raises(InputError, match="no sound npz checkpoint"):
        open_checkpoint(path)


@pytest.mark.parametrize("what", ["missing", "a folder", "text", "empty", "a tensorflow index"])
def test_what_is_no_checkpoint_is_named(tmp_path, what):
    path = tmp_path / "place"
    if what == "a folder":
        path.mkdir()
    elif what != "missing":
        path.write_bytes({"text": b"some text\n", "empty": b"", "a tensorflow index": b"\x00\x00\x01"}[what])
    with pytest.raises(InputError, match=str(path)):
        open_checkpoint(path)


def test_types_that_numpy_lacks_are_left_alone(tmp_path):
    """h5py reads a narrow float as a wider one: altered where it lies, it would run into its neighbours."""
    narrow = h5py.h5t.IEEE_F32LE.copy()
    narrow.set_fields(15, 7, 8, 0, 7)
    narrow.set_size(2)
    narrow.set_ebias(127)
    with h5py.File(tmp_path / "own.h5", "w") as file:
        space = h5py.h5s.create_simple((4,))
        h5py.h5d.create(file.id, b"narrow", narrow, space, dcpl=None)
        file["w"] = np.ones(4, np.float32)
        file.create_dataset("keras", data=np.ones(4, BFLOAT16).view("V2")).attrs["dtype"] = "bfloat16"
    checkpoint = open_checkpoint(tmp_path / "own.h5")
    assert set(checkpoint.arrays) == {"w", "keras"} and checkpoint.others == ("narrow",)
    assert checkpoint.arrays["keras"].dtype == BFLOAT16 and checkpoint.array("keras").tolist() == [1] * 4
    checkpoint.write(tmp_path / "new.h5", change(checkpoint, "keras", 2, 0x4000))
    assert open_checkpoint(tmp_path / "new.h5").array("keras").tolist() == [1, 1, 2, 1]
    np.savez(tmp_path / "long.npz", x=np.ones(2, np.longdouble), y=np.ones(2, np.float32))
    assert set(open_checkpoint(tmp_path / "long.npz").arrays) == {"y"}


def test_arrays_in_lists_have_their_number_as_a_name(tmp_path):
    (tmp_path / "lists").write_bytes(serialization.msgpack_serialize({"layers": [np.zeros(2, np.float32)] * 2}))
    checkpoint = open_checkpoint(tmp_path / "lists")
    checkpoint.write(tmp_path / "new", change(checkpoint, "layers/1", 0, 0x3F800000))
    assert open_checkpoint(tmp_path / "new").array("layers/1").tolist() == [1, 0]
    assert open_checkpoint(tmp_path / "new").array("layers/0").tolist() == [0, 0]


def test_a_copy_is_not_put_into_the_folder_that_it_copies(tmp_path, capsys):
    source = written(tmp_path, "Orbax plain")
    before = sorted(path.name for path in source.rglob("*"))
    assert main(["alter", str(source), "--out", str(source / "new")]) == 2
    assert "--out is in the checkpoint" in capsys.readouterr().err
    assert sorted(path.name for path in source.rglob("*")) == before
