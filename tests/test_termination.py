"""A signal ends a process between files, and at the next step where Python dropped its exception."""

import os
import subprocess
import sys

import pytest

BEGIN = """
import os, pathlib, signal, sys
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

IN_A_FINALIZER = """
class Unlucky:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGTERM)
        len("what runs the handler")
Unlucky()
print("went on", end=" ")
try:
    heed()
except Terminated:
    with unbroken():  # the way out may write files
        pass
    print("ended")
"""


@pytest.mark.parametrize(("what", "said"), [(IN_A_FILE, "whole ['file']"), (IN_A_FINALIZER, "went on ended")])
def test_a_signal_ends_the_process_and_breaks_no_file(what, said, tmp_path, repository):
    command = [sys.executable, "-W", "ignore", "-c", BEGIN + what, tmp_path / "file"]
    ran = subprocess.run(command, cwd=repository, env=dict(os.environ), capture_output=True, text=True, check=False)
    assert (ran.stdout.strip(), ran.returncode) == (said, 0), ran.stderr
