"""The optimizers compute what Keras's formulas say."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fault_injection.explicit.optimizers import history, keras_adam, keras_sgd
from fault_injection.workloads.image_recipe import OPTIMIZERS
from fault_injection.workloads.registry import WORKLOADS

pytestmark = pytest.mark.law

STEPS = 20
RANDOM = np.random.default_rng(0)
PARAMS = {
    "conv1": {"kernel": RANDOM.normal(size=(3, 4)).astype(np.float32)},
    "fc": {"kernel": RANDOM.normal(size=5).astype(np.float32), "bias": np.float32(0.5)},
}
# How large gradients are: as trained, about ε or far below it, and as faults make them.
SIZES = {"usual": 1e-2, "around epsilon": 1e-7, "below epsilon": 1e-10, "large": 1e4, "a fault's": 1e17}


def gradients(size):
    """Those of 20 steps, all trees shaped as the parameters."""
    random = np.random.default_rng(1)
    return [jax.tree.map(lambda p: np.float32(size * random.normal(size=np.shape(p))), PARAMS) for _ in range(STEPS)]


@pytest.fixture
def as_optax_promotes():
    """Optax's own optimizers mix types."""
    with jax.numpy_dtype_promotion("standard"):
        yield


def optimizer_of(workload):
    """As a workload's program makes it."""
    w = workload
    return OPTIMIZERS[w.optimizer](optax.polynomial_schedule(w.learning_rate, w.end_learning_rate, 1, w.decay_steps))


def updates(optimizer, size):
    """The updates of 20 steps in float32, as the step applies them: [step][leaf]."""
    state, made = optimizer.init(PARAMS), []
    update = jax.jit(optimizer.update)
    for gradient in gradients(size):
        moved, state = update(gradient, state, PARAMS)
        made.append([np.asarray(leaf) for leaf in jax.tree.leaves(moved)])
    return made


def schedule(step, start, end, steps):
    """Polynomial decay of power 1 (docs/science.md, Published set-up)."""
    return (start - end) * (1 - min(step, steps) / steps) + end


def adam_in_float64(size, rate, b1=0.9, b2=0.999, eps=1e-7):
    """p −= lr·√(1−β2ᵗ)/(1−β1ᵗ) · m/(√v + ε), t from 1 (docs/science.md, Published set-up)."""
    made, m, v = [], [0.0] * 3, [0.0] * 3
    for t, gradient in enumerate(gradients(size), 1):
        g = [np.float64(leaf) for leaf in jax.tree.leaves(gradient)]
        m = [b1 * m + (1 - b1) * g for m, g in zip(m, g, strict=True)]
        v = [b2 * v + (1 - b2) * g**2 for v, g in zip(v, g, strict=True)]
        factor = rate(t - 1) * np.sqrt(1 - b2**t) / (1 - b1**t)
        made.append([-factor * m / (np.sqrt(v) + eps) for m, v in zip(m, v, strict=True)])
    return made


def assert_close(found, expected, tolerance):
    """Equal to within `tolerance` of the largest element of each leaf of each step."""
    for step, (some, others) in enumerate(zip(found, expected, strict=True)):
        for one, other in zip(some, others, strict=True):
            assert abs(one - other).max() <= tolerance * abs(other).max(), step


# In float32, 1 − 0.999ᵗ keeps five digits at t = 1.
TOLERANCE = 5e-5


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", ["resnet18", "resnet18_nobn"])
def test_adam_is_keras_formula_with_the_schedule(name, size):
    workload = WORKLOADS[name]
    assert (workload.learning_rate, workload.end_learning_rate, workload.decay_steps) == (1e-3, 1e-4, 5000)
    expected = adam_in_float64(SIZES[size], lambda step: schedule(step, 1e-3, 1e-4, 5000))
    assert_close(updates(optimizer_of(workload), SIZES[size]), expected, TOLERANCE)


@pytest.mark.parametrize("size", SIZES)
def test_sgd_is_the_gradient_times_the_schedule(size):
    found = updates(optimizer_of(WORKLOADS["resnet18_sgd"]), SIZES[size])
    expected = [
        [-schedule(step, 0.1, 1e-3, 2000) * np.float64(leaf) for leaf in jax.tree.leaves(gradient)]
        for step, gradient in enumerate(gradients(SIZES[size]))
    ]
    assert_close(found, expected, 1e-6)


@pytest.mark.parametrize("optimizer", [keras_adam, keras_sgd])
def test_the_rate_falls_linearly_and_then_stays(optimizer):
    def of(rate):
        return updates(optimizer(rate), 1e-2)

    falling = of(optax.polynomial_schedule(1e-2, 1e-3, power=1, transition_steps=8))
    for step, (some, ones) in enumerate(zip(falling, of(1.0), strict=True)):
        for one, other in zip(some, ones, strict=True):
            np.testing.assert_allclose(one, schedule(step, 1e-2, 1e-3, 8) * other, rtol=1e-6)
    assert schedule(8, 1e-2, 1e-3, 8) == schedule(19, 1e-2, 1e-3, 8) == 1e-3


@pytest.mark.usefixtures("as_optax_promotes")
def test_epsilon_stands_where_keras_has_it_not_where_optax_has_it():
    """At t = 1, Keras adds ε to √v and Optax to √v/√(1−β2), which is 32 times larger."""
    ratios = {}
    for size in (1e-2, 1e-8):
        ours, theirs = (updates(optimizer, size)[0] for optimizer in (keras_adam(1e-3), optax.adam(1e-3, eps=1e-7)))
        ratios[size] = np.concatenate([(one / other).ravel() for one, other in zip(ours, theirs, strict=True)])
        g = np.concatenate([abs(np.float64(leaf)).ravel() for leaf in jax.tree.leaves(gradients(size)[0])])
        np.testing.assert_allclose(ratios[size], (g + 1e-7) / (g + 1e-7 / np.sqrt(1 - 0.999)), rtol=1e-4)
    assert ratios[1e-2].min() > 0.9 and ratios[1e-8].max() < 0.15


def test_a_non_finite_gradient_is_not_hidden():
    gradient = jax.tree.map(lambda p: np.full_like(p, np.nan), PARAMS)
    for optimizer in (keras_adam(1e-3), keras_sgd(1e-3)):
        update, _ = optimizer.update(gradient, optimizer.init(PARAMS), PARAMS)
        assert all(np.isnan(leaf).all() for leaf in jax.tree.leaves(update))


# ---- The gradient history -----------------------------------------------------------------

HISTORIES = {
    "keras_adam": (keras_adam(1e-3), {"m": 0.1, "v": 0.001}),
    "keras_sgd": (keras_sgd(0.1), {}),
    "optax.adam": (optax.adam(1e-3), {"0.mu": 0.1, "0.nu": 0.001}),
    "optax.adam in a chain": (optax.chain(optax.clip(9.0), optax.adam(1e-3)), {"1.0.mu": 0.1, "1.0.nu": 0.001}),
    "optax.sgd with momentum": (optax.sgd(0.1, momentum=0.9), {"0.trace": 1.0}),
    "optax.sgd": (optax.sgd(0.1), {}),
    "rates kept in the state": (
        optax.inject_hyperparams(optax.sgd)(learning_rate=0.1, momentum=0.9),
        {"inner_state.0.trace": 1.0},
    ),
}


@pytest.mark.usefixtures("as_optax_promotes")
@pytest.mark.parametrize("name", HISTORIES)
def test_the_gradient_history_is_found_in_the_state(name):
    """After one step from gradients of one, each moment holds its share of them, under the parameters' names."""
    optimizer, expected = HISTORIES[name]
    _, state = optimizer.update(jax.tree.map(jnp.ones_like, PARAMS), optimizer.init(PARAMS), PARAMS)
    found = history(state, PARAMS)
    assert found.keys() == expected.keys()
    for moment, tree in found.items():
        assert jax.tree.structure(tree) == jax.tree.structure(PARAMS)
        for leaf, param in zip(jax.tree.leaves(tree), jax.tree.leaves(PARAMS), strict=True):
            np.testing.assert_allclose(leaf, np.full_like(param, expected[moment]), rtol=1e-5)
