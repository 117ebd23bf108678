"""Trials as users run them: real processes, really killed, and every trial once."""

import random
import subprocess
import sys
import time

import killed
import pytest

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("compiled_quickly")]

PLAN = """
workload = "dlrm"
[options]
epochs = 1
steps_per_epoch = 20
[components]
bottom = ["bot_*"]
[faults]
flips = [4]
trials = 5120
layers = false
[wrong]
criterion = "decision"
"""
KILLS, BATCHES = 3, 20


def start(folder, cache, repository, jobs="2"):
    (folder / "plan.toml").write_text(PLAN)
    arguments = ["pvf", folder / "plan.toml", "--out", folder / "out", "--cache", cache, "--jobs", jobs]
    return killed.start(folder / "log", repository, *arguments)


def batches(folder):
    return {path.name: path.read_bytes() for path in (folder / "out" / "trials").glob("*.npz")}


def test_kills_of_driver_and_jobs_change_nothing(tmp_path, cache, repository):
    """One while it sets up, then one in each third of the batches, at any moment; every second hits the driver."""
    undisturbed, disturbed = tmp_path / "undisturbed", tmp_path / "disturbed"
    undisturbed.mkdir()
    disturbed.mkdir()
    assert start(undisturbed, cache, repository).wait(600) == 0
    expected = batches(undisturbed)
    assert len(expected) == BATCHES

    rng, drivers = random.Random(2), 0
    process = start(disturbed, cache, repository)
    for number in range(KILLS):
        while len(batches(disturbed)) < number * BATCHES // KILLS - 3:
            assert process.poll() is None, (disturbed / "log").read_text()
            time.sleep(0.02)
        time.sleep(rng.uniform(0, 0.5) if number else rng.uniform(1, 9))
        assert process.poll() is None, (disturbed / "log").read_text()
        if killed.kill(process, rng, driver=number % 2 == 0):
            drivers += 1
            process = start(disturbed, cache, repository)
    assert process.wait(600) == 0, (disturbed / "log").read_text()
    assert batches(disturbed) == expected and drivers >= 2
    assert (disturbed / "out" / "rates.json").exists()


def test_a_second_driver_is_refused(tmp_path, cache, repository):
    first = start(tmp_path, cache, repository, "1")
    while not batches(tmp_path):
        assert first.poll() is None, (tmp_path / "log").read_text()
        time.sleep(0.05)
    arguments = ["pvf", tmp_path / "plan.toml", "--out", tmp_path / "out", "--cache", cache]
    second = subprocess.run([sys.executable, "-m", "fault_injection", *arguments], cwd=repository, capture_output=True)
    assert second.returncode == 2 and b"another process is at work in this folder" in second.stderr
    killed.kill(first, random.Random(0), driver=True)
