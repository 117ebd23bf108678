"""A step that the compiler shares out over eight devices has global operands, and is struck as one that is mapped."""

import json
import os
import subprocess
import sys

import pytest

from fault_injection.machine.sources import ROOT

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


@pytest.mark.slow
def test_strikes_equal_the_step_modified_by_hand():
    sites, strikes, changed = map(int, done(ROOT / "tests" / "automatic_sharding.py").split())
    assert (sites, strikes) == (4, 36) and changed >= 30


@pytest.mark.slow
@pytest.mark.xfail(strict=True, reason="the compiler shares out a product with fault support in another way")
def test_an_inactive_fault_changes_no_bit_with_support_for_all_sites():
    assert done(ROOT / "tests" / "automatic_sharding.py", "all") == "True\n"


@pytest.mark.slow
def test_sites_says_whose_the_elements_are():
    said = "8 devices share out the operands; without workers, a position is one of the global operand"
    assert said in done("-m", "fault_injection", "sites", f"{NAME}automatic")
    assert "global" not in done("-m", "fault_injection", "sites", f"{NAME}training")
    found = json.loads(done("-m", "fault_injection", "sites", f"{NAME}automatic", "--json"))
    assert {site["workers"] for site in found} == {1}
