"""Every example in a docstring gives what it shows."""

import doctest
import importlib

import pytest
from conftest import HERE

PACKAGES = ("models", "fault_injection")
MODULES = sorted(
    ".".join(path.relative_to(HERE.parent).with_suffix("").parts).removesuffix(".__init__")
    for package in PACKAGES
    for path in (HERE.parent / package).rglob("*.py")
    if path.name != "__main__.py"  # which runs the command line
)


TRAINS = pytest.param("fault_injection", marks=pytest.mark.slow)  # its example replays an injection


@pytest.mark.parametrize("name", [TRAINS if name == "fault_injection" else name for name in MODULES])
def test_the_examples_of_a_module(name, repository, tmp_path, monkeypatch):
    """They are written for the checkout's folder, and use nothing of the person who runs the tests."""
    monkeypatch.chdir(repository)
    monkeypatch.setenv("FAULT_INJECTION_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HOME", str(tmp_path))
    assert doctest.testmod(importlib.import_module(name)).failed == 0


def test_both_packages_have_examples():
    finder = doctest.DocTestFinder(exclude_empty=True)
    found = dict.fromkeys(PACKAGES, 0)
    for name in MODULES:
        examples = finder.find(importlib.import_module(name))
        found[name.partition(".")[0]] += sum(bool(example.examples) for example in examples)
    assert all(count >= 5 for count in found.values()), found
