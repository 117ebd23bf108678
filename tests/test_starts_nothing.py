"""Commands that compute nothing import no JAX: they answer at once, and claim no accelerator."""

import os
import pickle
import shutil
import subprocess
import sys

import pytest

from fault_injection.workloads.registry import make_workload

# Runs a command, and says on the last line which of these were imported.
RUN = """
import sys
from fault_injection.commands.main import main
code = 0
try:
    code = main(sys.argv[1:])
except SystemExit as end:
    code = end.code or 0
print(code, *sorted({"jax", "jaxlib", "flax", "optax"} & set(sys.modules)))
"""
SMALLER = "--dataset digits --width 8 --epochs 20 --batch-size 128"

COMMANDS = {
    "help": "--help",
    "results": "results results/reference/quick_start",
    "detect": "detect {folder}/values.csv --detector loss_spike",
    "status": "status {folder}/campaign",
    "report": "report {folder}/campaign",
    "export": "export {folder}/campaign",
    "export injections": "export {folder}/campaign --id 3",
    "scale": f"scale injections/published/resnet18-slow_degrade.csv {SMALLER} --out {{folder}}/scaled.csv",
}


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_that_computes_nothing_imports_no_jax(repository, name, tmp_path):
    shutil.copytree(repository / "results" / "campaign", tmp_path / "campaign")
    rows = [f"{step},loss,{1 / (step + 1)}" for step in range(50)]
    (tmp_path / "values.csv").write_text("\n".join(["step,tensor,value", *rows]) + "\n")
    words = COMMANDS[name].format(folder=tmp_path).split()
    done = subprocess.run([sys.executable, "-c", RUN, *words], cwd=repository, capture_output=True, text=True)
    assert done.stderr == "" and done.stdout.splitlines()[-1] == "0", done.stderr + done.stdout[-500:]


# What a process without JAX reads of a workload: the two kinds of what can be struck.
READ = """
import pickle, sys
workload = pickle.load(sys.stdin.buffer)
found = dict(workload.sites()), dict(workload.leaves())
assert "jax" not in sys.modules
sys.stdout.buffer.write(pickle.dumps(found))
"""
WORKLOADS = {
    "of images": make_workload("resnet18", dataset="digits", width=2, blocks=(1, 1, 1, 1), precision="bfloat16"),
    "of clicks": make_workload("dlrm"),
    "of text, copies": make_workload("transformer", strategy="ddp"),
}


@pytest.mark.parametrize("name", WORKLOADS)
def test_what_a_process_without_jax_reads_is_what_tracing_finds(repository, name, tmp_path):
    """The first time, once more from the file that was kept, and after that file was damaged."""
    workload = WORKLOADS[name]
    traced = dict(workload.sites()), dict(workload.leaves())
    environment = os.environ | {"FAULT_INJECTION_CACHE": str(tmp_path)}
    for damage in (None, None, b"{", b'{"sites": [], "leaves": [[0]]}'):
        (*kept,) = tmp_path.glob("sites/*.json")
        if damage is not None:
            kept[0].write_bytes(damage)
        done = subprocess.run(
            [sys.executable, "-c", READ],
            cwd=repository,
            input=pickle.dumps(workload),
            capture_output=True,
            env=environment,
        )
        assert done.returncode == 0, done.stderr
        assert pickle.loads(done.stdout) == traced
    assert len(kept) == 1


OWN = """
import dataclasses
from fault_injection.workloads.image import ImageWorkload


class Narrow(ImageWorkload):
    def recipe(self, data_dir=None):
        return dataclasses.replace(self, width={width}).as_it_is(data_dir)

    as_it_is = ImageWorkload.recipe


def workload():
    return Narrow(name="narrow", dataset="digits", batch_size=128, workers=8, blocks=(1, 1, 1, 1))
"""
SHAPE = """
import sys
from fault_injection.models.fault import Operand
from fault_injection.workloads.own_file import own_function
make, _ = own_function(sys.argv[1])
print(make().sites()["conv1"].shapes[Operand.WEIGHT])
"""


def test_what_was_found_of_a_users_class_is_not_believed_after_an_edit(repository, tmp_path):
    """The file imports no JAX before it is asked for a recipe, so nothing else makes the process trace."""
    environment = {**os.environ, "PYTHONPATH": str(repository), "FAULT_INJECTION_CACHE": str(tmp_path / "cache")}
    found = []
    for width in (4, 6):
        (tmp_path / "mine.py").write_text(OWN.format(width=width))
        words = [sys.executable, "-c", SHAPE, f"{tmp_path / 'mine.py'}:workload"]
        done = subprocess.run(words, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        found.append(done.stdout.strip())
    assert found == ["(7, 7, 3, 4)", "(7, 7, 3, 6)"]
