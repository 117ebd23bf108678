"""Reading starts nothing: what a file names is found by shapes alone."""

import subprocess
import sys

import pytest

READ = """
import pathlib, sys
from jax._src import xla_bridge
from fault_injection.faults.injection_file import read_injection
from fault_injection.questions.outcomes.plan_file import read_plan
from fault_injection.questions.vulnerability.plan_file import read_pvf_plan

injection, plan, pvf = map(pathlib.Path, sys.argv[1:])
target = read_injection(injection).layer
sites = read_plan(plan).workload.sites(), read_pvf_plan(pvf).cells
assert not xla_bridge.backends_are_initialized()
print(target)
"""


@pytest.mark.parametrize(
    ("name", "stage", "target", "position"),
    [
        ("resnet18", "state", "opt_state/v/conv1/kernel", "0/0/0/0"),
        ("transformer", "state", "params/norm/scale", "0"),
        ("dlrm", "gradient", "gradient/bot_0/kernel", "0/0"),
    ],
)
def test_a_file_is_read_without_a_backend(repository, tmp_path, name, stage, target, position):
    """A fault in the state or in an exchanged gradient, a plan of such faults, and one of parameters at inference."""
    rows = {"model": name, "target": target, "target_epoch": 1, "target_step": 0, "inj_pos": position}
    rows |= {"inj_bits": "xor:40000000", "learning_rate": 0.001, "seed": 1}
    injection, plan = tmp_path / "fault.csv", tmp_path / "plan.toml"
    injection.write_text("".join(f"{key},{value}\n" for key, value in rows.items()))
    faults = f'experiments = 1\nstages = ["{stage}"]\nsites = ["{target}"]'
    plan.write_text(f'workload = "{name}"\n[faults]\n{faults}\n[faults.models]\nFLIPS_1 = 1\n')
    pvf = repository / "injections" / "plans" / "pvf" / f"{name}.toml"
    command = [sys.executable, "-c", READ, str(injection), str(plan), str(pvf)]
    done = subprocess.run(command, cwd=repository, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == target
