"""The golden run survives being killed and damaged, and never uses what it cannot trust."""

import dataclasses
import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import time

import jax
import numpy as np
import pytest
from small import flags, small, striking_program
from whole import only_whole

from fault_injection.runs.golden_run import Golden, NotRepeated, nudged
from fault_injection.runs.noise import noise_floor
from fault_injection.runs.run_store import RunStore
from fault_injection.runs.steps import Address
from fault_injection.seam.digest import digest
from fault_injection.seam.trees import same_bits

pytestmark = pytest.mark.usefixtures("compiled_quickly")

EPOCHS = 4
WORKLOAD = small(epochs=EPOCHS)
COMMAND = ["golden", "resnet18", *flags(epochs=EPOCHS)]


@pytest.fixture(scope="module")
def program():
    return striking_program()


@pytest.fixture(scope="module")
def whole(program, tmp_path_factory):
    """A golden run that nothing disturbed."""
    golden = Golden(WORKLOAD, program, tmp_path_factory.mktemp("whole"))
    golden.make(EPOCHS)
    return golden


@pytest.fixture
def copy(whole, tmp_path):
    """The same run in a folder that a test may damage."""
    copy = dataclasses.replace(whole, cache=tmp_path)
    copy.folder.mkdir(parents=True)
    for path in whole.folder.rglob("*.*"):
        (copy.folder / path.relative_to(whole.folder)).parent.mkdir(exist_ok=True)
        (copy.folder / path.relative_to(whole.folder)).write_bytes(path.read_bytes())
    return copy


def files(folder: pathlib.Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*.npz"))}


def flip_byte(path: pathlib.Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.slow
def test_killed_at_any_moment_and_started_again_it_ends_bit_identical(whole, repository, tmp_path):
    command = [sys.executable, "-m", "fault_injection", *COMMAND, "--cache", str(tmp_path)]
    moments = random.Random(1)
    kills = 0
    while kills < 3:
        process = subprocess.Popen(command, cwd=repository, stderr=subprocess.PIPE, text=True, start_new_session=True)
        # The bar appears when training starts; from then on the run is killed within its four epochs.
        while "golden:" not in (line := process.stderr.readline()) and line:
            pass
        time.sleep(moments.uniform(0, 1.5))
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        kills += 1
        if list(tmp_path.glob("golden/*/records/0003.npz")):
            break
    assert subprocess.run(command, cwd=repository, stderr=subprocess.DEVNULL).returncode == 0
    assert files(tmp_path / "golden" / whole.folder.name) == files(whole.folder)


@pytest.mark.parametrize("damage", [flip_byte, lambda path: path.write_bytes(path.read_bytes()[:1000])])
def test_a_damaged_checkpoint_is_named_and_made_again(whole, copy, capsys, damage):
    path = copy.store.checkpoint_path(2)
    damage(path)
    state = copy.fetch_state_before(2)
    assert str(path) in capsys.readouterr().err
    assert same_bits(state, whole.fetch_state_before(2))
    assert files(copy.folder) == files(whole.folder)


def test_a_checkpoint_of_something_else_is_not_used(copy, whole, capsys):
    copy.store.checkpoint_path(2).write_bytes(copy.store.record_path(2).read_bytes())
    assert same_bits(copy.fetch_state_before(2), whole.fetch_state_before(2))
    assert "not a state of this workload" in capsys.readouterr().err


def test_a_run_that_does_not_repeat_its_record_is_refused(copy):
    """As on a machine that computes differently: the record, sound as a file, holds other digests."""
    record = copy.fetch_record(1)
    record["digest"][3, 5] ^= 1
    copy.store.write_record(1, record)
    copy.store.checkpoint_path(2).unlink()
    with pytest.raises(NotRepeated, match=rf"epoch 1, step 3 .*{copy.program.state.leaves[5].name} the first"):
        copy.fetch_state_before(2)


def test_a_run_that_another_device_made_is_named_and_not_used(copy):
    path = copy.folder / "golden.json"
    known = json.loads(path.read_text())
    platform, kind = (known["arithmetic"][name] for name in ("platform", "device_kind"))
    known["arithmetic"] |= {"platform": "abacus", "device_kind": "wood"}
    elsewhere = copy.folder.with_name("resnet18-digits-0123456789ab")
    copy.folder.rename(elsewhere)
    (elsewhere / "golden.json").write_text(json.dumps(known))
    here = dataclasses.replace(copy)
    assert here.recorded() == 0
    assert here.elsewhere() == [(elsewhere, f"platform abacus, here {platform}; device_kind wood, here {kind}")]
    known["workload"]["seed"] += 1
    (elsewhere / "golden.json").write_text(json.dumps(known))
    assert here.elsewhere() == []


@only_whole
@pytest.mark.slow
def test_without_space_one_line_names_the_file_and_the_run_goes_on_later(whole, repository, tmp_path):
    command = [sys.executable, "-m", "fault_injection", *COMMAND, "--cache", str(tmp_path)]
    limited = ["sh", "-c", 'ulimit -f 100; exec "$@"', "sh", *command]  # blocks, less than a checkpoint has
    done = subprocess.run(limited, cwd=repository, capture_output=True, text=True)
    assert done.returncode == 2
    assert "checkpoints/0000.npz" in done.stderr.splitlines()[-1]
    assert files(tmp_path) == {}
    assert subprocess.run(command, cwd=repository, stderr=subprocess.DEVNULL).returncode == 0
    assert files(tmp_path / "golden" / whole.folder.name) == files(whole.folder)


def test_only_the_epochs_asked_for_keep_their_checkpoints(whole, tmp_path):
    golden = dataclasses.replace(whole, cache=tmp_path, keep=frozenset({1}))
    golden.make(EPOCHS)
    assert golden.store.checkpoints() == [1, EPOCHS]
    size = sum(path.stat().st_size for path in golden.folder.rglob("*.npz"))
    # Names and alignment of a few hundred small arrays come on top of their bytes.
    assert size <= golden.disk_bytes(EPOCHS) + (2 + EPOCHS) * 400 * len(whole.program.state.leaves)
    assert same_bits(golden.fetch_state_before(3), whole.fetch_state_before(3))


def test_a_longer_run_continues_a_shorter_one(program, whole, tmp_path):
    golden = Golden(small(epochs=9), program, tmp_path)
    golden.make(2)
    golden.make(EPOCHS)
    assert golden.key == whole.key
    assert files(golden.folder) == files(whole.folder)


@pytest.mark.parametrize(
    "change",
    [{"seed": 124}, {"width": 4}, {"learning_rate": 0.01}, {"dropout": 0.1}, {"augmentation": "none"}, {"workers": 2}],
)
def test_another_workload_is_another_run(whole, change):
    workload = dataclasses.replace(WORKLOAD, **change)
    other = Golden(workload, workload.program(), whole.cache)
    assert other.key != whole.key


def test_twins_start_one_unit_in_the_last_place_apart_and_give_the_noise_floor(whole):
    start = whole.program.init().params
    for number in (1, 2):
        twin = whole.twin_run(number)
        assert twin.key != whole.key
        twin.make(EPOCHS)
        assert twin.store.checkpoints() == [EPOCHS]  # only its record is kept, besides the newest state
        other = jax.device_get(nudged(whole.program, number)).params
        differing = [
            (a[a != b], b[a != b])
            for a, b in zip(jax.tree.leaves(start), jax.tree.leaves(other), strict=True)
            if (a != b).any()
        ]
        ((mine, theirs),) = differing
        assert theirs == np.nextafter(mine, np.float32(np.inf))
    noise = noise_floor(whole, EPOCHS, 3)
    assert noise.twins == 2
    assert 0 <= noise.train < 0.2 and 0 <= noise.test < 0.3
    assert max(noise.train, noise.test) > 0  # of so few epochs, either may end alike

    runs = [whole, *map(whole.twin_run, (1, 2))]
    for epochs, window, first in ((EPOCHS, 3, 1), (EPOCHS, 1, 3), (2, 9, 0)):  # no more epochs than there are
        train = [[run.fetch_record(epoch)["train_metric"] for epoch in range(first, epochs)] for run in runs]
        found = noise_floor(whole, epochs, window)
        assert found.train == pytest.approx(np.std(np.mean(train, axis=1), ddof=1))


def test_one_twin_is_no_noise_floor(whole, tmp_path):
    """A standard deviation of two runs says nothing."""
    assert noise_floor(whole, EPOCHS, 3, twins=1) is None
    assert noise_floor(dataclasses.replace(whole, cache=tmp_path), EPOCHS, 3) is None


@pytest.mark.parametrize("at", [Address(0, 0), Address(1, 4), Address(2, 10)])
def test_any_state_of_the_run_can_be_had_again(whole, at):
    """It is the state whose digest was recorded; after an epoch's last step it is the next checkpoint."""
    state = whole.fetch_state_after(at)
    assert (np.asarray(digest(state)) == whole.fetch_record(at.epoch)["digest"][at.step]).all()
    if at.step == whole.program.steps_per_epoch - 1:
        assert same_bits(state, whole.store.read_checkpoint(at.epoch + 1))


def test_a_store_reads_back_the_state_that_was_written(program, tmp_path):
    store = RunStore(tmp_path, program.state.abstract, program.state.names)
    state = program.place(program.init())
    store.write_checkpoint(0, state)
    assert same_bits(state, store.read_checkpoint(0))
    assert store.checkpoints() == [0]
    assert store.recorded() == 0
