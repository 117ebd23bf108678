"""The written backward passes are the derivatives of the forward passes; what has none is refused."""

import json
import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from models.combinators import chain, residual
from models.layer import Context
from models.layers.convolution import convolution
from models.layers.normalisation import batch_norm
from models.networks import NETWORKS


def in_float64(repository, *names):
    """Relative errors in float64, found by `tests/float64.py` in a process of its own."""
    done = subprocess.run(
        [sys.executable, "tests/float64.py", *names],
        cwd=repository,
        env={**os.environ, "PYTHONPATH": ".", "XLA_FLAGS": "--xla_backend_optimization_level=0"},  # compiles faster
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def errors(repository):
    return in_float64(repository)


def test_every_backward_pass_is_the_derivative_in_float64(errors):
    layers = {name: error for name, error in errors.items() if not name.startswith("published")}
    assert len(layers) >= 20
    assert not {name: error for name, error in layers.items() if error > 1e-10}


@pytest.mark.slow
def test_the_backward_pass_of_every_network_is_the_derivative_in_float64(repository):
    errors = in_float64(repository, *NETWORKS)
    assert not {name: error for name, error in errors.items() if error > 1e-10}


def test_every_published_form_computes_what_the_fast_form_computes(errors):
    forms = {name: error for name, error in errors.items() if name.startswith("published")}
    assert len(forms) >= 20
    assert not {name: error for name, error in forms.items() if error > 1e-10}


def traced(layer, shape):
    """Trace a layer's forward and backward pass, of which nothing is computed."""
    params, stats = layer.init(None, shape)

    def passes(params, stats, x):
        ctx = Context(key=jax.random.key(0), workers=jnp.arange(shape[0]), observe=frozenset({"operands"}))
        y, _, cache, _ = layer.forward(params, stats, x, ctx)
        return layer.backward(params, cache, y, ctx)[2].tensors["operands"]

    return jax.eval_shape(passes, params, stats, jax.ShapeDtypeStruct(shape, np.float32))


@pytest.mark.parametrize(
    "size, stride, image, shown",
    [
        (2, 1, (8, 8), "2×2 kernel with stride 1 on a 8×8 map"),
        (4, 2, (8, 8), "4×4 kernel with stride 2 on a 8×8 map"),
        (3, 3, (9, 9), "3×3 kernel with stride 3 on a 9×9 map"),
        (3, 2, (7, 8), "3×3 kernel with stride 2 on a 7×8 map"),
        (3, 2, (8, 1), "3×3 kernel with stride 2 on a 8×1 map"),
        (1, 2, (7, 7), "1×1 kernel with stride 2 on a 7×7 map"),
        (3, 0, (8, 8), "3×3 kernel with stride 0 on a 8×8 map"),
    ],
)
def test_a_convolution_without_a_published_form_is_refused_where_it_is_traced(size, stride, image, shown):
    with pytest.raises(ValueError, match=f"^convolution 'c': a {shown} is not supported.*odd kernel sizes"):
        traced(convolution("c", 5, size, stride), (2, 3, *image, 6))


@pytest.mark.parametrize("size, stride, image", [(3, 1, (7, 9)), (5, 2, (2, 4)), (1, 3, (9, 3)), (7, 1, (1, 1))])
def test_the_published_forms_of_a_supported_convolution_have_the_gradients_shapes(size, stride, image):
    operands = traced(convolution("c", 5, size, stride), (2, 3, *image, 6))
    assert operands["c_grad_in"]["output"].shape == (2, 3, *image, 6)
    assert operands["c_grad_wt"]["output"].shape == (2, 6, size, size, 5)


@pytest.mark.parametrize("combine", [chain, residual])
def test_a_norm_used_twice_updates_its_running_statistics_twice(combine):
    norm, x = batch_norm("n"), jnp.asarray(np.random.default_rng(0).normal(3, 2, (2, 3, 4, 4, 6)), jnp.float32)
    ctx = Context(key=jax.random.key(0), workers=jnp.arange(2))
    params, stats = norm.init((0,), x.shape)
    y, once, _, _ = norm.forward(params, stats, x, ctx)
    _, twice, _, _ = norm.forward(params, once, y if combine is chain else x, ctx)
    _, found, _, _ = combine(norm, norm).forward(params, stats, x, ctx)
    for name in ("mean", "var"):
        np.testing.assert_array_equal(found["n"][name], twice["n"][name])
        assert (found["n"][name] != once["n"][name]).any()
