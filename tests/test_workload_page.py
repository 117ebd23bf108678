"""The page that tells how to add a workload, followed to the letter."""

import json
import os
import re
import shutil
import subprocess
import sys

import pytest

STEP = re.compile(
    r"A new file `(?P<new>[^`]+)`:\n\n```\w+\n(?P<text>.*?)```"
    r"|In `(?P<file>[^`]+)`, after\s+the\s+line `(?P<line>[^`]+)`:\n\n```\w+\n(?P<added>.*?)```"
    r"|```sh\n(?P<commands>.*?)```",
    re.DOTALL,
)


pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("compiled_quickly")]


@pytest.fixture(scope="module")
def followed(repository, tmp_path_factory):
    """A copy of the project in which every step was done, and what its commands printed."""
    project = tmp_path_factory.mktemp("project")
    for name in ("fault_injection", "tests/float64.py", "reproduce_injections.py"):
        copy = shutil.copytree if (repository / name).is_dir() else shutil.copy
        (project / name).parent.mkdir(exist_ok=True)
        copy(repository / name, project / name)
    printed = {}
    environment = {**os.environ, "PYTHONPATH": str(project), "FAULT_INJECTION_CACHE": str(project / "cache")}
    for step in STEP.finditer((repository / "docs" / "workload.md").read_text()):
        if step["new"]:
            (project / step["new"]).write_text(step["text"])
        elif step["file"]:
            path = project / step["file"]
            before, line, after = path.read_text().partition(step["line"] + "\n")
            assert line, f"{step['file']} has no line {step['line']!r}"
            path.write_text(before + line + step["added"] + after)
        else:
            for command in step["commands"].splitlines():
                words = [sys.executable, *command.split()[1:]]
                done = subprocess.run(words, cwd=project, env=environment, capture_output=True, text=True)
                assert done.returncode == 0, done.stderr
                printed[command] = done.stdout
    return project, printed


def test_the_backward_passes_of_the_page_are_derivatives(followed):
    (errors,) = (json.loads(text) for command, text in followed[1].items() if "float64" in command)
    assert errors.keys() >= {"leaky_relu", "toy"}
    assert max(errors.values()) <= 1e-10


def test_the_toy_has_sites(followed):
    (text,) = (text for command, text in followed[1].items() if " sites " in command)
    assert "toy_stage_2_block_0_grad_wt" in text


def test_the_toy_has_a_verdict(followed):
    outcome = json.loads((followed[0] / "out" / "toy" / "outcome.json").read_text())
    assert outcome["outcome"] == "Immediate INFs/NaNs"
