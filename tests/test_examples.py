"""Every example in a docstring gives what it shows."""

import doctest
import importlib

import pytest
from conftest import HERE

PACKAGE = HERE.parent / "fault_injection"
MODULES = sorted(
    ".".join(path.relative_to(HERE.parent).with_suffix("").parts).removesuffix(".__init__")
    for path in PACKAGE.rglob("*.py")
    if path.name != "__main__.py"  # which runs the command line
    and "shipped" not in path.parts  # examples of users' files, which a folder of the package holds for the wheel
)
TRAINING = ("fault_injection", "fault_injection.runs.replay_run")  # their examples replay an injection
CASES = [pytest.param(name, marks=pytest.mark.slow) if name in TRAINING else name for name in MODULES]


@pytest.mark.parametrize("name", CASES)
def test_the_examples_of_a_module(name, repository, tmp_path, monkeypatch):
    """They are written for the checkout's folder, and use nothing of the person who runs the tests."""
    monkeypatch.chdir(repository)
    monkeypatch.setenv("FAULT_INJECTION_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HOME", str(tmp_path))
    assert doctest.testmod(importlib.import_module(name)).failed == 0


def test_there_are_examples():
    finder = doctest.DocTestFinder(exclude_empty=True)
    examples = [example for name in MODULES for example in finder.find(importlib.import_module(name))]
    assert sum(bool(example.examples) for example in examples) >= 100
