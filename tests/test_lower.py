"""The command `lower`: programs compiled for devices that are only described."""

import importlib.metadata
import json
import os
import pathlib
import re
import subprocess
import sys

import jax
import numpy as np
import pytest
from small import flags, small

from fault_injection.commands.lower import _wrong
from fault_injection.commands.main import main
from fault_injection.machine.devices import described, devices, only_described, platform
from fault_injection.runs.lowered import Compiled

TEXT = "transformer --width 16 --blocks 1 --context 8 --sites lm_head* --precision bfloat16"
OWN = str(pathlib.Path(__file__).parent / "own_training.py") + ":training"


def test_what_a_program_is_lowered_from_are_the_shapes_that_it_runs_with():
    """So what is compiled from shapes is what runs, on devices that are there."""
    program = small().program(frozenset())
    batch, test = program.batch(0, 0), program.forward_passes().tests()[0]
    for part, data in (("step", batch), ("evaluate", test)):
        given = jax.tree.leaves(program.extras.lower[part]().in_avals)
        state = jax.tree.leaves(program.state.abstract)
        assert [(one.shape, one.dtype) for one in given[: len(state)]] == [(one.shape, one.dtype) for one in state]
        found = {(one.shape[2:], one.dtype) for one in given[len(state) : len(state) + len(data)]}
        assert found == {(np.shape(one)[2:], one.dtype) for one in data.values()}, part


def test_nothing_is_put_on_described_devices():
    with described("cpu") as found:
        assert only_described() and devices() == found and platform() == "cpu"
        program = small().program(frozenset())
        leaf = jax.tree.leaves(program.place(program.init()))[0]
        assert isinstance(leaf, jax.ShapeDtypeStruct) and leaf.sharding is not None
    assert not only_described() and devices() == jax.devices()


@pytest.mark.parametrize("words", [["resnet18", *flags(), "--sites", "fc*"], [OWN]], ids=["explicit", "own"])
def test_a_program_for_this_machine_compiles_with_its_strikes(words, capsys):
    with jax.numpy_dtype_promotion("standard"):  # as a user has it
        assert main(["lower", *words, "--topology", "cpu", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    programs = {one["name"]: one for one in found["programs"]}
    assert found["wrong"] == [] and {"step", "supporting", "one", "all"} <= programs.keys()
    assert all(one["problem"] is None and one["memory"] > 0 for one in programs.values())
    there, expected = programs["all"]["strikes"]
    assert there >= expected > 1
    assert programs["supporting"]["exchanges"] == programs["step"]["exchanges"]


def test_what_is_wrong_is_said():
    step = Compiled("step", memory=10, available=20, branches=3, exchanges=1)
    found = {
        "step": step,
        "supporting": Compiled("supporting", exchanges=2),
        "one": Compiled("one", problem="XlaRuntimeError: no"),
        "all": Compiled("all", memory=21 * 10**9, available=2 * 10**10),
    }
    assert _wrong(found, {"all": (61, 63)}) == [
        "one does not compile: XlaRuntimeError: no",
        "all does not fit: 21.0 GB of 20.0 GB",
        "all has 61 of 63 strikes: the others were compiled away",
        "fault support adds 1 exchange(s) between devices to the fault-free step",
    ]
    assert _wrong({"step": step}, {}) == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["resnet18", "--topology", "gpu:h100"], "topology 'gpu:h100'; expected cpu, or such as tpu:v2:2x2"),
        (["resnet18", "--topology", "tpu"], "topology 'tpu'; expected cpu"),
        (["resnet18", "--topology", "cpu", "--sites", "fd*"], "--sites 'fd*' names no site of resnet18"),
        (["resnet18", "--topology", "cpu", "--parts", "stap"], "'stap'; expected some of step, supporting, one, all"),
        (["resnet18", "--topology", "cpu", "--effort", "2"], "'2'; expected a number from -1 to 1"),
        (["resnet81", "--topology", "cpu"], "did you mean 'resnet18'"),
        (["resnet18"], "--topology"),
    ],
)
def test_a_wrong_word_is_refused_in_one_line(words, message, capsys):
    assert main(["lower", *words]) == 2
    said = capsys.readouterr()
    assert message in said.err and said.err.count("\n") == 1 and said.out == ""


@pytest.fixture(scope="module")
def libtpu(tmp_path_factory):
    """A folder with `libtpu` alone, in the version that JAX names: where JAX finds it, it looks for a TPU each time."""
    wanted = next(one for one in importlib.metadata.requires("jax") or [] if re.match(r"libtpu\b.*extra == .tpu", one))
    folder = tmp_path_factory.mktemp("libtpu")
    pip = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "-q",
        "--no-deps",
        "--target",
        str(folder),
        wanted.split(";")[0].strip(),
    ]
    if (done := subprocess.run(pip, capture_output=True, text=True)).returncode:
        pytest.skip(f"libtpu cannot be installed: {done.stderr.strip()[-200:]}")
    return folder


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "topology", "devices"),
    [
        ([OWN], "tpu:v2:2x2", 1),
        # With little effort, which leaves as much to be compiled away, and takes a tenth of the time.
        (["examples/shard_map/my_run.py:training", "--effort", "-1"], "tpu:v5e:2x4", 8),
        ([*TEXT.split(), "--effort", "-1"], "tpu:v6e:2x2", 4),
    ],
    ids=["own step, v2", "own step on a mesh, v5e", "transformer in bfloat16, v6e"],
)
def test_programs_compile_for_tpus_that_are_not_there(words, topology, devices, libtpu, repository):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(libtpu), str(repository)]), "XLA_FLAGS": ""}
    command = [sys.executable, "-m", "fault_injection", "lower", *words, "--topology", topology, "--json"]
    done = subprocess.run(command, cwd=repository, env=environment, capture_output=True, text=True)
    found = json.loads(done.stdout)
    assert done.returncode == 0 and found["wrong"] == [], done.stderr
    programs = {one["name"]: one for one in found["programs"]}
    assert all(one["code"] > 0 and one["estimate"] > 0 for one in programs.values())  # of a TPU's compiler
    assert programs["one"]["strikes"][0] >= 1 and (programs["step"]["exchanges"] > 0) == (devices > 1)
