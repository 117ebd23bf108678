"""The shipped injections have the verdicts that their reference results state."""

import json
import os
import subprocess
import sys

import pytest
from fault_injection.training.session import Session

from fault_injection.faults.injection_file import read_injection
from fault_injection.runs.outcome import IMMEDIATE, MASKED, OUTCOMES, SHARP, SHARP_SLOW, SLOW
from fault_injection.training.workloads import make_workload
from models.fault import inactive_fault


@pytest.fixture(scope="module")
def reference(repository):
    """Outcome and whether masking was proved, by name, as in the reference results."""
    found = {}
    for path in sorted((repository / "results" / "reference").glob("*/outcome.json")):
        outcome = json.loads(path.read_text())
        found[path.parent.name] = outcome["outcome"], outcome["exactly_masked_after"] is not None
    return found


@pytest.fixture(scope="module")
def files(repository):
    """The shipped injections, by path."""
    return {path: read_injection(path) for path in sorted((repository / "injections").glob("*.csv"))}


@pytest.fixture(scope="module")
def resnets(files):
    """Those of ResNet-18 and its variants, which compile fastest."""
    return [path for path, injection in files.items() if injection.workload.network.startswith("resnet18")]


def test_every_shipped_injection_is_valid_and_has_a_reference_result(repository, files, reference):
    assert {path.stem for path in files} == reference.keys()
    assert len(list((repository / "injections" / "published").glob("*.csv"))) == 14


@pytest.mark.parametrize("stage", ["forward", "backward"])
def test_both_passes_have_an_example_of_each_kind(files, reference, stage):
    verdicts = {reference[path.stem] for path, injection in files.items() if injection.site.stage == stage}
    assert verdicts >= {(MASKED, False), (MASKED, True), (IMMEDIATE, False)}
    assert {outcome for outcome, _ in verdicts} & {SLOW, SHARP, SHARP_SLOW}
    assert {outcome for outcome, _ in verdicts} <= set(OUTCOMES)


def verdicts(repository, tmp_path, threads, seeds, files, flags=""):
    """What a process of its own makes of some injections."""
    done = subprocess.run(
        [sys.executable, "tests/shipped.py", str(threads), tmp_path, ",".join(map(str, seeds)), *files],
        cwd=repository,
        env={**os.environ, "PYTHONPATH": ".", "XLA_FLAGS": flags},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return {
        seed: {name: tuple(verdict) for name, verdict in named.items()}
        for seed, named in json.loads(done.stdout).items()
    }


@pytest.mark.slow
@pytest.mark.parametrize("threads, seeds, devices", [(1, [123], 1), (2, [1, 2], 1), (2, [123], 8)])
def test_verdicts_do_not_depend_on_threads_seed_or_devices(
    repository, reference, tmp_path, resnets, threads, seeds, devices
):
    flags = f"--xla_force_host_platform_device_count={devices}"
    for named in verdicts(repository, tmp_path, threads, seeds, resnets, flags).values():
        assert named == {path.stem: reference[path.stem] for path in resnets}


@pytest.mark.slow
def test_the_other_networks_have_their_verdicts(repository, reference, tmp_path, files, resnets):
    others = [path for path in files if path not in resnets]
    expected = {path.stem: reference[path.stem] for path in others}
    assert verdicts(repository, tmp_path, 2, [123], others) == {"123": expected}


@pytest.mark.slow
def test_an_inactive_fault_changes_no_bit_at_full_width():
    session = Session(make_workload("resnet18", dataset="digits", batch_size=128))
    state = session.start()
    _, report = session.faulty_step(state, 0, 0, inactive_fault())
    ((_, _, plain_report),) = session.steps(state, 0, 0, 1)
    assert (plain_report.digest == report.digest).all()
    assert plain_report.loss.tobytes() == report.loss.tobytes()
