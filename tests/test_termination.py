"""A signal ends a process between files, and not where Python would drop its exception."""

import os
import random
import signal
import subprocess
import sys
import time

import pytest

pytestmark = pytest.mark.usefixtures("compiled_quickly")

BEGIN = """
import gc, os, pathlib, signal, sys, time, weakref
from fault_injection.machine.files import write_atomically
from fault_injection.machine.termination import Terminated, answer_termination, heed, unbroken
path = pathlib.Path(sys.argv[1])
signal.signal(signal.SIGINT, signal.default_int_handler)  # shells have it ignored in the background
answer_termination()
"""

IN_A_FILE = """
def write(file):
    os.kill(os.getpid(), signal.{signal})
    file.write(b"whole")
try:
    write_atomically(path, write)
except {ending}:
    print(path.read_text(), os.listdir(path.parent))
"""

WHERE_PYTHON_DROPS_EXCEPTIONS = """
def strike(*_):
    os.kill(os.getpid(), signal.{signal})
    len("what runs the handler")
class Unlucky:
    def __del__(self):
        strike()
class Referred:
    pass
try:
    match "{where}":
        case "collector":
            gc.callbacks.append(strike)
            gc.collect()
            gc.callbacks.clear()
        case "finalizer":
            Unlucky()
        case "weak reference":
            held = Referred()
            kept = weakref.ref(held, strike)
            del held
    sys.stdout.write("went on ")  # at once: a signal may come between two writes of one print
    {then}
except {ending}:
    time.sleep(0.1)  # nothing is raised twice
    with unbroken():  # the way out may write files
        pass
    print("ended")
"""
SIGNALS = {"SIGINT": "KeyboardInterrupt", "SIGTERM": "Terminated"}
# It is raised where the next piece of work begins, and a moment later wherever the process is.
CASES = {
    f"{where}, {name}, {then}": (text.format(where=where, signal=name, ending=ending, then=then), said)
    for name, ending in SIGNALS.items()
    for where, text, thens, said in [
        ("file", IN_A_FILE, [""], "whole ['file']"),
        *(
            (where, WHERE_PYTHON_DROPS_EXCEPTIONS, ["heed()", "time.sleep(10)"], "went on ended")
            for where in ("finalizer", "collector", "weak reference")
        ),
    ]
    for then in thens
}


@pytest.mark.parametrize(("what", "said"), CASES.values(), ids=CASES)
def test_a_signal_ends_the_process_and_breaks_no_file(what, said, tmp_path, repository):
    command = [sys.executable, "-c", BEGIN + what, tmp_path / "file"]
    ran = subprocess.run(command, cwd=repository, env=dict(os.environ), capture_output=True, text=True, check=False)
    assert (ran.stdout.strip(), ran.stderr) == (said, "")


ANOTHER_ERROR = """
import gc
gc.callbacks.append(lambda *_: 1 / 0)
gc.collect()
gc.callbacks.clear()
"""


def test_what_else_python_drops_is_shown_as_ever(tmp_path, repository):
    command = [sys.executable, "-c", BEGIN + ANOTHER_ERROR, tmp_path / "file"]
    ran = subprocess.run(command, cwd=repository, capture_output=True, text=True, check=True)
    assert "ZeroDivisionError" in ran.stderr


def interrupted(repository, folder, seconds, number):
    """`golden`, and a signal so many seconds after this program has begun; its exit code and what it said."""
    start = [sys.executable, "-X", "importtime", "-m", "fault_injection"]
    command = [*start, "golden", "resnet18", "--epochs", "80", "--cache", folder]  # it takes minutes
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        process = subprocess.Popen(
            command, cwd=repository, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
    finally:
        signal.signal(signal.SIGINT, before)
    said = []
    with process:
        for line in process.stderr:  # it answers signals from the first import of its own on
            said.append(line)
            if "fault_injection.machine.termination" in line:
                break
        time.sleep(seconds)
        process.send_signal(number)
        said += process.stderr.read().splitlines(keepends=True)
    return process.returncode, [line for line in said if not line.startswith("import time:")]


ENDS = {
    signal.SIGINT: (130, "interrupted; the same command goes on where it stopped\n"),
    signal.SIGTERM: (143, "terminated; the same command goes on where it stopped\n"),
}


@pytest.mark.parametrize("number", ENDS)
@pytest.mark.parametrize("seconds", [0.02, 0.3])
def test_a_signal_in_the_first_second_is_one_line_and_its_code(seconds, number, tmp_path, repository):
    code, said = interrupted(repository, tmp_path, seconds, number)
    assert (code, said) == (ENDS[number][0], [ENDS[number][1]])


@pytest.mark.slow
def test_no_signal_is_lost_whenever_it_comes(tmp_path, repository):
    rng = random.Random(2026)
    for _ in range(4):
        number, seconds = rng.choice(list(ENDS)), rng.uniform(0.02, 10)
        code, said = interrupted(repository, tmp_path / "cache", seconds, number)
        assert (code, said[-1:]) == (ENDS[number][0], [ENDS[number][1]]), (seconds, said)
        assert not any("Traceback" in line for line in said), said
