"""Several processes that compute one run, for real: two processes on this machine, a device each."""

import dataclasses
import os
import re
import signal
import socket
import subprocess
import sys
import time

import jax
import numpy as np
import pytest
from small import SITE, flags, small
from whole import only_whole

from fault_injection.commands.main import main
from fault_injection.faults.injection import Injection
from fault_injection.faults.injection_file import write_injection
from fault_injection.workloads.image import ImageWorkload

pytestmark = pytest.mark.usefixtures("compiled_quickly")

WORKLOAD = small(epochs=3)
# Of worker 3, which process 1 computes.
FAULT = Injection(WORKLOAD, "bkwd_inject", "RD", 3, SITE, 1, 4, ((5, 2, 1, 3),), (0.05,))
GOLDEN = ["-m", "fault_injection", "golden", "resnet18", *flags()]


@pytest.fixture
def start(repository):
    """Starts a process with so many devices; none survives the test."""
    started = []

    def start(*arguments, devices=1):
        flags = {"XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}"}
        command = [sys.executable, *map(str, arguments)]
        pipe = subprocess.PIPE
        process = subprocess.Popen(
            command, cwd=repository, env=os.environ | flags | {"NPROC": "2"}, stdout=pipe, stderr=pipe, text=True
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def free_address():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{free.getsockname()[1]}"


@pytest.fixture
def start_two(start):
    def start_two(*arguments):
        address = free_address()
        return [start(*arguments, "--coordinator", address, "--processes", 2, "--process", i) for i in (0, 1)]

    return start_two


def records(cache):
    """Of the golden run in a cache, an epoch each."""
    return sorted(cache.glob("golden/*/records/[0-9]*.npz"))


@pytest.mark.slow
def test_two_processes_compute_the_bits_that_one_with_two_devices_computes(start, start_two, tmp_path):
    """A sum over two devices has one order, wherever they are; with four, processes add in another."""
    write_injection(tmp_path / "example.csv", FAULT)

    def arguments(run):
        folders = ["--out", tmp_path / run / "out", "--cache", tmp_path / run]
        return ["reproduce_injections.py", "--file", tmp_path / "example.csv", *folders]

    alone = start(*arguments("one"), devices=2)
    verdict, errors = alone.communicate()
    assert alone.returncode == 0, errors
    leader, follower = start_two(*arguments("two"))
    told, errors = leader.communicate()
    assert leader.returncode == 0, errors
    spoken = [line for line in follower.communicate()[0].splitlines() if not line.startswith("[Gloo]")]
    assert spoken == []
    assert follower.returncode == 0
    assert verdict.splitlines()[0] in told.splitlines()
    for one, two in zip(records(tmp_path / "one"), records(tmp_path / "two"), strict=True):
        np.testing.assert_array_equal(np.load(one)["digest"], np.load(two)["digest"])
    for name in ("outcome.json", "replay_example.txt"):
        one, two = (tmp_path / run / "out" / name for run in ("one", "two"))
        assert re.sub("weights from .*", "", one.read_text()) == re.sub("weights from .*", "", two.read_text())


FROM_LEADER = """
import pathlib, sys
from fault_injection.machine.environment import prepare
from fault_injection.machine.errors import InputError
from fault_injection.machine.processes import from_leader, join, leading, say
address, process, folder = sys.argv[1], int(sys.argv[2]), pathlib.Path(sys.argv[3])
prepare()
join(address, 2, process)
assert leading() == (process == 0)

def read():
    with (folder / f"{process}.log").open("a") as log:
        log.write("read ")
    return {"process": process, "large": bytes(range(256)) * 1000}

def fail():
    (folder / f"{process}.log").open("a").write("fail ")
    raise InputError("no such file", "example.csv", process)

assert from_leader(read) == {"process": 0, "large": bytes(range(256)) * 1000}
assert from_leader(lambda: None) is None
try:
    from_leader(fail)
except InputError as error:
    assert str(error) == "example.csv:0: no such file", error
else:
    raise AssertionError("no error")
assert from_leader(lambda: from_leader(read))["process"] == 0  # else the leader would wait for ever
assert from_leader(lambda: process) == 0
say(f"process {process} has spoken")
"""


@pytest.mark.slow
def test_what_the_leader_finds_or_raises_is_found_or_raised_in_all_and_no_other_process_looks(start, tmp_path):
    address = free_address()
    both = [start("-c", FROM_LEADER, address, process, tmp_path) for process in (0, 1)]
    errors = [process.communicate(timeout=120)[1] for process in both]
    assert [process.returncode for process in both] == [0, 0], errors
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"0.log": "read fail read "}
    assert ["has spoken" in text for text in errors] == [True, False]


@pytest.mark.slow
@only_whole
@pytest.mark.parametrize("killed", [0])  # test_strategy_processes.py kills the other
def test_when_one_process_dies_the_other_ends_too_and_the_run_goes_on(start_two, tmp_path, killed):
    both = start_two(*GOLDEN, "--epochs", 1000, "--keep-epochs", 0, "--cache", tmp_path)
    deadline = time.monotonic() + 120
    while len(records(tmp_path)) < 3 and time.monotonic() < deadline:
        assert [process.poll() for process in both] == [None, None]
        time.sleep(0.05)
    both[killed].kill()
    survivor = both[1 - killed]
    errors = survivor.communicate(timeout=60)[1]
    # Where JAX's own watch over the processes is faster than the failing computation, it ends the process.
    expected = {1: "the same command goes on where it stopped", -signal.SIGABRT: "another task died"}
    assert expected[survivor.returncode] in errors
    assert "Traceback" not in errors
    made = len(records(tmp_path))
    leader, follower = start_two(*GOLDEN, "--epochs", made + 1, "--keep-epochs", 0, "--cache", tmp_path)
    errors = leader.communicate()[1]
    assert (leader.returncode, follower.wait()) == (0, 0), errors
    # The last record may lack the checkpoint after it: its epoch is then run, and compared, again.
    assert f"epochs {made} to {made} made" in errors or f"epochs {made - 1} to {made} made" in errors
    assert len(records(tmp_path)) == made + 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--coordinator", "127.0.0.1:9"], "--processes N and --process I"),
        (["--coordinator", "127.0.0.1:9", "--processes", "2", "--process", "2"], "from 0 to N - 1"),
        (
            ["--coordinator", "localhost", "--processes", "2", "--process", "0"],
            "'localhost', expected HOST:PORT or auto",
        ),
        (["--processes", "2"], "need --coordinator"),
    ],
)
def test_processes_that_cannot_find_each_other_are_refused(capsys, tmp_path, arguments, message):
    assert main([*map(str, GOLDEN[2:]), "--cache", str(tmp_path), *arguments]) == 2
    err = capsys.readouterr().err
    assert (err.count("\n"), message in err) == (1, True)
    assert list(tmp_path.iterdir()) == []


def test_auto_outside_of_a_cluster_is_refused(start, tmp_path):
    process = start("reproduce_injections.py", "--file", tmp_path / "x.csv", "--coordinator", "auto")
    errors = process.communicate()[1]
    assert (process.returncode, errors.count("\n")) == (2, 1)
    assert "no cluster that JAX knows; say --coordinator HOST:PORT" in errors


def test_a_lost_device_gives_one_line(monkeypatch, capsys, tmp_path):
    def step(*_):
        raise jax.errors.JaxRuntimeError("INTERNAL: the device is gone\nwhere: in XLA")

    program = ImageWorkload.program
    monkeypatch.setattr(ImageWorkload, "program", lambda *a, **k: dataclasses.replace(program(*a, **k), step=step))
    assert main([*map(str, GOLDEN[2:]), "--cache", str(tmp_path)]) == 1
    line = capsys.readouterr().err.splitlines()[-1]
    assert "(INTERNAL: the device is gone); the same command goes on" in line
