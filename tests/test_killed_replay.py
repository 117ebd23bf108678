"""A replay that is killed in its midst: a real process, started again."""

import functools
import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import own_training
import pytest

pytestmark = pytest.mark.usefixtures("compiled_quickly")

SLOWED = f"""model,{pathlib.Path(own_training.__file__)}:slowed
stage,fwrd_inject
fmodel,RD
target_worker,0
target_layer,forward:params/fc1/kernel
target_epoch,1
target_step,2
inj_pos,3/1
inj_values,0.05
seed,0
"""


@pytest.mark.slow
def test_killed_and_started_again_it_ends_with_the_same_verdict_and_numbers(cache, tmp_path, repository):
    file, waiting = tmp_path / "example.csv", cache / "replays"
    file.write_text(SLOWED)
    command = [sys.executable, "reproduce_injections.py", "--file", file, "--cache", cache, "--out"]
    ran = functools.partial(subprocess.run, cwd=repository, capture_output=True, text=True)
    undisturbed, out = tmp_path / "undisturbed", tmp_path / "killed"
    assert ran([*command, undisturbed]).returncode == 0
    process = subprocess.Popen([*command, out], cwd=repository, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    while not list(waiting.glob("*/checkpoints/000[3-5].npz")) and time.monotonic() < deadline:
        assert process.poll() is None
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert not (out / "outcome.json").exists()
    done = ran([*command, out])
    assert done.returncode == 0, done.stderr
    assert "going on with an interrupted replay" in done.stderr
    assert done.stdout.startswith(json.loads((undisturbed / "outcome.json").read_text())["outcome"])
    for name in ("replay_example.txt", "outcome.json"):
        assert (out / name).read_text() == (undisturbed / name).read_text()
    assert not list(waiting.iterdir())
