"""Bars are for terminals; a file gets a line now and then."""

import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios

WORK = """
import time
from fault_injection.machine import progress_bar
progress_bar.EVERY = 0.4
with progress_bar.progress_bar(total=60, desc="golden", unit="step", mininterval=0.01) as bar:
    bar.set_postfix_str("compiling")
    for _ in range(60):
        time.sleep(0.02)
        bar.update()
"""


def test_a_file_gets_lines_and_few_of_them(repository):
    said = subprocess.run([sys.executable, "-c", WORK], cwd=repository, capture_output=True, text=True, check=True)
    lines = said.stderr.splitlines()
    assert "\r" not in said.stderr and 3 <= len(lines) <= 6
    assert all(line.startswith("golden: ") for line in lines)
    assert "compiling" in lines[1] and lines[-1].startswith("golden: 60/60 [00:01<00:00")


def test_a_terminal_gets_one_line_that_is_drawn_again_and_again(repository):
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    with os.fdopen(ours, "rb", buffering=0) as read:
        process = subprocess.Popen([sys.executable, "-c", WORK], cwd=repository, stderr=theirs)
        os.close(theirs)
        said = b""
        try:
            while piece := read.read(1000):
                said += piece
        except OSError:  # Linux says so that the other end is closed
            pass
        assert process.wait(60) == 0
    assert said.count(b"\r") > 20 and said.count(b"\n") == 1
