"""`challenge`: a safeguard is asked about flips that it is known to notice, or not; and what it cannot be asked."""

import hashlib
import json
import random
import shlex
import sys
import time

import log_files
import mutations
import numpy as np
import pytest
from checkpoints import WRITERS, written

from fault_injection.checkpoints.alteration import Selection, draw_alteration
from fault_injection.checkpoints.challenge import COPY, OUTPUT, STORE
from fault_injection.checkpoints.formats import open_checkpoint
from fault_injection.checkpoints.log_numbers import LogNumbers
from fault_injection.commands.main import main
from fault_injection.logs.families import read_log

# A safeguard that says no where an element is beyond 10, is NaN, or the exponent's highest bit is set.
SAFEGUARD = """
import sys, numpy
arrays = numpy.load(sys.argv[1])
worst = max(float(numpy.abs(arrays[name]).max()) if arrays[name].size else 0.0 for name in arrays)
sys.exit(0 if worst < 10 else 5)
"""


@pytest.fixture
def path(tmp_path):
    rng = np.random.default_rng(0)
    arrays = {name: rng.normal(0, 0.05, 500).astype(np.float32) for name in ("a", "b")}
    np.savez(tmp_path / "c.npz", **arrays)
    return tmp_path / "c.npz"


def python(folder, source, name="safeguard.py"):
    """A command that runs a program on {}."""
    (folder / name).write_text(source)
    return f"{shlex.quote(sys.executable)} {shlex.quote(str(folder / name))} {{}}"


def challenge(path, command, *arguments, out="out"):
    return main(["challenge", str(path), "--command", command, "--out", str(path.parent / out), *map(str, arguments)])


def test_what_is_noticed_is_what_the_safeguard_says_of_each_altered_file(path, tmp_path, capsys):
    """The oracle draws each alteration again, as `alter --seed` does, and looks at the largest element."""
    assert challenge(path, python(tmp_path, SAFEGUARD), "--count", 24, "--bits", "26-31", "--seed", 40, "--json") == 0
    answer = json.loads(capsys.readouterr().out)
    opened, noticed = open_checkpoint(path), 0
    for k, one in enumerate(answer["attempts"]):
        ((name, change),) = draw_alteration(opened, Selection(count=1, bits=(26, 31), seed=40 + k)).items()
        assert (one["array"], one["element"]) == (name, [int(change.places[0])])
        assert (
            int(one["before"], 16) ^ int(one["after"], 16) == 1 << one["bit"] == int(change.before[0] ^ change.after[0])
        )
        bad = not abs(float(change.after.view(np.float32)[0])) < 10
        assert (one["verdict"], one["code"]) == (("noticed", 5) if bad else ("unnoticed", 0))
        noticed += bad
    assert 0 < noticed < 24 and answer["noticed"]["found"] == noticed
    assert sum(one["total"] for one in answer["by_bit"].values()) == 24
    assert sum(one["found"] for one in answer["by_array"].values()) == noticed
    assert answer["noticed"]["low"] < noticed / 24 < answer["noticed"]["high"]


def test_it_goes_on_where_it_stopped_and_repeats_nothing(path, tmp_path, capsys):
    counting = "import sys\nopen(sys.argv[1] + '.runs', 'a').write('x')\n"
    command = python(tmp_path, counting)
    runs = tmp_path / "out" / COPY / "c.npz.runs"
    assert challenge(path, command, "--count", 3) == 0 and len(runs.read_text()) == 4  # one of them is not altered
    store = tmp_path / "out" / STORE
    content = store.read_bytes()
    store.write_bytes(content[:-9])  # killed while it wrote
    assert challenge(path, command, "--count", 5) == 0 and len(runs.read_text()) == 7
    assert store.read_bytes().startswith(content[: content[:-1].rfind(b"\n")])
    capsys.readouterr()
    assert challenge(path, command, "--count", 5, "--json") == 0 and len(runs.read_text()) == 7
    kept = [json.loads(line) for line in store.read_text().splitlines()][1:]
    assert json.loads(capsys.readouterr().out)["attempts"] == kept and len(kept) == 5
    assert challenge(path, command, "--count", 5, "--seed", 1) == 2
    assert "attempts of another challenge (wanted differ)" in capsys.readouterr().err
    np.savez(path, a=np.ones(3))
    assert challenge(path, command, "--count", 5) == 2
    assert "(checkpoint differ)" in capsys.readouterr().err


def test_a_pattern_notices_too(path, tmp_path, capsys):
    source = SAFEGUARD.replace("sys.exit(0 if worst < 10 else 5)", "print('fine' if worst < 10 else 'WARNING: large')")
    command = python(tmp_path, source)
    assert challenge(path, command, "--count", 4, "--critical", "--noticed", "^WARN") == 0
    assert "4 of 4 flips noticed" in capsys.readouterr().out
    assert challenge(path, command, "--count", 4, "--critical", out="other") == 0
    assert "0 of 4 flips noticed" in capsys.readouterr().out


@pytest.mark.parametrize(
    "source, arguments, said",
    [
        ("import sys; sys.exit(1)", (), "not altered is noticed: exit code 1; expected exit code 0"),
        ("print('WARN')", ("--noticed", "WARN"), "not altered is noticed: WARN"),
        ("import time; time.sleep(60)", ("--limit", "0.5"), "not altered is timed out: after 0.5 s"),
        ("import os; os.kill(os.getpid(), 9)", (), "not altered is noticed: exit code -9"),
    ],
)
def test_a_command_that_is_not_content_with_what_is_sound_is_refused(path, tmp_path, capsys, source, arguments, said):
    assert challenge(path, python(tmp_path, source), "--count", 3, *arguments) == 2
    out, err = capsys.readouterr()
    assert said in err and len(err.splitlines()) == 1 and out == ""
    assert (tmp_path / "out" / STORE).read_bytes().count(b"\n") == 1  # what it was about, and no attempt
    assert challenge(path, python(tmp_path, SAFEGUARD, "another.py"), "--count", 1) == 0


def test_a_run_that_takes_too_long_is_ended_with_what_it_started(path, tmp_path, capsys):
    """Its child, too; and it is counted by itself, not as noticed."""
    beats = tmp_path / "beats"
    child = f"import time\nwhile True:\n    open({str(beats)!r}, 'a').write('x')\n    time.sleep(0.05)\n"
    started = f"import subprocess, time\nsubprocess.Popen([sys.executable, '-c', {child!r}])\ntime.sleep(60)"
    source = SAFEGUARD.replace("sys.exit(0 if worst < 10 else 5)", f"if not worst < 10:\n    exec({started!r})")
    assert challenge(path, python(tmp_path, source), "--count", 1, "--critical", "--limit", "3") == 0
    assert "0 of 1 flips noticed" in (out := capsys.readouterr().out) and "1 timed out" in out
    size = beats.stat().st_size
    time.sleep(0.5)
    assert size > 0 and beats.stat().st_size == size


@pytest.mark.parametrize("kind", [kind for kind in WRITERS if kind != "HDF5 in chunks"])
def test_every_format_is_altered_and_never_the_original(tmp_path, capsys, kind):
    path = written(tmp_path, kind)
    command = f"{shlex.quote(sys.executable)} -m fault_injection diff {shlex.quote(str(path))} {{}}"

    def digest():
        files = sorted(one for one in ([path] if path.is_file() else path.rglob("*")) if one.is_file())
        return [hashlib.sha256(one.read_bytes()).hexdigest() for one in files]

    before = digest()
    assert challenge(path, command, "--count", 2, "--noticed", "^1 elements differ, in 1 bits") == 0
    assert "2 of 2 flips noticed" in capsys.readouterr().out and digest() == before


@pytest.mark.parametrize(
    "arguments, said",
    [
        (["--command", "true"], "expected {} where the altered file's path belongs"),
        (["--command", "true '{}"], "No closing quotation"),
        (["--command", "no-such-command {}"], "'no-such-command' cannot be run"),
        (["--command", "true {}", "--names", "x"], "--names 'x' matches no array"),
        (["--command", "true {}", "--noticed", "("], "is no regular expression"),
        (["--command", "true {}", "--limit", "0"], "expected seconds above 0"),
        (["--command", "true {}", "--bits", "40"], "has 32 bits"),
        (["--command", "true {}", "--out", "FILE"], "--out is a file"),
    ],
)
def test_what_cannot_be_asked_is_refused_in_one_line(path, tmp_path, capsys, arguments, said):
    places = {"FILE": str(path)}
    out = [] if "--out" in arguments else ["--out", str(tmp_path / "out")]
    before = path.read_bytes()
    assert main(["challenge", str(path), *[places.get(one, one) for one in arguments], *out]) == 2
    out, err = capsys.readouterr()
    assert said in err and len(err.splitlines()) == 1 and out == "" and path.read_bytes() == before


@pytest.mark.parametrize("there", [COPY, OUTPUT, STORE, f"{COPY}/c.npz"])
def test_what_is_there_and_of_no_challenge_is_left_alone(path, tmp_path, capsys, there):
    precious = tmp_path / "out" / there
    precious.parent.mkdir(parents=True)
    precious.write_text('{"precious": 1}\n')
    assert challenge(path, "true {}", "--count", 2) == 2
    err = capsys.readouterr().err
    assert precious.read_text() == '{"precious": 1}\n' and "choose another --out" in err and err.count("\n") == 1


@pytest.mark.parametrize(("where", "given"), [("", "c"), ("c", "."), ("c/inner", ".."), ("", "link")])
def test_only_the_copy_is_removed_however_the_checkpoint_is_called(tmp_path, monkeypatch, where, given):
    """A folder called `.` or `..` has another name; files of the person's in --out stay, and those of the command."""
    folder, out = written(tmp_path, "Orbax plain").rename(tmp_path / "c"), tmp_path / "deep" / "out"
    (folder / "inner").mkdir()
    (tmp_path / "link").symlink_to(folder)
    out.mkdir(parents=True)
    for precious in (out / "precious", out.parent / "precious"):
        precious.write_text("mine")
    command = python(tmp_path, "import sys, pathlib; pathlib.Path(sys.argv[1]).with_name('left').touch()")
    monkeypatch.chdir(tmp_path / where)
    assert main(["challenge", given, "--command", command, "--out", str(out), "--count", "2"]) == 0
    left = sorted(str(one.relative_to(out.parent)) for one in out.parent.rglob("*") if one.is_file())
    assert left == ["out/attempts.jsonl", "out/copy/left", "out/output.txt", "out/precious", "precious"]
    assert open_checkpoint(folder).arrays


def test_a_damaged_store_is_refused_or_read_as_it_was(path, tmp_path, capsys):
    """300 mutated stores: one line and 2; or the attempts that were left, and new ones after them."""
    command = "true {}"
    assert challenge(path, command, "--count", 3) == 0
    store = tmp_path / "out" / STORE
    content, codes = store.read_bytes(), []
    for number in range(300):
        store.write_bytes(mutations.bytes_of(content, random.Random(number)))
        capsys.readouterr()
        codes.append(challenge(path, command, "--count", 3))
        out, err = capsys.readouterr()
        assert codes[-1] in (0, 2) and len(err.splitlines()) == (codes[-1] == 2)
        assert ("of 3 flips noticed" in out) == (codes[-1] == 0)
    assert {0, 2} == set(codes)


# ---- Logs -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", log_files.written())
def test_of_a_log_one_number_is_another_and_nothing_else(tmp_path, family):
    """A copy is read as the same family, with one bit of one number inverted, and its text differs in one place."""
    path = log_files.write(tmp_path, family)
    opened, bits = LogNumbers(path), set()
    assert not opened.raw or (family, [*opened.raw]) == ("torchtitan", ["tps"])  # which has commas of thousands
    for seed in range(16):
        ((name, change),) = draw_alteration(opened, Selection(count=1, seed=seed)).items()
        out = tmp_path / str(seed) / path.name
        out.parent.mkdir()
        opened.write(out, {name: change})
        before, after = read_log(path), read_log(out)
        at = np.flatnonzero(before.tensor == before.tensors.index(name))[change.places[0]]
        one, other = np.float32(before.values[at]), np.float32(after.values[at])
        flipped = np.uint32(one.view(np.uint32) ^ change.before[0] ^ change.after[0])
        assert other.view(np.uint32) == flipped or (np.isnan(other) and np.isnan(flipped.view(np.float32)))
        bits.add(int(change.before[0] ^ change.after[0]).bit_length() - 1)
        rest = np.arange(len(before.values)) != at
        assert before.values[rest].tobytes() == after.values[rest].tobytes()
        assert after.family == before.family
        pairs = [(path, out)] if path.is_file() else [(one, out / one.relative_to(path)) for one in path.rglob("*")]
        texts = [(a.read_bytes(), b.read_bytes()) for a, b in pairs if a.is_file()]
        ((old, new),) = [(a, b) for a, b in texts if a != b]
        start = next(k for k, (a, b) in enumerate(zip(old, new, strict=False)) if a != b)
        end = next(k for k, (a, b) in enumerate(zip(old[::-1], new[::-1], strict=False)) if a != b)
        assert len(old) - start - end < 30 and len(new) - start - end < 30
    assert len(bits) > 8


def test_a_detector_of_a_log_notices_a_spike_and_not_the_last_bit(tmp_path, capsys):
    rng = np.random.default_rng(0)
    path = tmp_path / "run.csv"
    path.write_text("step,loss\n" + "".join(f"{k},{2.3 + 0.02 * rng.normal():.4f}\n" for k in range(60)))
    detect = f"{shlex.quote(sys.executable)} -m fault_injection detect {{}} --detector loss_spike --fail"
    for bit, noticed in ((29, 2), (0, 0)):  # 2.3 times 2^64, and one unit in the last place
        out = f"of bit {bit}"
        assert challenge(path, detect, "--log", "--count", 2, "--bits", bit, "--json", out=out) == 0
        answer = json.loads(capsys.readouterr().out)
        assert answer["noticed"]["found"] == noticed and {one["array"] for one in answer["attempts"]} == {"loss"}
    assert path.read_text().count("\n") == 61


def test_a_log_that_is_no_text_is_refused_and_what_is_left_out_is_named(tmp_path, capsys):
    pytest.importorskip("tensorboard", reason="the extra logs")
    events = tmp_path / "events.out.tfevents.1700000000.host"
    events.write_bytes(log_files.event_file([(k, "loss", 2.0) for k in range(9)]))
    assert challenge(events, "true {}", "--log") == 2
    err = capsys.readouterr().err
    assert "only logs that are text can be altered" in err and err.count("\n") == 1 and not (tmp_path / "out").exists()
    titan = log_files.write(tmp_path, "torchtitan")
    assert challenge(titan, "true {}", "--log", "--part", "model") == 2
    assert "--part is for checkpoints" in capsys.readouterr().err and not (tmp_path / "out").exists()
    assert challenge(titan, "true {}", "--log", "--count", 2) == 0
    told = capsys.readouterr()
    assert "left out: tps" in told.err and "alter" not in told.out
