"""TensorFlow's checkpoints, written by hand and by TensorFlow: read, altered, and their checksums renewed."""

import json
import random
import shutil

import ml_dtypes
import numpy as np
import pytest
import tensorflow_files
from checkpoints import some_arrays
from command_line import said
from mutations import bytes_of
from tensorflow_files import entry, field, table, write_tensorflow

from fault_injection.checkpoints.formats import open_checkpoint
from fault_injection.checkpoints.tensor_table import fields, masked, read_table
from fault_injection.machine.errors import InputError

KEY = "params/conv1/kernel"


def arrays():
    return {
        **some_arrays(),
        "bf": np.arange(6).astype(ml_dtypes.bfloat16).reshape(2, 3),
        "none": np.zeros((0, 3), "f4"),
    }


OTHERS = {
    "_CHECKPOINTABLE_OBJECT_GRAPH": (7, (), b"\x04\x01\x02\x03\x04text"),
    "z": (8, (2,), np.ones(2, "c8").tobytes()),
    "resource": (20, (), b"abc"),
}


@pytest.fixture(params=[(1, False), (3, False), (2, True)], ids=["one file", "three files", "big-endian"])
def folder(request, tmp_path):
    (tmp_path / "saved").mkdir()
    write_tensorflow(tmp_path / "saved" / "model", arrays(), *request.param, others=OTHERS)
    return tmp_path / "saved", request.param


def test_arrays_are_read_and_what_is_none_is_raw(folder):
    path, _ = folder
    for named in (path, path / "model.index"):
        found = open_checkpoint(named)
        assert found.format == "TensorFlow" and set(found.raw) == set(OTHERS)
        for name, array in arrays().items():
            assert found.arrays[name].dtype == array.dtype and found.array(name).tobytes() == array.tobytes()
        assert b"".join(found.content("z")) == OTHERS["z"][2]


def test_an_altered_copy_is_the_file_that_would_have_been_written(folder, tmp_path, capsys):
    """Every byte: data, the checksum of each tensor, and those of the index; undone, it is the first one again."""
    path, how = folder
    command = ("alter", path, "--out", tmp_path / "altered", "--count", 40, "--log", tmp_path / "log.json")
    assert said(capsys, *command)[0] == 0
    expected = arrays()
    for row in json.loads((tmp_path / "log.json").read_text())["alterations"]:
        array = expected[row["array"] if "array" in row else row["name"]]
        words = array.reshape(-1).view(f"u{array.itemsize}")
        at = np.ravel_multi_index(row["index"], array.shape) if array.shape else 0
        words[at] ^= words.dtype.type(int(row["before"], 16) ^ int(row["after"], 16))
    (tmp_path / "expected").mkdir()
    write_tensorflow(tmp_path / "expected" / "model", expected, *how, others=OTHERS)
    names = sorted(one.name for one in path.iterdir())
    assert names == sorted(one.name for one in (tmp_path / "altered").iterdir())
    for name in names:
        assert (tmp_path / "altered" / name).read_bytes() == (tmp_path / "expected" / name).read_bytes(), name
    undo = ("alter", tmp_path / "altered", "--out", tmp_path / "undone", "--replay", tmp_path / "log.json")
    assert said(capsys, *undo)[0] == 0
    assert all((tmp_path / "undone" / name).read_bytes() == (path / name).read_bytes() for name in names)


def test_a_tensor_whose_checksum_is_wrong_is_not_given_a_right_one(folder, tmp_path, capsys):
    path, _ = folder
    for data in path.glob("*.data-*"):
        content = bytearray(data.read_bytes())
        content[:] = bytes(byte ^ 1 for byte in content)
        data.write_bytes(content)
    code, out, err = said(capsys, "alter", path, "--out", tmp_path / "altered", "--names", KEY)
    assert (code, out, err.count("\n")) == (2, "", 1) and f"the checksum of {KEY} in model.index is not that" in err
    assert not (tmp_path / "altered").exists()


MISTAKES = {
    "several indexes": (lambda path: shutil.copy(path / "model.index", path / "b.index"), "has several indexes"),
    "no data": (lambda path: (path / "model.data-00000-of-00001").unlink(), "is missing, in which model.index says"),
    "short data": (lambda path: (path / "model.data-00000-of-00001").write_bytes(b"abc"), "ends at byte"),
    "a slice": (
        lambda path: (path / "model.index").write_bytes(table({b"": field(1, 1), b"w": field(1, 1) + field(7, b"")})),
        "w is saved in slices",
    ),
    "in each other": (
        lambda path: (path / "model.index").write_bytes(
            table({b"": field(1, 1), b"a": entry(1, (2,), 0, 0, bytes(8)), b"b": entry(1, (2,), 0, 4, bytes(8))})
        ),
        "a and b lie in each other",
    ),
    "another size": (
        lambda path: (path / "model.index").write_bytes(
            table({b"": field(1, 1), b"a": entry(1, (3,), 0, 0, bytes(8))})
        ),
        "a has 8 bytes for float32 of shape [3]",
    ),
    "no header": (lambda path: (path / "model.index").write_bytes(table({b"a": b""})), "it has no header"),
    "a file beyond": (
        lambda path: (path / "model.index").write_bytes(table({b"": field(1, 1), b"a": entry(1, (), 4, 0, bytes(4))})),
        "a is in file 4 of 1",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_one_line(tmp_path, mistake):
    write_tensorflow(tmp_path / "model", arrays())
    change, expected = MISTAKES[mistake]
    change(tmp_path)
    with pytest.raises(InputError) as error:
        open_checkpoint(tmp_path)
    assert expected in str(error.value) and "\n" not in str(error.value)


def test_the_prefix_alone_and_the_data_are_answered_with_the_index(tmp_path):
    write_tensorflow(tmp_path / "model", arrays())
    with pytest.raises(InputError, match=r"no such file or folder; did you mean .*model\.index\?"):
        open_checkpoint(tmp_path / "model")
    with pytest.raises(InputError, match=r"name its index, model\.index"):
        open_checkpoint(tmp_path / "model.data-00000-of-00001")


def test_an_index_that_lies_with_sound_checksums_is_read_or_refused_in_one_line(tmp_path, capsys):
    """300 indexes of which values, keys or blocks are damaged before their checksums are made."""
    write_tensorflow(tmp_path / "model", arrays(), others=OTHERS)
    index = tmp_path / "model.index"
    content, refused = index.read_bytes(), 0
    import google_crc32c

    sound = {one.key: content[one.begin : one.end] for one in read_table(content, google_crc32c.extend)}
    for seed in range(300):
        rng = random.Random(seed)
        values = dict(sound)
        key = rng.choice(list(values))
        match rng.randrange(3):
            case 0:
                values[key] = bytes_of(values[key] or b"x", rng)
            case 1:
                values[bytes_of(key or b"x", rng)] = values.pop(key)
            case 2:
                places = [field(3, rng.choice([0, 1, 2**31])), field(4, rng.choice([0, 8, 2**40, 2**64 - 1]))]
                values[key] = values[key] + b"".join(places) + field(2, field(2, field(1, rng.choice([0, 2**62]))))
        index.write_bytes(table(values, rng.choice([1, 3, 50]), rng.choice([1, 4])))
        code, _, err = said(capsys, "diff", tmp_path, tmp_path)
        assert code in (0, 1, 2) and err.count("\n") == (code == 2), (seed, err)
        refused += code == 2
    assert refused > 100


def test_the_mask_and_the_crc_are_those_of_the_package():
    import google_crc32c

    for content in (b"", b"123456789", bytes(range(256))):
        assert tensorflow_files.crc32c(content) == google_crc32c.value(content)
        assert masked(google_crc32c.value(content)) == tensorflow_files.masked(content).to_bytes(4, "little")
    assert tensorflow_files.crc32c(b"123456789") == 0xE3069283  # the check value of the polynomial
    assert [one for one, _, _ in fields(field(3, 5) + field(9, b"ab"), 0, 6)] == [3, 9]
