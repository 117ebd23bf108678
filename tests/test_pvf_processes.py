"""Trials as users run them: real processes, really killed, and every trial once.

`test_vulnerability_driver` kills more often, and grows a store.
"""

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
flips = [4, 8]
trials = 2048
layers = false
[wrong]
criterion = "decision"
"""
PARTS = 2 * (16 + 8)  # blocks of 64 trials, and of 128 from 1,024 on


def start(folder, cache, repository, jobs):
    folder.mkdir(exist_ok=True)
    (folder / "plan.toml").write_text(PLAN)
    return killed.start(folder / "log", repository, *arguments(folder, cache), "--jobs", jobs)


def arguments(folder, cache):
    return ["pvf", folder / "plan.toml", "--out", folder / "out", "--cache", cache]


def parts(folder):
    return {path.name: path.read_bytes() for path in (folder / "out" / "trials").glob("*.npz")}


def test_kills_of_a_job_and_of_the_driver_change_nothing_and_a_second_driver_is_refused(tmp_path, cache, repository):
    undisturbed, disturbed, rng = tmp_path / "undisturbed", tmp_path / "disturbed", random.Random(2)
    assert start(undisturbed, cache, repository, "1").wait(600) == 0
    expected = parts(undisturbed)
    assert len(expected) == PARTS

    def until(done):
        while not done():
            assert process.poll() is None, (disturbed / "log").read_text()
            time.sleep(0.02)

    process = start(disturbed, cache, repository, "2")
    until((disturbed / "out" / "pvf.lock").exists)  # it trains
    second = [sys.executable, "-m", "fault_injection", *map(str, arguments(disturbed, cache))]
    refused = subprocess.run(second, cwd=repository, capture_output=True)
    assert refused.returncode == 2 and b"another process is at work in this folder" in refused.stderr
    until(lambda: len(parts(disturbed)) > PARTS // 6)
    assert killed.kill(process, rng, driver=True)
    process = start(disturbed, cache, repository, "2")
    until(lambda: len(parts(disturbed)) > PARTS // 2)
    killed.kill(process, rng, driver=False)
    assert process.wait(600) == 0, (disturbed / "log").read_text()
    assert parts(disturbed) == expected
    assert (disturbed / "out" / "rates.json").exists()
