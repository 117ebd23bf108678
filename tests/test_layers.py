"""The written backward passes are the derivatives of the forward passes; layers that cannot be written are refused."""

import functools
import json
import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fault_injection.explicit.sites import list_sites
from fault_injection.models.combinators import chain, concatenated, gated, residual
from fault_injection.models.fault import inactive_fault
from fault_injection.models.layer import Context
from fault_injection.models.layers.activation import relu
from fault_injection.models.layers.convolution import convolution
from fault_injection.models.layers.dense import dense
from fault_injection.models.layers.gain import skip_gain
from fault_injection.models.layers.normalisation import batch_norm
from fault_injection.models.layers.pooling import global_average
from fault_injection.models.layers.standardisation import standardised_convolution
from fault_injection.models.loss import cross_entropy
from fault_injection.models.networks import NETWORKS

pytestmark = pytest.mark.usefixtures("compiled_quickly")


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


# One row of each kind of layer; the slow test has all.
OF_EACH_KIND = (
    *("convolution_3x3_stride2", "depthwise_3x3", "dense_on_sequences", "embedding_and_tied_head", "dot_interaction"),
    *("rms_norm", "batch_norm", "rotary", "attention", "standardised_convolution", "swish", "dropout", "gated"),
)


@pytest.mark.law
def test_a_backward_pass_of_each_kind_is_the_derivative_in_float64(repository):
    errors = in_float64(repository, *OF_EACH_KIND)
    assert errors.keys() == set(OF_EACH_KIND)
    assert not {name: error for name, error in errors.items() if error > 1e-10}


@pytest.mark.slow
def test_every_backward_pass_is_the_derivative_in_float64(repository):
    errors = in_float64(repository)
    assert len(errors) >= 20
    assert not {name: error for name, error in errors.items() if error > 1e-10}


@pytest.mark.slow
def test_the_backward_pass_of_every_network_is_the_derivative_in_float64(repository):
    errors = in_float64(repository, *NETWORKS, "transformer", "transformer_untied", "dlrm")
    assert not {name: error for name, error in errors.items() if error > 1e-10}


@pytest.mark.slow
def test_every_published_form_computes_what_the_fast_form_computes(repository):
    errors = in_float64(repository, "published_forms")
    assert len(errors) >= 20
    assert not {name: error for name, error in errors.items() if error > 1e-10}


def traced(layer, shape):
    """Trace a layer's forward and backward pass; nothing is computed."""
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


TWICE = {
    "chain": chain(convolution("c", 6, 3), relu(), convolution("c", 6, 3)),
    "residual": residual(convolution("c", 6, 3), convolution("c", 6, 3)),
    "kinds": chain(convolution("c", 6, 3), standardised_convolution("c", 6, 3)),
    "nested": concatenated(chain(convolution("c", 6, 3), gated(convolution("c", 6, 3)))),
}


@pytest.mark.parametrize("name", TWICE)
def test_two_layers_whose_sites_have_one_name_are_refused(name):
    """A fault would strike both, and its report would be a sum of bit patterns."""
    with pytest.raises(ValueError, match=r"^site 'c' occurs twice: a fault would strike both"):
        traced(TWICE[name], (2, 3, 4, 4, 6))


def test_a_layer_named_as_another_ones_gradient_is_refused():
    network = chain(dense("d", 6), dense("d_grad_in", 6))
    with pytest.raises(ValueError, match=r"^site 'd_grad_in' occurs twice"):
        list_sites(network, jax.ShapeDtypeStruct((3, 6), "float32"))


def test_two_sites_of_one_id_are_refused(monkeypatch):
    monkeypatch.setattr("fault_injection.explicit.sites.site_id", lambda name: len(name))
    network = chain(dense("a", 6), dense("b", 6))
    with pytest.raises(ValueError, match=r"^sites 'a' and 'b' have the same id; rename one of their layers$"):
        list_sites(network, jax.ShapeDtypeStruct((3, 6), "float32"))


def test_sites_are_listed_as_a_step_runs_them_with_their_layers_and_operands():
    network = chain(convolution("c", 5, 3, 2), global_average("pool"), dense("d", 7))
    sites = list_sites(network, jax.ShapeDtypeStruct((3, 8, 8, 2), "float32"))
    assert list(sites) == ["c", "d", "d_grad_in", "d_grad_wt", "c_grad_in", "c_grad_wt"]
    assert [site.layer for site in sites.values()] == ["c", "d", "d", "d", "c", "c"]
    assert [site.stage for site in sites.values()] == ["forward"] * 2 + ["backward"] * 4
    assert list(sites["c_grad_wt"].shapes.values()) == [(2, 10, 10, 3), (8, 8, 3, 5), (2, 3, 3, 5)]
    assert {tensor.dtype.name for tensor in sites["c"].operands.values()} == {"float32"}


FIRST = {
    "convolution": convolution("c", 6, 3),
    "standardised": standardised_convolution("c", 6, 3),
    "chain": chain(chain(convolution("c", 6, 3), relu()), convolution("d", 6, 3)),
    "residual": residual(convolution("c", 6, 3), convolution("d", 6, 1)),
    "residual_in_chain": chain(relu(), residual(chain(skip_gain("g"), convolution("c", 6, 3)))),
    "concatenated": concatenated(chain(skip_gain("g"), convolution("c", 6, 3))),
    "gated": gated(chain(skip_gain("g"), global_average("pool", keep_map=True), convolution("c", 6, 1))),
}


@pytest.mark.parametrize("name", FIRST)
def test_discarding_the_input_gradient_of_a_network_changes_no_other_gradient(name):
    layer, x = FIRST[name], np.random.default_rng(0).standard_normal((2, 3, 4, 4, 6), np.float32)
    params, stats = layer.init((0,), x.shape)

    @functools.partial(jax.jit, static_argnums=0)
    def passes(input_gradient):
        ctx = Context(jax.random.key(0), jnp.arange(2), input_gradient=input_gradient)
        y, _, cache, _ = layer.forward(params, stats, x, ctx)
        return layer.backward(params, cache, jnp.cos(y), ctx)[:2]

    (dx, read), (nothing, discarded) = passes(True), passes(False)
    assert np.isfinite(dx).all()
    for one, other in zip(jax.tree.leaves(read), jax.tree.leaves(discarded), strict=True):
        assert np.isfinite(one).all()
        np.testing.assert_array_equal(one, other)
    # The first convolution has computed nothing, and who reads its input gradient all the same would see it.
    assert np.isnan(nothing).all() == (name in ("convolution", "standardised", "chain"))


# The large ones take seconds to trace.
LARGE = ("effnet", "densenet", "nfnet")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] if name in LARGE else []) for name in NETWORKS]
)
def test_networks_are_traced_with_strict_dtype_promotion(name):
    network = NETWORKS[name](width=4, blocks=(1,) * (7 if name == "effnet" else 4))
    shape = (2, 3, 32, 32, 3)
    params, stats = network.init(None, shape)

    def passes(params, stats, x, labels, train):
        ctx = Context(jax.random.key(0), jnp.arange(2), fault=inactive_fault(), train=train)
        logits, _, cache, _ = network.forward(params, stats, x, ctx)
        loss, _, dlogits = cross_entropy(logits, labels)
        return loss, network.backward(params, cache, dlogits, ctx)[:2] if train else ()

    x, labels = jax.ShapeDtypeStruct(shape, "float32"), jax.ShapeDtypeStruct(shape[:2], "int32")
    with jax.numpy_dtype_promotion("strict"):
        for train in (True, False):
            outputs = jax.eval_shape(functools.partial(passes, train=train), params, stats, x, labels)
            assert {leaf.dtype.name for leaf in jax.tree.leaves(outputs)} == {"float32"}
