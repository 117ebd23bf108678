"""The command `alter`: what it writes, what it says, and what it refuses."""

import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from checkpoints import written
from command_line import said
from killed import start
from mutations import source

from fault_injection.checkpoints.alteration import Selection, draw_alteration
from fault_injection.checkpoints.formats import open_checkpoint
from fault_injection.checkpoints.log import apply, read_log, write_log
from fault_injection.machine.errors import InputError

pytestmark = pytest.mark.usefixtures("compiled_quickly")

# The command.


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    written(tmp_path, "npz").rename("a.npz")
    return tmp_path


def test_alter_and_its_log_give_the_file_back(place, capsys):
    before = (place / "a.npz").read_bytes()
    assert said(capsys, "alter", "a.npz", "--out", "b.npz", "--count", 10, "--log", "log.json")[0] == 0
    assert (place / "b.npz").read_bytes() != before
    code, out, _ = said(capsys, "diff", "a.npz", "b.npz", "--json", "--picture", "d.png")
    found = json.loads(out)
    assert (code, sum(one["changed"] for one in found["arrays"])) == (0, 10)
    assert (place / "d.png").stat().st_size > 5000
    assert said(capsys, "alter", "b.npz", "--in-place", "--replay", "log.json")[0] == 0
    assert (place / "b.npz").read_bytes() == before


def test_in_place_keeps_the_mode_and_replaces_what_a_link_leads_to(place, capsys):
    (place / "a.npz").chmod(0o400)
    (place / "link.npz").symlink_to("a.npz")
    before = (place / "a.npz").read_bytes()
    assert said(capsys, "alter", "link.npz", "--in-place", "--names", "params/fc/kernel")[0] == 0
    assert (place / "link.npz").is_symlink() and (place / "a.npz").read_bytes() != before
    assert (place / "a.npz").stat().st_mode & 0o777 == 0o400


def test_without_its_log_nothing_is_altered(place, capsys):
    (place / "f").touch()
    before = (place / "a.npz").read_bytes()
    code, _, err = said(capsys, "alter", "a.npz", "--in-place", "--log", "f/log.json")
    assert (code, err.count("\n")) == (2, 1) and (place / "a.npz").read_bytes() == before


def test_a_name_with_brackets_names_itself(place, capsys):
    name = "['opt_state'][0].mu['w']"
    np.savez(place / "keystr.npz", **{name: np.ones(3, np.float32), "['params']['w']": np.ones(3, np.float32)})
    for how in (["--names", name], ["--part", "optimizer"]):
        code, out, err = said(capsys, "alter", "keystr.npz", "--check", "--json", *how)
        assert (code, json.loads(out)["by_array"]) == (0, {name: 1}), err


def test_a_difference_from_zeros_is_finite(place, capsys):
    np.savez(place / "zeros.npz", w=np.zeros(3, np.float32))
    np.savez(place / "one.npz", w=np.float32([0, 1, 0]))
    assert "of zeros" in said(capsys, "diff", "zeros.npz", "one.npz")[1]


def test_differences_of_any_size_are_drawn(place, capsys):
    """Of 10³⁸ times the array, infinite, in one array, in none."""
    for number, how in enumerate((["--critical"], ["--value", "inf"], ["--bits", 0], [])):
        path = f"b{number}.npz" if how else "a.npz"
        if how:
            assert said(capsys, "alter", "a.npz", "--out", path, "--names", "params/fc/kernel", *how)[0] == 0
        assert said(capsys, "diff", "a.npz", path, "--picture", f"d{number}.png")[0] == 0
        assert (place / f"d{number}.png").stat().st_size > 5000


def test_check_writes_nothing(place, capsys):
    code, out, _ = said(capsys, "alter", "a.npz", "--check", "--share", 0.1, "--json")
    assert (code, json.loads(out)["altered"]) == (0, round(0.1 * json.loads(out)["elements"]))
    assert [path.name for path in place.iterdir()] == ["a.npz"]


MISTAKES = {
    "alter a.npz": "expected --out NEW, --in-place or --check",
    "alter a.npz --out a.npz": "exists already",
    "alter a.npz --out b.npz --in-place": "exclude each other",
    "alter b.npz --check": "no such file",
    "alter a.npz --check --names params/fc/kernle": "did you mean 'params/fc/kernel'?",
    "alter a.npz --check --names opt_state/step": "matches no array of floating-point numbers",
    "alter a.npz --check --bits 40": "has 32 bits",
    "alter a.npz --check --bits 4-2": "expected bits such as 0-22",
    "alter a.npz --check --bits 0-3 --burst 5": "only 4 bits",
    "alter a.npz --check --mask 1ffffffff": "has 32 bits",
    "alter a.npz --out b.npz --log ./a.npz": "--log exists already",
    "alter a.npz --out b.npz --log ./b.npz": "are the same file",
    "alter a.npz --check --critical --burst 2": "--burst belongs to bits that are drawn",
    "alter a.npz --check --count 1000000": "the arrays have",
    "alter a.npz --check --share 1.5": "at most 1 (one percent is 0.01)",
    "alter a.npz --check --bits 31 --keep-sign --names params/*kernel": "none of 200 draws is allowed",
    "alter a.npz --check --replay a.npz": "not a log of alterations",
    "alter a.npz --check --replay log.json --count 3": "does not go with --replay",
    "alter a.npz --check --mapping m.json": "belongs to --replay",
    "alter a.npz --check --most-significant-first": "says how --bits or --mask are counted",
    "alter a.npz --check --names opt_state/step --names params/*": "matches no array of floating-point numbers",
    "diff a.npz b.npz": "no such file",
    "diff a.npz a.npz --picture p.txt": "expected a file .png",
}


@pytest.mark.parametrize("command", MISTAKES)
def test_a_mistake_is_answered_in_one_line(place, capsys, command):
    before = (place / "a.npz").read_bytes()
    code, out, err = said(capsys, *command.split())
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert MISTAKES[command] in err
    assert (place / "a.npz").read_bytes() == before
    assert [path.name for path in place.iterdir()] == ["a.npz"]


BAD_LOGS = {
    '{"version": 2, "alterations": []}': "version 2, expected 1",
    "[]": "expected an object",
    '{"params/fc/kernel": [[[0, 3]], []]}': "1 indexes and 0 bits",
    '{"params/fc/kernel": [[[40, 3]], [1]]}': "an element beside it",
    '{"params/fc/bias": [[7], [1]]}': "alters element 7, there are 7",
    '{"params/fc/bias": [[1], [16]]}': "has 16 bits, and the log inverts a higher one",
    '{"params/fc/bias": [[1, 1], [1, 2]]}': "alters an element twice",
    '{"params/fc/bais": [[1], [1]]}': "did you mean 'params/fc/bias'?",
    '{"params/fc/bias": [[[], [1]], [[2], [1]]]}': "an entry has no index",
    '{"params/fc/bias": [[[1], [-2]]]}': "expected bits from 0 to 63",
    '{"opt_state/step": [[[], [1]]]}': "an entry has no index",
    '{"params/fc/bias": 3}': "expected what `alter --log` writes, or {location: [[indexes, bits], …]}",
    '{"version": 1, "alterations": [{"name": "params/fc/bias"}]}': "an alteration has no 'dtype'",
    "{}": "the log alters nothing",
}


@pytest.mark.parametrize("text", BAD_LOGS)
def test_a_wrong_log_is_answered_in_one_line(place, capsys, text):
    (place / "log.json").write_text(text)
    code, _, err = said(capsys, "alter", "a.npz", "--replay", "log.json", "--out", "b.npz")
    assert (code, err.count("\n")) == (2, 1)
    assert BAD_LOGS[text] in err
    assert not (place / "b.npz").exists()


@pytest.mark.parametrize("kind", ["npz", "npz compressed", "safetensors", "HDF5", "PyTorch", "msgpack", "Orbax plain"])
def test_a_full_disk_leaves_nothing(tmp_path, kind):
    """A file may be no longer than a half of what it has to be: the system refuses to write on."""
    arrays = {"a": np.random.default_rng(0).normal(size=100_000).astype(np.float32)}
    source = written(tmp_path, kind, arrays)
    before = source.read_bytes() if source.is_file() else None
    alter = [sys.executable, "-m", "fault_injection", "alter", str(source), "--out", str(tmp_path / "out")]
    limited = ["sh", "-c", 'ulimit -f 300; exec "$@"', "sh", *alter]  # blocks of 512 bytes
    done = subprocess.run(limited, capture_output=True, text=True, check=False)
    assert done.returncode == 2, done.stderr
    assert done.stderr.count("\n") == 1
    assert {path.name for path in tmp_path.iterdir()} == {source.name}
    assert before is None or source.read_bytes() == before


@pytest.mark.parametrize("kind", ["npz", "Orbax plain"])
def test_killed_while_writing_the_next_command_finds_nothing_in_its_way(tmp_path, kind):
    arrays = {f"a{k}": np.random.default_rng(k).normal(size=1_000_000).astype(np.float32) for k in range(6)}
    source = written(tmp_path, kind, arrays)
    command = [sys.executable, "-m", "fault_injection", "alter", str(source), "--out", str(tmp_path / "out")]
    caught = 0
    for attempt in range(6):
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, env={**os.environ})
        deadline = time.monotonic() + 20
        while process.poll() is None and time.monotonic() < deadline:
            if any(path.name.startswith(".out.partial") for path in tmp_path.iterdir()):
                process.kill()
        process.wait()
        if (tmp_path / "out").exists():
            break
        caught += 1
    assert caught
    if not (tmp_path / "out").exists():
        subprocess.run(command, check=True, capture_output=True)
    assert {path.name for path in tmp_path.iterdir()} == {source.name, "out"}
    for name, array in arrays.items():
        assert np.array_equal(open_checkpoint(source).array(name), array)


POINTS = [("npz", 16)] + [
    pytest.param(*each, marks=pytest.mark.slow)
    for each in [
        ("npz", -2),
        ("safetensors", 9),
        ("HDF5 in chunks", 12),
        ("msgpack", 12),
        ("sharded", 6),
        ("PyTorch", 9),
    ]
]


@pytest.mark.parametrize("kind, every", POINTS)
def test_ended_at_any_call_file_and_log_agree_and_the_same_command_goes_on(tmp_path, repository, kind, every):
    """By SIGKILL, SIGTERM and SIGINT, in place and to a new file, with a log and without."""
    (tmp_path / "work").mkdir()
    (tmp_path / "source").mkdir()
    script = [
        sys.executable,
        "tests/alter_crash_points.py",
        source(tmp_path / "source", kind),
        tmp_path / "work",
        every,
    ]
    paths = os.pathsep.join([str(repository), str(repository / "tests")])
    done = subprocess.run(
        list(map(str, script)),
        cwd=repository,
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert int(done.stdout) >= 20


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_process_that_is_ended_while_it_alters_in_place_leaves_what_its_log_says(tmp_path, repository, number):
    arrays = {f"a{k}": np.random.default_rng(k).normal(size=1_000_000).astype(np.float32) for k in range(6)}
    path, log = written(tmp_path, "ours", arrays), tmp_path / "log.json"
    before = path.read_bytes()
    command = ("alter", path, "--in-place", "--log", log, "--count", 20)
    process = start(tmp_path / "said", repository, *command)
    while process.poll() is None and not log.exists():
        time.sleep(0.001)
    os.kill(process.pid, number)
    code = process.wait()
    assert code in (0, -number, 143, 130), (tmp_path / "said").read_text()
    if path.read_bytes() == before:
        assert '"planned"' in log.read_text()[:40]
        with pytest.raises(InputError, match="not that it was done"):
            read_log(log)
    again = start(tmp_path / "said", repository, *command)
    assert again.wait() == 0, (tmp_path / "said").read_text()
    located = apply(read_log(log), open_checkpoint(path), {})
    assert (located.before, located.after) == (0, 20)
    assert {each.name for each in tmp_path.iterdir()} == {path.name, "log.json", "said"}


def test_the_same_command_again_alters_nothing_twice(place, capsys):
    for how in (("--in-place",), ("--out", "b.npz")):
        command = ("alter", "a.npz", *how, "--count", 3, "--log", f"{how[-1][-5:]}.json")
        assert said(capsys, *command)[0] == 0
        after = {path.name: path.read_bytes() for path in place.iterdir()}
        code, out, _ = said(capsys, *command)
        assert code == 0 and "was written already, by the same command" in out
        assert {path.name: path.read_bytes() for path in place.iterdir()} == after
        code, _, err = said(capsys, *command, "--seed", 1)
        assert code == 2 and "--log exists already" in err
    np.savez(place / "a.npz", **{"params/fc/kernel": np.ones(3, np.float32)})
    code, _, err = said(capsys, "alter", "a.npz", "--in-place", "--count", 3, "--log", "place.json")
    assert (code, err.count("\n")) == (2, 1)


def test_another_file_of_the_same_name_is_not_taken_for_what_was_altered(place, capsys):
    """A checkpoint, or a log to replay, that was written anew since the same command was given first."""
    command = ("alter", "a.npz", "--out", "b.npz", "--log", "log.json")
    assert said(capsys, *command)[0] == 0
    replay = ("alter", "b.npz", "--in-place", "--log", "back.json", "--replay", "log.json")
    assert said(capsys, *replay)[0] == said(capsys, *replay)[0] == 0
    assert said(capsys, "alter", "a.npz", "--out", "c.npz", "--log", "other.json", "--seed", 2)[0] == 0
    (place / "other.json").replace(place / "log.json")
    code, _, err = said(capsys, *replay)
    assert (code, err.count("\n")) == (2, 1) and "--log exists already" in err
    (place / "log.json").unlink()
    code, _, err = said(capsys, *replay)
    assert (code, err) == (2, "log.json: No such file or directory\n")
    (place / "b.npz").unlink()
    assert said(capsys, *command)[0] == 0
    assert said(capsys, "alter", "a.npz", "--in-place", "--replay", "log.json")[0] == 0
    code, _, err = said(capsys, *command)
    assert (code, err.count("\n")) == (2, 1) and "altered from another a.npz" in err


def test_what_another_alteration_has_left_is_named(place, capsys):
    checkpoint = open_checkpoint(place / "a.npz")
    altered = draw_alteration(checkpoint, Selection(seed=5))
    write_log(place / ".a.npz.alteration", checkpoint, altered, {"asked": 5}, "planned")
    for more in ((), ("--log", "log.json")):
        code, _, err = said(capsys, "alter", "a.npz", "--in-place", *more)
        assert (code, err.count("\n")) == (2, 1) and ".a.npz.alteration: is what" in err
    assert said(capsys, "alter", "a.npz", "--check")[0] == 0


def test_alterations_that_are_impossible_are_refused():
    with pytest.raises(InputError, match="no array of floating-point numbers of the optimizer"):
        from fault_injection.checkpoints.alteration import chosen
        from fault_injection.checkpoints.checkpoint import Described

        chosen({"params/a": Described((2,), np.dtype(np.float32))}, Selection(part="optimizer"))
