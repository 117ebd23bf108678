"""A step that the compiler shares out over eight devices has global operands, and is struck as one that is mapped."""

import json
import os
import subprocess
import sys

import pytest

from fault_injection.machine.sources import ROOT

pytestmark = pytest.mark.slow
NAME = f"{ROOT / 'examples' / 'shard_map' / 'my_run.py'}:"


def done(*command):
    run = subprocess.run(
        [sys.executable, *map(str, command)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stderr
    return run.stdout


def test_strikes_equal_the_step_modified_by_hand_and_an_inactive_fault_the_reference():
    sites, strikes, changed = map(int, done(ROOT / "tests" / "automatic_sharding.py").split())
    assert (sites, strikes) == (5, 45) and changed >= 38


def test_sites_says_whose_the_elements_are():
    said = "8 devices share out the operands; without workers, a position is one of the global operand"
    assert said in done("-m", "fault_injection", "sites", f"{NAME}automatic")
    assert "global" not in done("-m", "fault_injection", "sites", f"{NAME}training")
    found = json.loads(done("-m", "fault_injection", "sites", f"{NAME}automatic", "--json"))
    assert {site["workers"] for site in found} == {1}
