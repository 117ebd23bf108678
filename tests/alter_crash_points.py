"""Ends `alter` at each of its calls to the system, or at random moments, and looks at what is left; run as a script.

A child is forked for each point, so that nothing is imported anew.  It is ended before a call that opens, renames,
removes or syncs a file, or after some time, by a signal that Python answers or by a kill.  Then the same command is
given again.
"""

import itertools
import json
import os
import pathlib
import random
import shutil
import signal
import sys
import time

from fault_injection.checkpoints.difference import difference
from fault_injection.checkpoints.formats import open_checkpoint
from fault_injection.checkpoints.log import read_document
from fault_injection.commands.main import main
from fault_injection.machine.termination import ENDINGS, Terminated, answer_termination

EVENTS = ("open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate", "shutil.copyfile")
DRAWN = ("--count", "5", "--seed", "3")


def child(arguments, place, at, number):
    """Fork a child that runs a command, and ends itself at a call; returns its exit code, negative where killed.

    Args:
      at: number of the call; a fraction is a time instead, in seconds.
    """
    ready, go = os.pipe()
    pid = os.fork()
    if pid:
        os.close(go)
        if isinstance(at, float):
            os.read(ready, 1)  # from when on it answers signals
            time.sleep(at)
            os.kill(pid, number)
        os.close(ready)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    os.chdir(place)
    calls = itertools.count()

    def counted(event, _arguments=()):
        if event in EVENTS and next(calls) == at:
            os.kill(os.getpid(), number)

    def fsync(_handle):  # what is written outlives a process without it
        counted("open")

    def begin():
        answer_termination()
        os.fsync = fsync
        sys.addaudithook(counted)
        os.write(go, b"x")

    os.dup2(os.open("told", os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 1)
    os.dup2(os.open("err", os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 2)
    code = 1
    try:
        code = main(arguments, begin=begin)
        if at < 0:  # how many calls there are
            (place / "err").write_text(f"{next(calls)}")
    except KeyboardInterrupt as ending:
        code = ENDINGS[signal.SIGTERM if isinstance(ending, Terminated) else signal.SIGINT].code
    except BaseException as error:
        os.write(2, f"Traceback {error!r}".encode())
    os._exit(code)


def same(path, other):
    """Whether two checkpoints, files or folders, are there and alike."""
    if not path.exists():
        return False
    if path.is_file():
        return path.read_bytes() == other.read_bytes()
    found = difference(open_checkpoint(path), open_checkpoint(other))
    return not (found.changed or found.unlike or found.only_first or found.only_second)


def alterations(log):
    return json.loads(log.read_text())["alterations"]


def look(place, source, expected, how, log):
    """Whether file and log agree; returns whether the alteration has happened."""
    target = place / (source.name if how == ("--in-place",) else "new")
    happened = same(target, expected / "new")
    assert happened or same(target, source) or (target.name == "new" and not target.exists()), "half-written"
    if target.name == "new":
        assert same(place / source.name, source), "the source has changed"
    if log and happened:
        assert alterations(place / "log.json") == alterations(expected / "log.json"), "the log says something else"
    if log and (place / "log.json").exists() and not happened:
        assert read_document(place / "log.json")[0]["state"] == "planned", "the log says what did not happen"
    return happened


def points(source, work, number, how, log, every):
    """End the command at every so many of its calls; returns how many points there were."""
    expected = work / "expected"
    if not expected.exists():
        expected.mkdir()
        whole = ["alter", str(source), "--out", str(expected / "new"), "--log", str(expected / "log.json"), *DRAWN]
        assert child(whole, expected, -1, number) == 0
    arguments = ["alter", source.name, *how, *DRAWN, *(("--log", "log.json") if log else ())]
    place = fresh(work, source)
    assert child(arguments, place, -1, number) == 0
    moments = (
        range(0, int((place / "err").read_text()), every) if every > 0 else random_moments(arguments, place, -every)
    )
    for at in moments:
        place = fresh(work, source)
        code = child(arguments, place, at, number)
        what = f"{source.name} {how} log={log} signal={number} call={at} code={code}"
        said = (place / "err").read_text()
        assert "Traceback" not in said and code in (0, -number, ENDINGS[number].code if number in ENDINGS else 0), what
        try:
            happened = look(place, source, expected, how, log)
            # Without a log, what was done is forgotten as soon as the person was told of it.
            told = "written to" in (place / "told").read_text() and not [*place.glob(".*.alteration")]
            if code == 0 or told:
                assert happened, "it said that it was done"
            else:
                assert child(arguments, place, -1, number) == 0, f"again: {(place / 'err').read_text()}"
                assert look(place, source, expected, how, log), "again: not altered"
            if log:
                assert read_document(place / "log.json")[0]["state"] == "done", "again: not done"
            left = {path.name for path in place.iterdir()} - {source.name, "new", "log.json", "err", "told"}
            assert not left, f"left: {left}"
        except AssertionError as error:
            raise AssertionError(f"{what}: {error}") from None
    return len(moments)


def random_moments(arguments, place, count):
    """So many times, in seconds, at which the command may be ended."""
    begin = time.monotonic()
    assert child([*arguments, "--check"], place, -1, 0) == 0
    return [random.uniform(0, 2 * (time.monotonic() - begin)) for _ in range(count)]


def fresh(work, source):
    """A folder with a copy of the checkpoint alone."""
    place = work / "place"
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    (shutil.copytree if source.is_dir() else shutil.copyfile)(source, place / source.name)
    return place


def ended(source, work, every):
    """All points of a checkpoint; returns how many."""
    hows = [("--out", "new")] if source.is_dir() else [("--in-place",), ("--out", "new")]
    signals = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
    return sum(points(source, work, *some, every) for some in itertools.product(signals, hows, (True, False)))


if __name__ == "__main__":
    print(ended(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]), int(sys.argv[3])))
