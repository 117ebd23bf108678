"""A file is whole or not there, and what was not written is never read."""

import json
import math
import os
import random
import subprocess
import sys
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fault_injection.machine.files import DamagedFile, read_arrays, write_arrays, write_atomically, write_json

ARRAYS = {"params/conv1/kernel": np.array([[1.5, -0.0, np.nan]], np.float32), "count": np.int32(7)}


def same(some, others):
    """Equal in names, types, shapes and bytes."""
    described = [
        {name: (a.dtype.str, a.shape, a.tobytes()) for name, a in ((name, np.asarray(a)) for name, a in arrays.items())}
        for arrays in (some, others)
    ]
    return described[0] == described[1]


# ---- Arrays -------------------------------------------------------------------------------


@st.composite
def arrays(draw):
    """Any array of plain numbers, by its bytes, so that every NaN occurs."""
    dtype = np.dtype(draw(st.sampled_from(["?", "i1", "<i4", "<u4", "<i8", ">f4", "<f2", "<f4", "<f8", "<c8"])))
    shape = tuple(draw(st.lists(st.integers(0, 4), max_size=3)))
    size = math.prod(shape) * dtype.itemsize
    raw = draw(st.binary(min_size=size, max_size=size))
    array = np.frombuffer(raw, dtype).reshape(shape)
    return draw(st.sampled_from([array, array.T, array[..., ::-1] if shape else array]))


# Names of a state's leaves and of a record's columns.
NAMES = st.from_regex(r"[a-z_0-9]{1,9}(/[a-z_0-9.]{1,9}){0,3}", fullmatch=True).filter(
    lambda name: name not in ("file", "allow_pickle", "sha256")  # parameters of numpy.savez, and ours
)


@settings(max_examples=150)
@given(st.dictionaries(NAMES, arrays(), max_size=5))
def test_writing_then_reading_gives_the_same_arrays(tmp_path_factory, written):
    path = tmp_path_factory.getbasetemp() / "arrays.npz"
    write_arrays(path, written)
    assert same(read_arrays(path), written)


def test_no_damage_is_read_as_data(tmp_path):
    """Each single bit flipped, and each truncation: an error that names the file, or the same arrays."""
    path = tmp_path / "arrays.npz"
    write_arrays(path, ARRAYS)
    sound = path.read_bytes()
    unread = 0  # a zip file holds bytes that nobody reads: dates, permissions, copies of names

    def read():
        nonlocal unread
        try:
            assert same(read_arrays(path), ARRAYS)
            unread += 1
        except DamagedFile as error:
            assert str(error).startswith(f"{path} is damaged")

    with path.open("r+b", buffering=0) as file:  # altered in place: writing thousands of files takes long
        for at in range(len(sound)):
            for bit in range(8):
                os.pwrite(file.fileno(), bytes([sound[at] ^ 1 << bit]), at)
                read()
            os.pwrite(file.fileno(), sound[at : at + 1], at)
        assert path.read_bytes() == sound
        assert 0 < unread < 8 * len(sound) / 2
        for size in reversed(range(len(sound))):
            file.truncate(size)
            read()


ALTERED = {
    "an array renamed": {"counts": ARRAYS["count"]},
    "a bit": {"count": np.int32(6)},
    "a type": {"count": np.float32(1e-44)},  # the same bytes
    "a shape": {"count": np.array([[7]], np.int32)},
    "an array more": {"count": np.int32(7), "another": np.int32(7)},
    "an array less": {},
}


@pytest.mark.parametrize("alteration", ALTERED)
def test_the_checksum_covers_names_types_shapes_and_bytes(tmp_path, alteration):
    path = tmp_path / "x.npz"
    write_arrays(path, {"count": np.int32(7)})
    with np.load(path) as stored:
        checksum = stored["sha256"]
    np.savez(path, sha256=checksum, **ALTERED[alteration])
    with pytest.raises(DamagedFile, match=r"x\.npz is damaged \(its checksum"):
        read_arrays(path)


@pytest.mark.parametrize("content", [b"", b"\0" * 200, b"PK\3\4", b"\x93NUMPY\1\0", b"\x80\4N."])
def test_another_kind_of_file_is_damaged(tmp_path, content):
    (tmp_path / "x.npz").write_bytes(content)
    with pytest.raises(DamagedFile, match=r"x\.npz is damaged"):
        read_arrays(tmp_path / "x.npz")


def test_arrays_without_a_checksum_are_damaged(tmp_path):
    np.savez(tmp_path / "x.npz", **ARRAYS)
    with pytest.raises(DamagedFile, match=r"x\.npz is damaged"):
        read_arrays(tmp_path / "x.npz")


def test_a_missing_file_is_missing_not_damaged(tmp_path):
    with pytest.raises(FileNotFoundError):
        read_arrays(tmp_path / "x.npz")


def test_what_numpy_would_pickle_is_not_written(tmp_path):
    with pytest.raises(ValueError, match="Object arrays"):
        write_arrays(tmp_path / "x.npz", {"a": np.array([{}])})
    assert list(tmp_path.iterdir()) == []


# ---- Whole or not there -------------------------------------------------------------------

WRITER = """
import itertools, sys
from fault_injection.machine.files import write_atomically

def content(file):
    for _ in range(64):
        file.write(bytes([number % 256]) * 2**16)

for number in itertools.count():
    write_atomically(sys.argv[1], content)
    print(number, flush=True)
"""


def test_a_process_killed_while_writing_leaves_the_old_or_the_new_content(repository, tmp_path):
    path = tmp_path / "file"
    moments = random.Random(0)
    interrupted = 0
    for _ in range(8):
        command = [sys.executable, "-c", WRITER, str(path)]
        with subprocess.Popen(command, cwd=repository, stdout=subprocess.PIPE, text=True) as process:
            process.stdout.readline()  # there is an old content
            time.sleep(moments.uniform(0, 0.05))
            process.kill()
            done = [int(line) for line in process.stdout.read().split()] or [0]
        content = path.read_bytes()
        assert len(content) == 2**22 and content == content[:1] * 2**22
        assert content[0] in (done[-1] % 256, (done[-1] + 1) % 256)
        # However often it happens, at most one file is left, and what is left disturbs nobody.
        aside = {other.name for other in tmp_path.iterdir()} - {path.name}
        assert aside <= {".file.partial"}
        interrupted += bool(aside)
    assert interrupted  # else no kill came while something was being written
    write_atomically(path, lambda file: file.write(b"x"))
    assert path.read_bytes() == b"x"
    assert list(tmp_path.iterdir()) == [path]


def test_what_a_killed_writer_left_is_replaced_by_the_next_write(tmp_path):
    path = tmp_path / "file"
    (tmp_path / ".file.partial").write_bytes(b"a longer content, cut sh")
    write_atomically(path, lambda file: file.write(b"whole"))
    assert path.read_bytes() == b"whole"
    assert list(tmp_path.iterdir()) == [path]


SEVERAL_WRITERS = """
import sys
from fault_injection.machine.files import write_atomically

def content(file):
    for _ in range(16):
        file.write(sys.argv[2].encode() * 2**12)

for _ in range(200):
    write_atomically(sys.argv[1], content)
"""


def test_several_processes_write_one_file_whole(repository, tmp_path):
    path = tmp_path / "file"
    write_atomically(path, lambda file: file.write(b"0" * 2**16))
    commands = [[sys.executable, "-c", SEVERAL_WRITERS, str(path), str(number)] for number in range(1, 4)]
    processes = [subprocess.Popen(command, cwd=repository) for command in commands]
    seen = set()
    while any(process.poll() is None for process in processes):
        content = path.read_bytes()
        assert len(content) == 2**16 and content == content[:1] * 2**16
        seen.add(content[:1])
    assert [process.returncode for process in processes] == [0, 0, 0]
    assert len(seen) > 1
    assert list(tmp_path.iterdir()) == [path]


def test_an_error_while_writing_leaves_the_old_content_and_nothing_beside_it(tmp_path):
    path = tmp_path / "file"
    write_atomically(path, lambda file: file.write(b"old"))

    def fail(file):
        file.write(b"new")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_atomically(path, fail)
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_is_made_with_its_folders_and_others_may_read_it(tmp_path):
    path = tmp_path / "a" / "b" / "file"
    before = os.umask(0o022)
    try:
        write_atomically(path, lambda file: file.write(b"x"))
    finally:
        os.umask(before)
    assert path.read_bytes() == b"x"
    assert path.stat().st_mode & 0o777 == 0o644


# ---- JSON ---------------------------------------------------------------------------------


def strict(text):
    """JSON as the standard has it, in which NaN is no number."""

    def refuse(constant):
        raise AssertionError(f"{constant} is not JSON")

    return json.loads(text, parse_constant=refuse)


FLOATS = st.floats() | st.sampled_from([math.nan, math.inf, -math.inf])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | FLOATS | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


def spelled(value):
    """The value with non-finite numbers as words."""
    if isinstance(value, dict):
        return {key: spelled(item) for key, item in value.items()}
    if isinstance(value, list):
        return [spelled(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value


@settings(max_examples=200)
@given(JSON)
def test_json_is_strict_and_says_what_was_written(tmp_path_factory, value):
    path = tmp_path_factory.getbasetemp() / "value.json"
    write_json(path, value)
    assert strict(path.read_bytes()) == spelled(value)


def test_json_takes_the_numbers_that_numpy_returns(tmp_path):
    value = {"a": np.float32(0.5), 1: (np.int64(2), np.bool_(True)), "b": np.float32("nan"), "c": [np.float64("-inf")]}
    write_json(tmp_path / "x.json", value)
    expected = {"a": 0.5, "1": [2, True], "b": "NaN", "c": ["-Infinity"]}
    assert strict((tmp_path / "x.json").read_text(encoding="utf-8")) == expected


def test_json_takes_a_file_name_that_is_not_utf_8(tmp_path):
    name = b"caf\xe9.csv".decode("utf-8", "surrogateescape")  # as it comes from the command line
    write_json(tmp_path / "x.json", {"command": name})
    assert strict((tmp_path / "x.json").read_text(encoding="utf-8")) == {"command": name}
