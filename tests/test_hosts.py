"""Three hosts: network namespaces of this machine, joined by a switch.  One of them goes dark, and the work is done."""

import contextlib
import itertools
import json
import os
import pathlib
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import time

import pytest
from small import flags
from whole import only_whole

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("compiled_quickly")]

NETWORK = "10.213.77"  # in the namespaces alone
PLAN = """
workload = "{training}"
[faults]
experiments = 200
seed = 3
[run]
exit = "full"
"""


def ip(*words):
    """What `ip` does, or why it does not."""
    return subprocess.run(["ip", *map(str, words)], capture_output=True, text=True, check=False)


class Host:
    """A namespace with an address, in which processes run as on a machine of its own."""

    def __init__(self, name, switch, number):
        self.name, self.address = name, f"{NETWORK}.{number}"
        self.files = pathlib.Path("/etc/netns") / name  # what stands there stands in /etc on this host
        self.started = []
        port = f"p{number}"
        for words in (
            ["netns", "add", name],
            ["-n", name, "link", "set", "lo", "up"],
            ["-n", name, "link", "add", "eth0", "type", "veth", "peer", "name", port, "netns", switch],
            ["-n", name, "addr", "add", f"{self.address}/24", "dev", "eth0"],
            ["-n", name, "link", "set", "eth0", "up"],
            ["-n", switch, "link", "set", port, "master", "switch", "up"],
        ):
            assert not (done := ip(*words)).returncode, done.stderr
        self.files.mkdir(parents=True)
        (self.files / "hosts").write_text(f"127.0.0.1 localhost\n{self.address} {socket.gethostname()}\n")

    def start(self, log, *arguments, **variables):
        """A process of Python on this host, whose output goes to a file."""
        command = ["ip", "netns", "exec", self.name, sys.executable, *map(str, arguments)]
        with log.open("a") as file:
            started = subprocess.Popen(
                command, env=os.environ | variables, stdout=file, stderr=file, start_new_session=True
            )
        self.started.append(started)
        return started

    def goes_dark(self):
        """Its cable is pulled, and its processes end: nobody hears of it."""
        assert not ip("-n", self.name, "link", "set", "eth0", "down").returncode
        self.kill()

    def kill(self):
        for pid in ip("netns", "pids", self.name).stdout.split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        for process in self.started:
            process.wait()

    def close(self):
        self.kill()
        ip("netns", "del", self.name)
        shutil.rmtree(self.files, ignore_errors=True)


@pytest.fixture
def hosts():
    """Three of them."""
    if shutil.which("ip") is None or os.geteuid() != 0:
        pytest.skip("network namespaces take iproute2 and a superuser")
    switch, made = f"fi{os.getpid()}", []
    if (done := ip("netns", "add", switch)).returncode:
        pytest.skip(f"no network namespaces here: {done.stderr.strip()}")
    try:
        assert not ip("-n", switch, "link", "add", "switch", "type", "bridge").returncode
        assert not ip("-n", switch, "link", "set", "switch", "up").returncode
        for number in (1, 2, 3):
            made.append(Host(f"{switch}-{number}", switch, number))
        yield made
    finally:
        for host in made:
            host.close()
        ip("netns", "del", switch)


def wait_until(true, process, log, seconds=240):
    deadline = time.monotonic() + seconds
    while not true():
        assert process.poll() is None and time.monotonic() < deadline, log.read_text()[-3000:]
        time.sleep(0.1)


def verdicts(out):
    """What is in a campaign's store so far."""
    query = "SELECT number, outcome, rule, steps, old_bits, new_bits FROM experiments ORDER BY number"
    with contextlib.closing(sqlite3.connect(f"file:{out / 'campaign.sqlite'}?mode=ro", uri=True)) as store:
        try:
            return store.execute(query).fetchall()
        except sqlite3.OperationalError:  # the table is not there yet
            return []


def test_a_campaign_on_three_hosts_of_which_one_goes_dark(hosts, tmp_path, repository):
    first, *_, last = hosts
    plan, out, log, file = (tmp_path / name for name in ("plan.toml", "out", "log", "dask.json"))
    plan.write_text(PLAN.format(training=f"{repository / 'tests' / 'own_training.py'}:training"))
    common = {"PYTHONPATH": str(repository), "NPROC": "1"}
    # A scheduler hears nothing of a host that goes dark; it waits five minutes for it, unless it is told otherwise.
    soon = {"DASK_DISTRIBUTED__SCHEDULER__WORKER_TTL": "10s"}
    scheduler = ["-m", "distributed.cli.dask_scheduler", "--host", first.address, "--port", 0, "--no-dashboard"]
    first.start(tmp_path / "scheduler.log", *scheduler, "--scheduler-file", file, **common, **soon)
    while not file.exists():
        time.sleep(0.1)
    address = json.loads(file.read_text())["address"]
    assert first.address in address
    worker = ["-m", "distributed.cli.dask_worker", address, "--nthreads", 1, "--no-nanny", "--no-dashboard"]
    for host in hosts:
        host.start(tmp_path / f"{host.name}.log", *worker, "--host", host.address, **common)
    command = ["-m", "fault_injection", "campaign", plan, "--cache", tmp_path / "cache"]
    process = first.start(log, *command, "--out", out, "--scheduler", address, **common)
    wait_until(lambda: (out / "campaign.sqlite").exists() and len(verdicts(out)) >= 20, process, log)
    assert len(verdicts(out)) < 200
    last.goes_dark()
    assert process.wait(300) == 0, log.read_text()[-3000:]
    assert len(verdicts(out)) == 200

    alone = subprocess.run(
        [sys.executable, *map(str, command), "--out", str(tmp_path / "alone"), "--jobs", "2"],
        env=os.environ | common,
        capture_output=True,
        text=True,
        check=False,
    )
    assert alone.returncode == 0, alone.stderr
    assert verdicts(out) == verdicts(tmp_path / "alone")


@only_whole
def test_a_golden_run_on_three_hosts_of_which_one_goes_dark_and_comes_back(hosts, tmp_path, repository):
    three = flags(workers=3, batch_size=126)

    def start(port, epochs):
        words = ["golden", "resnet18", *three, "--epochs", epochs, "--keep-epochs", 0, "--cache", tmp_path / "cache"]
        where = ["--coordinator", f"{hosts[0].address}:{port}", "--processes", 3]
        return [
            host.start(tmp_path / f"{port}.{i}.log", "-m", "fault_injection", *words, *where, "--process", i, NPROC="1")
            for i, host in enumerate(hosts)
        ]

    def made():
        return len([*(tmp_path / "cache").glob("golden/*/records/[0-9]*.npz")])

    running = start(7000, 1000)
    wait_until(lambda: made() >= 2, running[0], tmp_path / "7000.0.log")
    hosts[2].goes_dark()
    for process, number in zip(running[:2], itertools.count()):
        assert process.wait(90) != 0, (tmp_path / f"7000.{number}.log").read_text()
    assert not ip("-n", hosts[2].name, "link", "set", "eth0", "up").returncode
    reached = made()
    for number, process in enumerate(start(7001, reached + 1)):
        assert process.wait(240) == 0, (tmp_path / f"7001.{number}.log").read_text()
    assert made() == reached + 1
