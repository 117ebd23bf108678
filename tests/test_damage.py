"""Damage, strangers' files and signals: each is healed or named in one line, nothing of it is believed."""

# Above 400 lines: one finished replay and its cache are damaged in every way.

import dataclasses
import gzip
import io
import json
import os
import pathlib
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import tarfile
import time
import tracemalloc

import numpy as np
import pytest
from campaign_stores import TOY, fill, toy_plan

from fault_injection.commands.main import main
from fault_injection.data.official import read_official
from fault_injection.faults.injection_file import parse_injection
from fault_injection.machine.errors import InputError
from fault_injection.machine.files import in_use, only_writer, read_arrays, read_text, write_arrays, write_atomically
from fault_injection.runs.golden_run import TIMING, Golden
from fault_injection.runs.noise import noise_floor
from fault_injection.runs.replay_run import golden_for, replay
from fault_injection.seam.trees import same_bits
from fault_injection.workloads.registry import find_workload

pytestmark = pytest.mark.usefixtures("compiled_quickly")

EPOCHS = 4


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A golden run with two twins, and a second one that another machine made."""
    workload = find_workload(f"{TOY}:linear")
    golden = Golden(workload, workload.program(), tmp_path_factory.mktemp("cache"))
    for run in (golden, golden.twin_run(1), golden.twin_run(2)):
        run.make(EPOCHS)
    elsewhere = golden.folder.with_name("elsewhere")
    elsewhere.mkdir()
    known = json.loads((golden.folder / "golden.json").read_text())
    known["arithmetic"]["processor"] = "another"
    (elsewhere / "golden.json").write_text(json.dumps(known))
    return golden


@pytest.fixture
def copy(whole, tmp_path):
    """The same in a cache that a test may damage."""
    shutil.copytree(whole.cache, tmp_path / "cache", symlinks=True)
    return dataclasses.replace(whole, cache=tmp_path / "cache")


def flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def cut(path):
    path.write_bytes(path.read_bytes()[:1000])


def empty(path):
    path.write_bytes(b"")


def folder(path):
    path.unlink()
    path.mkdir()


def full_folder(path):
    folder(path)
    (path / "theirs").write_text("x")


def loop(path):
    path.unlink()
    path.symlink_to(path)


def pipe(path):
    path.unlink()
    os.mkfifo(path)


def device(path):
    path.unlink()
    path.symlink_to("/dev/zero")


def other_arrays(path):
    write_arrays(path, {"theirs": np.arange(3)})


def column_missing(path):
    record = read_arrays(path)
    del record["magnitude"]
    write_arrays(path, record)


def row_missing(path):
    write_arrays(path, {name: column[1:] if column.ndim else column for name, column in read_arrays(path).items()})


def words(path):
    write_arrays(path, {name: column.astype(str) for name, column in read_arrays(path).items()})


def writes(text):
    def write(path):
        path.write_text(text)

    return write


CHECKPOINT, RECORD = "checkpoints/0002.npz", "records/0002.npz"
BYTES = {"a byte": flip, "its end": cut, "all of it": empty, "a folder": folder, "a loop": loop, "a pipe": pipe}
BYTES |= {"a device": device, "other arrays": other_arrays}
COLUMNS = {"a column": column_missing, "a row": row_missing, "words": words, "a full folder": full_folder}
NO_OBJECT = {"a list": "[1]", "a number": "3", "null": "null", "nested": "[" * 3000, "text": '"x"', "bytes": "\x00"}
DAMAGES = {
    **{f"checkpoint: {what}": (CHECKPOINT, damage) for what, damage in BYTES.items()},
    "checkpoint: a full folder": (CHECKPOINT, full_folder),
    "checkpoint: a record": (CHECKPOINT, lambda path: shutil.copy(path.parent.parent / RECORD, path)),
    "checkpoint: a stranger": (CHECKPOINT, lambda path: path.with_name("abc.npz").write_text("x")),
    "checkpoint: almost a number": (CHECKPOINT, lambda path: path.with_name("0002a.npz").write_text("x")),
    **{f"record: {what}": (RECORD, damage) for what, damage in {**BYTES, **COLUMNS}.items()},
    **{f"golden.json: {what}": ("golden.json", writes(text)) for what, text in NO_OBJECT.items()},
    **{f"timing.json: {what}": (TIMING, writes(text)) for what, text in NO_OBJECT.items()},
    **{
        f"timing.json: {value} s": (TIMING, writes(f'{{"seconds_per_step": {value}}}'))
        for value in ("NaN", "-1", "1e999", "[2]", f"1{'0' * 400}", "true", '"x"')
    },
    "timing.json: a pipe": (TIMING, pipe),
    "timing.json: a folder": (TIMING, folder),
    **{
        f"another's golden.json: {what}": ("../elsewhere/golden.json", writes(text)) for what, text in NO_OBJECT.items()
    },
    "another's golden.json: a pipe": ("../elsewhere/golden.json", pipe),
    "another's golden.json: no arithmetic": ("../elsewhere/golden.json", writes('{"arithmetic": 3}')),
    "another's golden.json: escapes": ("../elsewhere/golden.json", writes('{"arithmetic": {"jax": "\\u001b"}}')),
}


@pytest.mark.parametrize("what", DAMAGES)
def test_damage_of_the_cache_is_healed_or_named(whole, copy, capsys, what):
    place, damage = DAMAGES[what]
    path = copy.folder / place
    damage(path)
    try:
        copy.make(EPOCHS)
        state, run = copy.fetch_state_before(2), copy.fetch_run(EPOCHS)
        seconds, others = copy.seconds_per_step(), copy.elsewhere()
        noise = noise_floor(copy, EPOCHS, 2)
    except InputError as error:
        assert place.startswith(("records", "checkpoints")) and str(path) in str(error)
        assert "delete it, and it is made again" in str(error) or "remove it" in str(error)
    else:
        assert same_bits(state, whole.fetch_state_before(2))
        for record, theirs in zip(run.epochs, whole.fetch_run(EPOCHS).epochs, strict=True):
            assert all((record[name] == theirs[name]).all() for name in theirs)
        assert noise == noise_floor(whole, EPOCHS, 2)
        assert others in ([], [(copy.folder.with_name("elsewhere"), others[0][1])] if others else [])
        assert seconds is None or 0 < seconds < 1000
    err = capsys.readouterr().err
    assert "Traceback" not in err and "\x1b" not in err.replace("\x1b[A", "")


@pytest.mark.parametrize("damage", [flip, other_arrays, column_missing, loop])
def test_a_damaged_twin_is_named_and_does_not_narrow_the_tolerance(whole, copy, damage):
    path = copy.twin_run(2).store.record_path(3)
    damage(path)
    with pytest.raises(InputError, match=re.escape(str(path))):
        noise_floor(copy, EPOCHS, 2)


# ---- An interrupted replay ----------------------------------------------------------------

INJECTION = f"""\
model,{TOY}:linear
stage,fwrd_inject
fmodel,RD
target_worker,1
target_layer,fc
target_epoch,1
target_step,3
inj_pos,3/0
inj_values,50
learning_rate,0.1
seed,123
"""


def other_struck(path):
    arrays = read_arrays(path)
    arrays["new"] = arrays["new"] ^ 1
    write_arrays(path, arrays)


def wider_struck(path):
    arrays = read_arrays(path)
    write_arrays(path, arrays | {"new": np.stack([arrays["new"]] * 2)})


STRUCK = {"struck.npz": (other_arrays, other_struck, wider_struck, folder, loop), "records/0001.npz": (column_missing,)}


@pytest.mark.parametrize(("place", "damage"), [(place, damage) for place, some in STRUCK.items() for damage in some])
def test_what_a_replay_has_left_is_believed_only_if_it_is_of_this_fault(whole, copy, capsys, place, damage):
    injection = parse_injection(INJECTION)
    golden = golden_for(injection, copy.cache)

    def stop(result):
        raise KeyboardInterrupt

    expected = replay(injection, golden)
    with pytest.raises(KeyboardInterrupt):
        replay(injection, golden, stop)
    (left,) = copy.cache.glob("replays/*/")
    damage(left / place)
    capsys.readouterr()
    again = replay(injection, golden)
    assert again.outcome == expected.outcome
    assert (again.struck.new == expected.struck.new).all()
    err = capsys.readouterr().err
    assert f"{left / place}" in err and "it begins again" in err and "going on" not in err


def test_a_damaged_record_is_named_before_anything_is_computed(copy, capsys):
    injection = parse_injection(INJECTION)
    flip(copy.store.record_path(3))
    with pytest.raises(InputError, match=r"records/0003.npz is damaged .*; delete it, and it is made again"):
        replay(injection, golden_for(injection, copy.cache))
    assert "replay" not in capsys.readouterr().err


# ---- Links, names, archives ---------------------------------------------------------------


def test_nothing_is_written_through_a_symbolic_link(tmp_path):
    theirs = tmp_path / "theirs"
    theirs.write_text("not ours")
    (tmp_path / ".log.partial").symlink_to(theirs)
    (tmp_path / ".new.partial").symlink_to(tmp_path / "nothing")
    (tmp_path / "lock").symlink_to(theirs)
    for name in ("log", "new"):
        with pytest.raises(InputError, match=r"\.partial: is a symbolic link, through which nothing is written"):
            write_atomically(tmp_path / name, lambda file: file.write(b"x"))
    with pytest.raises(InputError, match="lock: is a symbolic link"), only_writer(tmp_path / "lock"):
        pass
    assert theirs.read_text() == "not ours"
    assert not (tmp_path / "nothing").exists()


def test_a_link_in_the_place_of_a_file_is_replaced_not_followed(tmp_path):
    theirs = tmp_path / "theirs"
    theirs.write_text("not ours")
    (tmp_path / "log").symlink_to(theirs)
    write_atomically(tmp_path / "log", lambda file: file.write(b"x"))
    assert (theirs.read_text(), (tmp_path / "log").read_text()) == ("not ours", "x")


def test_a_pipe_is_waited_for_by_nobody(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for use in (read_text, in_use, lambda path: write_atomically(path.with_name("log"), lambda file: None)):
        (tmp_path / ".log.partial").unlink(missing_ok=True)
        os.mkfifo(tmp_path / ".log.partial")
        with pytest.raises((InputError, OSError), match=r"pipe|regular"):
            use(tmp_path / "pipe")


def test_what_a_terminal_would_act_on_is_shown(tmp_path, capsys):
    name = tmp_path / "\x1b[2J\x9b1m\r"
    for command in (["replay", name], ["campaign", name], ["status", name], ["report", name], ["results", name],
                    ["sites", "\x1b[2J"], ["scale", name], [name]):  # fmt: skip
        assert main(list(map(str, command))) == 2
        out, err = capsys.readouterr()
        assert (out + err).replace("\n", "").isprintable() and r"\x1b[2J" in err
    file = tmp_path / "\x1b[2J\x9b.csv"
    shutil.copy("injections/published/resnet18_nobn-slow_degrade.csv", file)
    out = tmp_path / "\x1b[2J.2"
    assert main(["scale", str(file), "--width", "8", "--out", str(out)]) == 0
    assert main(["sites", "resnet18", "--width", "8", "--stage", "forward"]) == 0
    said = "".join(capsys.readouterr())
    assert said.replace("\n", "").isprintable() and r"\x1b[2J.2" in said


def test_json_stays_json(tmp_path, capsys):
    folder = tmp_path / "\x1b\x9b"
    folder.mkdir()
    fill(folder, toy_plan(3))
    assert main(["status", str(folder), "--json"]) == 0
    out = capsys.readouterr().out
    assert out[:-1].isprintable() and json.loads(out)["folder"] == str(folder)


def archive(path, *headers):
    """A packed archive of raw headers, each followed by so many zeros."""
    with gzip.open(path, "wb", compresslevel=1) as file:
        for info, zeros in headers:
            file.write(info)
            for _ in range(zeros // 2**20):
                file.write(bytes(2**20))
    return path


def header(kind, size, name="././@LongLink"):
    info = tarfile.TarInfo(name)
    info.type, info.size = kind, size
    return info.tobuf(tarfile.USTAR_FORMAT)


@pytest.mark.parametrize("kind", [tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK, tarfile.XHDTYPE, tarfile.XGLTYPE])
def test_a_members_name_takes_no_memory_to_speak_of(tmp_path, kind):
    path = archive(tmp_path / "cifar-10-binary.tar.gz", (header(kind, 2**28), 2**28))
    tracemalloc.start()
    with pytest.raises(InputError, match="a member's name or properties of 268,435,456 bytes"):
        read_official(path)
    assert tracemalloc.get_traced_memory()[1] < 2**24 + 60_000 * 3072  # the images that it would hold
    tracemalloc.stop()


def test_an_archive_of_names_only_ends(tmp_path):
    one = header(tarfile.GNUTYPE_LONGNAME, 100) + b"x" * 99 + bytes(413)
    for headers in ([(one * 3000, 0)], [(header(tarfile.REGTYPE, 0, "x") * 3000, 0)]):
        with pytest.raises(InputError, match=r"damaged or truncated|more than 1000 members"):
            read_official(archive(tmp_path / "cifar-10-binary.tar.gz", *headers))


def test_a_long_name_is_shown_in_part(tmp_path):
    info = tarfile.TarInfo("\x1b[2J" + "x" * 9000 + "/data_batch_1.bin")
    info.size = 5
    with tarfile.open(tmp_path / "cifar-10-binary.tar.gz", "w:gz") as file:
        file.addfile(info, io.BytesIO(b"12345"))
    with pytest.raises(InputError) as error:
        read_official(tmp_path / "cifar-10-binary.tar.gz")
    assert str(error.value).isprintable() and len(str(error.value)) < 2100


# ---- Signals ------------------------------------------------------------------------------


def command(*arguments):
    """A command of ours, in a process group of its own."""
    whole = [sys.executable, "-m", "fault_injection", *map(str, arguments)]
    root = pathlib.Path(__file__).parent.parent
    return subprocess.Popen(whole, cwd=root, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                            start_new_session=True)  # fmt: skip


def left(group):
    """Processes of a group that are no zombies."""
    found = []
    for path in pathlib.Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, of = path.read_text().rpartition(")")[2].split()[:3]
        except OSError:
            continue
        if int(of) == group and state != "Z":
            found.append(path)
    return found


def wait_for(condition, process, seconds=120):
    deadline = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.05)


def end(process, everyone):
    """End a command as a scheduler does, and see that it says so and leaves no process."""
    (os.killpg if everyone else os.kill)(process.pid, signal.SIGTERM)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 143, err
    assert "terminated; the same command goes on where it stopped" in err.splitlines()[-1]
    assert "Traceback" not in err and "resource_tracker" not in err and "leaked" not in err
    deadline = time.monotonic() + 5  # the process that looks after semaphores ends when it sees that the others have
    while left(process.pid):
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.parametrize("everyone", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_campaign_that_is_told_to_end_says_so_and_goes_on(tmp_path, everyone):
    plan, out = tmp_path / "plan.toml", tmp_path / "out"
    plan.write_text(f'workload = "{TOY}:linear"\n[faults]\nexperiments = 3000\n[run]\nexit = "full"\n')
    process = command("campaign", plan, "--out", out, "--jobs", 1, "--cache", tmp_path / "cache")

    def asked(query):
        with sqlite3.connect(f"file:{out / 'campaign.sqlite'}?mode=ro", uri=True, timeout=30) as connection:
            rows = connection.execute(query).fetchall()
        connection.close()
        return rows

    def begun():
        try:
            return asked("SELECT count(*) FROM experiments")[0][0] >= 3
        except sqlite3.OperationalError:
            return False

    wait_for(begun, process)
    end(process, everyone)
    assert asked("SELECT what FROM events ORDER BY number DESC LIMIT 1") == [("stopped: Terminated",)]
    assert not list(tmp_path.rglob(".*.partial")) and not list(tmp_path.rglob("*-journal"))
    assert main(["status", str(out)]) == 0


@pytest.mark.slow
@pytest.mark.parametrize("everyone", [False, True])
def test_a_replay_that_is_told_to_end_goes_on(tmp_path, everyone):
    file = tmp_path / "mine.csv"
    file.write_text(f"{INJECTION}epochs,200\n".replace("target_epoch,1\n", "target_epoch,8\n"))
    arguments = ("replay", file, "--cache", tmp_path / "cache", "--out", tmp_path / "out")
    for moment in ("golden/*/records/0005.npz", "replays/*/records/0011.npz"):  # before the fault, and after it
        assert not list((tmp_path / "cache").glob(moment))
        process = command(*arguments)
        wait_for(lambda moment=moment: list((tmp_path / "cache").glob(moment)), process, 600)
        end(process, everyone)
        assert not list(tmp_path.rglob(".*.partial"))
    process = command(*arguments)
    assert process.wait(600) == 0
    assert "going on with an interrupted replay" in process.communicate()[1]
