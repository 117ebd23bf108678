"""Whatever is wrong with a checkpoint or a log: one line and exit code 2, nothing written, no memory taken."""

import json
import os
import pathlib
import random
import resource
import shutil

import pytest
from command_line import said
from mutations import KINDS, json_of, mutate, source

from fault_injection.checkpoints.formats import open_checkpoint

MEMORY = 2 << 30  # bytes of addresses that reading a small file may take
MANY = int(os.environ.get("MUTATIONS", "100"))  # of each kind; 1000 take some minutes
COUNTS = [10, pytest.param(MANY, marks=pytest.mark.slow)]


@pytest.fixture(autouse=True)
def _little_memory(monkeypatch):
    """A process that asks for much more memory gets none; and nothing waits for the disk."""
    monkeypatch.setattr("os.fsync", lambda handle: None)
    before = resource.getrlimit(resource.RLIMIT_AS)
    now = int(pathlib.Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + MEMORY, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


def grown():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("count", COUNTS)
def test_a_damaged_checkpoint_is_answered_in_one_line(tmp_path, monkeypatch, capsys, kind, count):
    monkeypatch.chdir(tmp_path)
    sound, damaged, out = source(tmp_path, kind), tmp_path / "damaged", tmp_path / "out"
    before, refused = grown(), 0
    for number in range(count):
        mutate(sound, damaged, kind, number)
        content = damaged.read_bytes() if damaged.is_file() else None
        how = ("--share", "1") if number % 5 == 0 else ("--count", "1")
        code, told, err = said(capsys, "alter", damaged, "--out", out, "--log", "log.json", *how, "--seed", number)
        assert code == 2 or (code, err) == (0, ""), (number, code, err)
        if code == 2:
            assert (told, err.count("\n")) == ("", 1) and len(err) < 2200, (number, err)
            assert not out.exists() and not (tmp_path / "log.json").exists(), number
            refused += 1
        else:
            open_checkpoint(out)
            (tmp_path / "log.json").unlink()
            out.unlink() if out.is_file() else shutil.rmtree(out)
        code, told, err = said(capsys, "diff", sound, damaged)
        assert code in (0, 1, 2) and err.count("\n") == (code == 2), (number, code, err)
        assert content is None or damaged.read_bytes() == content
    left = {path.name for path in tmp_path.iterdir()} - {sound.name, "damaged"}
    assert not left
    assert refused >= count / 5
    assert grown() - before < 512 << 20


LOGS = {
    "ours": lambda folder: (folder / "log.json").read_bytes(),
    "published": lambda folder: json.dumps({"params/fc/kernel": [[[0, 3], [30]], [[1, 2], [1, 2]]]}).encode(),
    "a mapping": lambda folder: b'{"params/fc/bias": {"name": "params/fc/bias", "axes": [0]}, "a": "b"}',
}


@pytest.mark.parametrize("what", LOGS)
@pytest.mark.parametrize("count", [50, pytest.param(MANY, marks=pytest.mark.slow)])
def test_a_damaged_log_is_answered_in_one_line(tmp_path, monkeypatch, capsys, what, count):
    monkeypatch.chdir(tmp_path)
    source(tmp_path, "npz").rename("a.npz")
    assert said(capsys, "alter", "a.npz", "--out", "b.npz", "--count", 4, "--log", "log.json")[0] == 0
    content, before, refused = LOGS[what](tmp_path), grown(), 0
    for number in range(count):
        (tmp_path / "damaged").write_bytes(json_of(content, random.Random(f"{what} {number}")))
        how = ("--replay", "log.json", "--mapping", "damaged") if what == "a mapping" else ("--replay", "damaged")
        code, told, err = said(capsys, "alter", "a.npz", "--out", "c.npz", *how)
        assert code == 2 or (code, err) == (0, ""), (number, err)
        if code == 2:
            assert (told, err.count("\n")) == ("", 1) and not (tmp_path / "c.npz").exists(), (number, err)
            refused += 1
        else:
            (tmp_path / "c.npz").unlink()
    assert refused >= count / 3
    assert {path.name for path in tmp_path.iterdir()} == {"a.npz", "b.npz", "log.json", "damaged"}
    assert grown() - before < 512 << 20


def test_a_log_that_was_planned_is_not_believed(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    source(tmp_path, "npz").rename("a.npz")
    assert said(capsys, "alter", "a.npz", "--out", "b.npz", "--log", "log.json")[0] == 0
    text = (tmp_path / "log.json").read_text()
    (tmp_path / "planned.json").write_text(text.replace('"done"', '"planned"', 1))
    code, _, err = said(capsys, "alter", "a.npz", "--out", "c.npz", "--replay", "planned.json")
    assert (code, err.count("\n")) == (2, 1) and "not that it was done" in err
    (tmp_path / "odd.json").write_text(text.replace('"done"', '"dome"', 1))
    assert (
        "state 'dome', expected one of planned, done"
        in said(capsys, "alter", "a.npz", "--out", "c.npz", "--replay", "odd.json")[2]
    )
