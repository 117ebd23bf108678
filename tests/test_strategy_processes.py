"""Strategies in several processes, for real: each loads its own checkpoint, and all compute what one would."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time

import numpy as np
import pytest
from small import flags
from strategy_programs import NAMES, WORKERS, program
from whole import only_whole, some

from fault_injection.checkpoints.continuation import named_arrays
from fault_injection.machine.files import write_arrays

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("compiled_quickly")]

# Every loader starts from a state of its own: by how much its parameters and moments are larger tells whose it is.
TRAINED = """
import json, os, pathlib, sys
from fault_injection.checkpoints.formats import open_checkpoint
from fault_injection.machine.environment import prepare
from fault_injection.machine.processes import join
address, processes, process, out, steps, checkpoints, *names = sys.argv[1:]
prepare()
if int(processes) > 1:
    join(address, int(processes), int(process))
sys.path.insert(0, "tests")
import jax
import numpy as np
from strategy_programs import program, trained

found = {}
for name in names:
    own = program(name, "adam")
    asked = []

    def load(r):
        asked.append(r)
        read = open_checkpoint(pathlib.Path(checkpoints) / f"{r}.npz")
        arrays = [read.array(leaf.name) for leaf in own.state.leaves]
        return jax.tree.unflatten(jax.tree.structure(own.state.abstract), arrays)

    state = own.start(load)
    for number in range(int(steps)):
        at = divmod(number, own.steps_per_epoch)
        state, report = jax.block_until_ready(own.step(state, own.batch(*at), *at))
        print(name, number, flush=True)
    told = jax.device_get(report)
    found[name] = {
        "asked": sorted(asked),
        "loaders": own.state.loaders,
        "digest": np.asarray(told.digest).tolist(),
        "told": {"loss": float(told.loss)}
        | {leaf.name: float(value) for leaf, value in zip(own.state.watched, told.magnitude, strict=True)},
    }
with open(out, "w") as file:
    json.dump(found, file)
"""


def free_address():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{free.getsockname()[1]}"


def write_checkpoints(folder):
    """A checkpoint for each loader, all different."""
    own = program("replicated", "adam")
    for r in range(WORKERS):
        arrays = named_arrays(own, own.init())
        altered = {name: (x * (1 + r / 8) + r / 8 * (x == 0)).astype(x.dtype) for name, x in arrays.items()}
        write_arrays(folder / f"{r}.npz", altered)


def start(repository, processes, out, steps, names, devices=1):
    address = free_address()
    environment = os.environ | {"XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}", "NPROC": "8"}
    pipe = subprocess.PIPE
    return [
        subprocess.Popen(
            [
                sys.executable,
                "-c",
                TRAINED,
                address,
                str(processes),
                str(i),
                str(out / f"{i}.json"),
                str(steps),
                str(out.parent),
                *names,
            ],
            cwd=repository,
            env=environment,
            stdout=pipe,
            stderr=pipe,
            text=True,
        )
        for i in range(processes)
    ]


def finished(started, out):
    errors = [process.communicate(timeout=500)[1] for process in started]
    assert [process.returncode for process in started] == [0] * len(started), errors[0][-3000:]
    return [json.loads((out / f"{i}.json").read_text()) for i in range(len(started))]


NAMES_FOR = {
    2: [name for name in NAMES if name != "pipeline 4"],
    # one of each kind; by default those that load once, by every worker, and by every stage
    4: some(["replicated", "ddp", "horovod", "zero parameters", "pipeline 4"], ["replicated", "ddp", "pipeline 4"]),
}


@pytest.mark.parametrize("processes", some([*NAMES_FOR], [4]))
def test_processes_that_load_their_own_checkpoints_compute_what_one_process_computes(repository, tmp_path, processes):
    """A process reads the checkpoints of its own loaders.  A sum of two has one order; of four it may have others."""
    names = NAMES_FOR[processes]
    write_checkpoints(tmp_path)
    one, several = tmp_path / "one", tmp_path / "several"
    one.mkdir()
    several.mkdir()
    (alone,) = finished(start(repository, 1, one, 5, names, devices=processes), one)
    all_of = finished(start(repository, processes, several, 5, names), several)
    for name in names:
        expected = alone[name]
        loaders = expected["loaders"]
        assert expected["asked"] == [*range(loaders)]
        for i, found in enumerate(each[name] for each in all_of):
            assert found["asked"] == [r for r in range(loaders) if r * processes // loaders == i], (name, i)
            if processes == 2:
                assert found["digest"] == expected["digest"], name
            for leaf, value in found["told"].items():
                # A bias before a norm has no gradient but rounding noise, which Adam makes as large as any.  It moves
                # the norm's mean a little.
                if not re.search("conv./bias", leaf):
                    assert value == pytest.approx(expected["told"][leaf], rel=1e-2, abs=1e-6), (name, leaf)
            assert found["told"] == all_of[0][name]["told"]
    told = [alone[name]["told"]["loss"] for name in ("replicated", "horovod", "zero parameters") if name in names]
    assert len({*told}) == len(told)  # else the starts would tell nothing apart
    assert alone["replicated"]["loaders"] == 1 and alone["ddp"]["loaders"] == WORKERS


def golden(repository, cache, strategy, epochs, processes):
    """Processes that make a golden run; a single one has two devices."""
    options = [*flags(strategy=strategy), "--epochs", epochs, "--keep-epochs", 0, "--cache", cache]
    address = free_address()
    joined = [["--coordinator", address, "--processes", processes, "--process", i] for i in range(processes)]
    devices = f"--xla_force_host_platform_device_count={3 - processes}"
    environment = os.environ | {"XLA_FLAGS": devices, "NPROC": "2"}  # XLA has a thread for each device, at least
    pipe = subprocess.PIPE
    return [
        subprocess.Popen(
            [sys.executable, "-m", "fault_injection", "golden", "resnet18", *map(str, [*options, *more])],
            cwd=repository,
            env=environment,
            stdout=pipe,
            stderr=pipe,
            text=True,
        )
        for more in (joined if processes > 1 else [[]])
    ]


def records(cache):
    """Of the golden run in a cache, an epoch each."""
    return sorted(cache.glob("golden/*/records/[0-9]*.npz"))


@only_whole
@pytest.mark.parametrize("strategy", ["pipeline 2"])  # the others' sums are compared above
def test_two_processes_make_the_golden_run_of_two_devices_and_end_together(repository, tmp_path, strategy):
    (alone,) = golden(repository, tmp_path / "one", strategy, 2, 1)
    errors = alone.communicate(timeout=300)[1]
    assert alone.returncode == 0, errors
    both = golden(repository, tmp_path / "two", strategy, 1000, 2)
    try:
        deadline = time.monotonic() + 200
        while len(records(tmp_path / "two")) < 2 and time.monotonic() < deadline:
            assert [process.poll() for process in both] == [None, None], both[0].communicate()[1]
            time.sleep(0.05)
        both[1].kill()
        begun = time.monotonic()
        errors = both[0].communicate(timeout=60)[1]
        assert time.monotonic() - begun < 30
        # Where JAX's own watch over the processes is faster than the failing computation, it ends the process.
        expected = {1: "the same command goes on where it stopped", -signal.SIGABRT: "another task died"}
        said = [line for line in errors.splitlines() if expected[both[0].returncode] in line]
        assert len(said) == 1 and "Traceback" not in errors
    finally:
        for process in both:
            process.kill()
            process.communicate()
    for one, two in zip(records(tmp_path / "one"), records(tmp_path / "two"), strict=False):
        np.testing.assert_array_equal(np.load(one)["digest"], np.load(two)["digest"])
    again = golden(repository, tmp_path / "two", strategy, len(records(tmp_path / "two")) + 1, 2)  # from a checkpoint
    errors = [process.communicate(timeout=300)[1] for process in again]
    assert [process.returncode for process in again] == [0, 0], errors[0]
