"""The written backward passes are the derivatives of the forward passes."""

import json
import os
import subprocess
import sys

import pytest


@pytest.fixture(scope="module")
def errors(repository):
    """Relative errors in float64, found by `tests/float64.py` in a process of its own."""
    done = subprocess.run(
        [sys.executable, "tests/float64.py"],
        cwd=repository,
        env={**os.environ, "PYTHONPATH": "."},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_every_backward_pass_is_the_derivative_in_float64(errors):
    layers = {name: error for name, error in errors.items() if not name.startswith("published")}
    assert len(layers) >= 20
    assert not {name: error for name, error in layers.items() if error > 1e-10}


def test_every_published_form_computes_what_the_fast_form_computes(errors):
    forms = {name: error for name, error in errors.items() if name.startswith("published")}
    assert len(forms) >= 20
    assert not {name: error for name, error in forms.items() if error > 1e-10}
