"""Moments and running statistics are those of TensorFlow under XLA: equal to rounding, and not finite in the same step.

The fixture's own command is in it; NumPy's float32 follows the formulas (docs/science.md, Arithmetic).
"""

import json

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from conftest import HERE

from fault_injection.explicit.optimizers import keras_adam
from fault_injection.models.layer import Context
from fault_injection.models.layers.normalisation import batch_norm
from fault_injection.workloads.registry import make_workload

KERAS = json.loads((HERE / "fixtures" / "keras_numbers.json").read_text())
GRADIENTS = np.float32(list(KERAS["gradients"].values())).T  # [step, element]
ROUNDING = 2e-6  # of the numbers themselves, after six steps in float32


def same(found, expected, rtol=ROUNDING):
    """Equal to rounding where finite; infinite, and not a number, in the same places."""
    np.testing.assert_allclose(np.float64(found), np.float64(expected), rtol=rtol, atol=0)


# ---- Adam ---------------------------------------------------------------------------------


def our_adam(gradients):
    """Parameter, m and v after each step, compiled as in a training step, which does not know the gradients."""
    adam, found = keras_adam(1e-3), {"parameter": [], "m": [], "v": []}

    @jax.jit
    def step(params, state, gradient):
        updates, state = adam.update(gradient, state, params)
        return optax.apply_updates(params, updates), state

    params = {"w": jnp.ones(gradients.shape[1])}
    state = adam.init(params)
    for gradient in gradients:
        params, state = step(params, state, {"w": gradient})
        for name, tree in (("parameter", params), ("m", state.m), ("v", state.v)):
            found[name].append(np.asarray(tree["w"]))
    return found


def numpy_adam(gradients):
    """The same in NumPy's float32, formula by formula."""
    one, rate, eps = np.float32(1), np.float32(1e-3), np.float32(1e-7)
    b1, b2 = np.float32(0.9), np.float32(0.999)
    p, m, v = np.ones_like(gradients[0]), np.zeros_like(gradients[0]), np.zeros_like(gradients[0])
    found = {"parameter": [], "m": [], "v": []}
    with np.errstate(all="ignore"):
        for t, g in enumerate(gradients, 1):
            m = m + (g - m) * np.float32(1 - 0.9)
            v = v + (g * g - v) * np.float32(1 - 0.999)
            alpha = rate * np.sqrt(one - b2 ** np.float32(t)) / (one - b1 ** np.float32(t))
            p = p - m * alpha / (np.sqrt(v) + eps)
            for name, value in (("parameter", p), ("m", m), ("v", v)):
                found[name].append(value)
    return found


@pytest.mark.parametrize("part", ["parameter", "m", "v"])
def test_adam_computes_what_tensorflow_computes(part):
    same(our_adam(GRADIENTS)[part], KERAS["adam"][part])


@pytest.mark.parametrize("part", ["parameter", "m", "v"])
def test_adam_computes_what_its_formulas_say_in_float32(part):
    same(our_adam(GRADIENTS)[part], numpy_adam(GRADIENTS)[part])


def test_a_second_moment_that_overflows_is_infinite_for_one_step_and_nan_from_the_next_on():
    element = list(KERAS["gradients"]).index("square overflows")
    found = {part: np.array(values)[:, element] for part, values in our_adam(GRADIENTS).items()}
    assert np.isfinite(found["v"][0]) and np.isposinf(found["v"][1]) and np.isnan(found["v"][2:]).all()
    assert found["parameter"][1] == found["parameter"][0]  # m/∞ is 0: the parameter stands still for one step
    assert np.isnan(found["parameter"][2:]).all() and np.isfinite(found["m"]).all()


# ---- Running statistics -------------------------------------------------------------------


def our_statistics(momentum, values):
    """Running mean and variance after each step of one worker on the fixture's batches [4,2,2,3], channel 0."""
    norm = batch_norm("n", momentum)
    params, stats = norm.init((0,), (1, 4, 2, 2, 3))
    ctx = Context(jax.random.key(0), jnp.arange(1))
    step = jax.jit(lambda stats, x: norm.forward(params, stats, x, ctx)[1])
    found = {"mean": [], "var": []}
    for value in values:
        x = np.linspace(-1, 1, 48, dtype=np.float32)
        x[0] = value
        stats = step(stats, x.reshape(1, 4, 2, 2, 3))
        for name, kept in found.items():
            kept.append(float(stats["n"][name][0]))
    return found


@pytest.mark.parametrize("momentum", [0.9, 0.99])
@pytest.mark.parametrize("name", KERAS["inputs"])
def test_running_statistics_are_tensorflows(momentum, name):
    found, expected = our_statistics(momentum, KERAS["inputs"][name]), KERAS["batch_norm"][str(momentum)][name]
    for statistic in ("mean", "var"):
        same(found[statistic], expected[statistic], 1e-5)  # sums of 16, in another order


def test_a_running_variance_that_overflows_is_infinite_for_one_step_and_nan_from_the_next_on():
    """Where the square of the batch's mean overflows as well, it is NaN at once."""
    first, second, *others = our_statistics(0.9, KERAS["inputs"]["variance overflows"])["var"]
    assert np.isfinite(first) and second == np.inf and np.isnan(others).all() and len(others) == 2
    first, *others = our_statistics(0.9, KERAS["inputs"]["square of the mean overflows"])["var"]
    assert np.isfinite(first) and np.isnan(others).all() and len(others) == 3


def test_the_published_set_ups_have_momentum_nine_tenths_and_one_has_99_hundredths():
    x = np.random.default_rng(0).normal(3, 2, (1, 2, 32, 32, 3)).astype(np.float32)
    kept = {}
    for name in ("resnet18", "resnet18_largedecay"):
        network = make_workload(name, width=2, blocks=(1, 1, 1, 1)).recipe().network
        params, stats = network.init((0,), x.shape)
        ctx = Context(jax.random.key(0), jnp.arange(1))
        # Of the whole pass XLA compiles what leads to the first norm.
        new = jax.jit(lambda p, s, x, n=network, c=ctx: {"bn1": n.forward(p, s, x, c)[1]["bn1"]})(params, stats, x)
        kept[name] = np.float64(new["bn1"]["var"] - stats["bn1"]["var"])
    # Both see one batch from the same weights; the share that a step takes is 0.1 and 0.01.
    np.testing.assert_allclose(kept["resnet18"], 10 * kept["resnet18_largedecay"], rtol=1e-4)


# ---- The compiled step of a workload ------------------------------------------------------


@pytest.fixture(scope="module")
def program():
    return make_workload("resnet18", dataset="digits", width=2, blocks=(1, 1, 1, 1), batch_size=128).program(
        frozenset()
    )


def leaf(program, state, name):
    names = [each.name for each in program.state.leaves]
    return np.asarray(jax.tree.leaves(state)[names.index(name)])


@pytest.mark.parametrize(
    ("infinite", "nan"),
    [
        ("opt_state/v/conv1/kernel", ["opt_state/v/conv1/kernel", "params/conv1/kernel"]),
        ("stats/bn1/var", ["stats/bn1/var"]),
    ],
)
def test_the_compiled_step_computes_infinity_less_infinity(program, infinite, nan):
    """XLA does not turn the published form into the other one, which would leave the leaf infinite."""
    names = [each.name for each in program.state.leaves]
    leaves, tree = jax.tree.flatten(program.init())
    leaves[names.index(infinite)] = np.full_like(leaves[names.index(infinite)], np.inf)
    state, report = program.step(program.place(jax.tree.unflatten(tree, leaves)), program.batch(0, 0), 0, 0)
    assert np.isfinite(report.loss)
    found = {name for name in names if np.isnan(leaf(program, state, name)).all()}
    assert found == set(nan)


def test_the_compiled_step_has_the_moments_of_its_gradients(program):
    """After one step from zero, v is m² · (1 − β2)/(1 − β1)² to rounding, whatever the network."""
    state, _ = program.step(program.place(program.init()), program.batch(0, 0), 0, 0)
    m, v = (leaf(program, state, f"opt_state/{moment}/fc/kernel").astype(np.float64) for moment in ("m", "v"))
    np.testing.assert_allclose(v, m * m * (1e-3 / 1e-2), rtol=1e-5)
