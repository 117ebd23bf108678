"""Commands as users run them: started in a process group of their own, and killed."""

import os
import pathlib
import signal
import subprocess
import sys
import time


def start(log: pathlib.Path, repository, *arguments):
    """`python -m fault_injection` with these arguments; what it says is appended to a file."""
    command = [sys.executable, "-m", "fault_injection", *map(str, arguments)]
    with log.open("a") as file:
        # Of a job that a shell runs in the background, interrupts are ignored, by what it starts too.
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            return subprocess.Popen(command, cwd=repository, stdout=file, stderr=file, start_new_session=True)
        finally:
            signal.signal(signal.SIGINT, before)


def processes_of(group: int) -> list[int]:
    """Processes of a process group that compute, the driver among them."""
    found = []
    for path in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            fields = (path / "stat").read_text().rpartition(")")[2].split()
            command = (path / "cmdline").read_bytes()
        except OSError:
            continue
        if int(fields[2]) == group and b"resource_tracker" not in command:
            found.append(int(path.name))
    return found


def kill(process, rng, driver: bool):
    """Kill the driver, or a job where there is one.

    Returns:
      Whether the driver has ended: killed, or because of its job.  Its jobs have ended then, too.
    """
    jobs = [pid for pid in processes_of(process.pid) if pid != process.pid]
    os.kill(process.pid if driver or not jobs else rng.choice(jobs), signal.SIGKILL)
    try:
        process.wait(None if driver or not jobs else 1)
    except subprocess.TimeoutExpired:
        return False
    deadline = time.monotonic() + 20
    while processes_of(process.pid):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    return True
