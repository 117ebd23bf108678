"""A signal ends a process between files, and not where Python would drop its exception."""

import os
import subprocess
import sys

import pytest

BEGIN = """
import gc, os, pathlib, signal, sys
from fault_injection.machine.files import write_atomically
from fault_injection.machine.termination import Terminated, answer_termination, heed, unbroken
path = pathlib.Path(sys.argv[1])
answer_termination()
"""

IN_A_FILE = """
def write(file):
    os.kill(os.getpid(), signal.SIGTERM)
    file.write(b"whole")
try:
    write_atomically(path, write)
except Terminated:
    print(path.read_text(), os.listdir(path.parent))
"""

WHERE_PYTHON_DROPS_EXCEPTIONS = """
def strike(*_):
    os.kill(os.getpid(), signal.SIGTERM)
    len("what runs the handler")
class Unlucky:
    def __del__(self):
        strike()
if {collector}:
    gc.callbacks.append(strike)
    gc.collect()
else:
    Unlucky()
print("went on", end=" ")
try:
    heed()
except Terminated:
    with unbroken():  # the way out may write files
        pass
    print("ended")
"""
CASES = [
    (IN_A_FILE, "whole ['file']"),
    (WHERE_PYTHON_DROPS_EXCEPTIONS.format(collector=False), "went on ended"),
    (WHERE_PYTHON_DROPS_EXCEPTIONS.format(collector=True), "went on ended"),
]


@pytest.mark.parametrize(("what", "said"), CASES, ids=["file", "finalizer", "collector"])
def test_a_signal_ends_the_process_and_breaks_no_file(what, said, tmp_path, repository):
    command = [sys.executable, "-c", BEGIN + what, tmp_path / "file"]
    ran = subprocess.run(command, cwd=repository, env=dict(os.environ), capture_output=True, text=True, check=False)
    assert (ran.stdout.strip(), ran.stderr) == (said, "")
