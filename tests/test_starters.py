"""What `init` writes is a training that runs, as it is, in every library."""

import importlib.util

import jax
import pytest

from fault_injection.commands.init import STARTERS
from fault_injection.commands.main import main
from fault_injection.workloads.registry import find_workload


@pytest.fixture(autouse=True)
def as_users_have_it():
    with jax.numpy_dtype_promotion("standard"):
        yield


@pytest.mark.parametrize("library", STARTERS)
def test_a_starter_learns_and_can_be_struck(tmp_path, capsys, library):
    if library == "equinox" and not importlib.util.find_spec("equinox"):
        pytest.skip("Equinox is not installed")
    file = tmp_path / "my_run.py"
    assert main(["init", str(file), "--library", library]) == 0
    assert f"fault-injection sites {file}:training" in capsys.readouterr().out
    assert file.read_text().count("EDIT") >= 7
    workload = find_workload(f"{file}:training")
    roles = {name.partition(":")[0] for name in workload.sites()}
    assert roles == {"forward", "grad_in", "grad_wt"} and workload.remarks() == []
    assert len(workload.parameters()) >= 2 and workload.logits() == 10 and workload.measurable()
    program = workload.program()
    state = program.place(program.init())
    before = program.evaluate(state)
    for step in range(program.steps_per_epoch):
        state, _ = program.step(state, program.batch(0, step), 0, step)
    assert program.evaluate(state).metric > before.metric + 0.1
