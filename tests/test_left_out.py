"""What `alter` and `diff` cannot alter or compare, they name and count; what has bits is compared bit by bit."""

import json
import shutil
import struct
import zipfile

import h5py
import msgpack
import numpy as np
import orbax.checkpoint
import pytest
from checkpoints import BFLOAT16, written
from command_line import said
from flax import serialization
from mutations import keras, sharded

from fault_injection.checkpoints.formats import open_checkpoint
from fault_injection.machine.errors import InputError

RNG = np.random.default_rng(0)


def normal(*shape):
    return RNG.normal(size=shape).astype(np.float32)


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def narrow(path, norm="F32"):
    """Types that NumPy lacks, as quantised models have them."""
    entries, begin = {}, 0
    for name, kind, shape, size in (("blocks", "F4", [2, 8], 8), ("scales", "F8_E8M0", [3], 3), ("n", norm, [4], 16)):
        entries[name] = {"dtype": kind, "shape": shape, "data_offsets": [begin, begin + size]}
        begin += size
    header = json.dumps(entries).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header + bytes(range(11)) + normal(4).tobytes())
    return path


def flipped(path, at, to):
    """A copy with one bit inverted, counted from the end of the file."""
    content = bytearray(path.read_bytes())
    content[-at] ^= 1
    to.write_bytes(content)
    return to


def differs(capsys, one, other):
    """What `diff` says: the exit code, and how many elements of each array differ."""
    code, out, err = said(capsys, "diff", one, other, "--json")
    assert code in (0, 1), err
    return code, {each["name"]: each["changed"] for each in json.loads(out)["arrays"] if each["changed"]}


def test_types_that_numpy_lacks_are_compared_bit_by_bit(place, capsys):
    source = narrow(place / "a.safetensors")
    assert differs(capsys, source, source) == (0, {})
    assert differs(capsys, source, flipped(source, 27, place / "b")) == (0, {"blocks": 1})
    assert differs(capsys, source, flipped(source, 17, place / "b")) == (0, {"scales": 1})
    code, out, _ = said(capsys, "diff", source, place / "b")
    assert code == 0 and "1 elements differ, in 1 bits, in 1 of 3 arrays" in out and "float8_e8m0fnu" in out


def test_alter_names_and_counts_what_it_leaves_out(place, capsys):
    code, out, _ = said(capsys, "alter", narrow(place / "a.safetensors"), "--out", "b")
    assert code == 0 and "are altered: 2: blocks (float4_e2m1fn [2, 8]), scales (float8_e8m0fnu [3])" in out
    code, out, _ = said(capsys, "alter", "a.safetensors", "--check", "--json")
    assert json.loads(out)["left_out"] == {"blocks": "float4_e2m1fn [2, 8]", "scales": "float8_e8m0fnu [3]"}
    code, out, err = said(capsys, "alter", narrow(place / "c", "I32"), "--out", "d")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert (
        "blocks is float4_e2m1fn [2, 8]; scales is float8_e8m0fnu [3]; n is int32 [4]; give --kinds int,narrow,scale"
        in err
    )
    assert not (place / "d").exists()


ODD = {
    "complex": np.ones(3, np.complex64),
    "complex128": np.ones((2, 2), np.complex128),
    "longdouble": np.ones(3, np.longdouble),
    "text": np.array(["a", "bc"]),
    "time": np.array([3, 4], "M8[s]"),
    "fields": np.ones(2, [("a", "<f4"), ("b", "<i2")]),
}


@pytest.mark.parametrize("what", ODD)
@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_arrays_of_any_type_are_compared(place, capsys, what, save):
    other = ODD[what].copy()
    other.reshape(-1)[-1:] = other.reshape(-1)[:1] if what in ("text", "time") else 7 if what != "fields" else (7, 1)
    for name, array in (("a", ODD[what]), ("b", other)):
        save(place / f"{name}.npz", odd=array, w=np.ones(2, np.float32))
    assert differs(capsys, "a.npz", "a.npz") == (0, {})
    assert differs(capsys, "a.npz", "b.npz") == (0, {"odd": 1})
    assert "left out" in said(capsys, "alter", "a.npz", "--check")[1]


def test_what_no_bits_say_is_named_and_the_exit_code_says_so(place, capsys):
    np.savez(place / "a.npz", config=np.array({"lr": 1}, object), w=np.ones(4, np.float32))
    code, out, _ = said(capsys, "diff", "a.npz", "a.npz")
    assert code == 1 and "elements differ" not in out
    assert "nothing differs in the 1 arrays that were compared; not all were" in out and "not compared: config" in out
    assert said(capsys, "alter", "a.npz", "--out", "b.npz")[0] == 0
    assert open_checkpoint(place / "b.npz").others == ("config",)
    with h5py.File(place / "a.h5", "w") as file:
        file.create_dataset("names", data=["a", "bc"], dtype=h5py.string_dtype())
        file["w"] = normal(3)
    assert differs(capsys, "a.h5", "a.h5") == (1, {})


def test_chunks_of_bfloat16_are_altered_and_compared(place, capsys):
    with h5py.File(place / "a.h5", "w") as file:
        half = file.create_dataset("half", data=np.ones((8, 8), BFLOAT16).view("V2"), chunks=(3, 5))
        half.attrs["dtype"] = "bfloat16"
    assert said(capsys, "alter", "a.h5", "--out", "b.h5", "--count", 9)[0] == 0
    assert differs(capsys, "a.h5", "b.h5") == (0, {"half": 9})


def test_datasets_of_one_number_are_opened_wherever_they_lie(place, capsys):
    with h5py.File(place / "a.h5", "w") as file:
        file.create_dataset("never_written", (), "f4")
        compact = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        compact.set_layout(h5py.h5d.COMPACT)
        space = h5py.h5s.create(h5py.h5s.SCALAR)
        in_header = h5py.h5d.create(file.id, b"in_header", h5py.h5t.IEEE_F32LE, space, compact)
        in_header.write(space, space, np.array(3, np.float32))
    assert [float(open_checkpoint(place / "a.h5").array(name)) for name in ("never_written", "in_header")] == [0, 3]
    assert said(capsys, "alter", "a.h5", "--out", "b.h5", "--count", 2, "--value", 5)[0] == 0
    assert [float(open_checkpoint(place / "b.h5").array(name)) for name in ("never_written", "in_header")] == [5, 5]


def test_keys_of_any_kind_are_read(place, capsys):
    tree = {"layers": {0: {"w": normal(3)}, "0": {"w": normal(3)}, b"x": normal(2)}, "step": 3, "none": None}
    packed = msgpack.packb(
        tree, default=lambda one: msgpack.ExtType(1, msgpack.packb((one.shape, one.dtype.name, one.tobytes())))
    )
    (place / "a").write_bytes(packed)
    found = open_checkpoint(place / "a")
    assert set(found.arrays) == {"layers/0/w", "'layers'/'0'/'w'", "layers/b'x'"} and found.others == ("step", "none")
    assert said(capsys, "alter", "a", "--out", "b", "--share", 1, "--bits", 3)[0] == 0
    assert differs(capsys, "a", "b") == (0, {"layers/0/w": 3, "'layers'/'0'/'w'": 3, "layers/b'x'": 2})
    assert said(capsys, "alter", "b", "--out", "c", "--share", 1, "--bits", 3)[0] == 0
    assert (place / "c").read_bytes() == packed


def test_arrays_in_pieces_are_read_as_flax_reads_them(place, capsys, monkeypatch):
    monkeypatch.setattr(serialization, "MAX_CHUNK_SIZE", 40)
    tree = {"big": normal(5, 7), "small": normal(3)}
    (place / "a").write_bytes(serialization.msgpack_serialize(tree))
    assert np.array_equal(open_checkpoint(place / "a").array("big"), tree["big"])
    assert said(capsys, "alter", "a", "--out", "b", "--names", "big", "--count", 6)[0] == 0
    assert differs(capsys, "a", "b") == (0, {"big": 6})
    restored = serialization.msgpack_restore((place / "b").read_bytes())
    assert np.sum(restored["big"] != tree["big"]) == 6


@pytest.mark.parametrize("ocdbt", [True, False])
def test_leaves_of_orbax_have_any_name_and_kind(place, capsys, ocdbt):
    tree = {"mlp/~/linear_0": {"w": normal(2, 2)}, "c": np.ones(3, np.complex64), "s": "text", "n": None, "e": {}}
    with orbax.checkpoint.Checkpointer(orbax.checkpoint.PyTreeCheckpointHandler(use_ocdbt=ocdbt)) as checkpointer:
        checkpointer.save(place / "a", tree)
    found = open_checkpoint(place / "a")
    assert set(found.arrays) == {"mlp/~/linear_0/w"} and {"c", "s", "n", "e"} == set(found.others)
    assert said(capsys, "alter", "a", "--out", "b", "--count", 2)[0] == 0
    assert differs(capsys, "a", "b") == (0, {"mlp/~/linear_0/w": 2})
    if not ocdbt:
        (place / "b" / "_strings.json").write_text('{"s": "other"}')
        assert differs(capsys, "a", "b") == (0, {"mlp/~/linear_0/w": 2, "s": 1})


def test_a_model_in_several_files_is_one_checkpoint(place, capsys):
    path = sharded(place)
    whole = written(place, "safetensors")
    assert differs(capsys, path, whole) == (0, {})
    assert said(capsys, "alter", path, "--out", "b", "--count", 9, "--log", "log.json")[0] == 0
    assert sum(differs(capsys, path, "b")[1].values()) == 9 and (place / "b" / "config.json").exists()
    assert said(capsys, "alter", "b", "--out", "c", "--replay", "log.json")[0] == 0
    assert all((place / "c" / one.name).read_bytes() == one.read_bytes() for one in path.iterdir())
    (place / "c" / "model-1.safetensors").unlink()
    with pytest.raises(InputError, match=r"model-1\.safetensors: is missing, in which model\.safetensors\.index\.json"):
        open_checkpoint(place / "c")
    (place / "b" / "model.fp16.safetensors.index.json").write_text("{}")
    with pytest.raises(InputError, match=r"several indexes \(model\.fp16\.safetensors\.index\.json, model"):
        open_checkpoint(place / "b")


def test_an_archive_of_keras_has_the_arrays_of_its_weights(place, capsys):
    path = keras(place)
    assert differs(capsys, path, written(place, "HDF5")) == (0, {})
    assert said(capsys, "alter", path, "--in-place", "--count", 3, "--log", "log.json")[0] == 0
    assert sum(differs(capsys, path, place / "checkpoint HDF5")[1].values()) == 3
    assert zipfile.ZipFile(path).testzip() is None and set(zipfile.ZipFile(path).namelist()) == {
        "metadata.json",
        "model.weights.h5",
    }


def test_a_step_with_several_items_says_which_there_are(place):
    for item in ("params", "train_state"):
        shutil.copytree(written(place, "Orbax plain"), place / "run" / "1000" / item)
        shutil.rmtree(place / "checkpoint Orbax plain")
    with pytest.raises(InputError, match=r"it has run/1000/params, run/1000/train_state"):
        open_checkpoint((place / "run").relative_to(place))


def test_messages_are_not_cut_at_a_bracket(place):
    header = b'{"a [b] c": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}}'
    (place / "a").write_bytes(struct.pack("<Q", len(header)) + header + bytes(4))
    with pytest.raises(InputError, match=r"4 bytes for F32 of shape \[2\]$"):
        open_checkpoint(place / "a")
