"""For which parameter a moment or an average is kept: the step itself says it where names and shapes do not."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fault_injection import Measure, Training
from fault_injection.any_step.leaf_flow import computed_from
from fault_injection.any_step.step_updates import moments
from fault_injection.any_step.traced_training import traced_training
from fault_injection.any_step.training_program import training_program
from fault_injection.seam.leaves import Role

OPTIMIZER = optax.adam(1e-2)
LARGEST = "largest/parameter_gradients"


@pytest.fixture(autouse=True)
def promoting():
    """Optax mixes types."""
    with jax.numpy_dtype_promotion("standard"):
        yield


def critic(seed):
    first, second = jax.random.split(jax.random.key(seed))
    return {"a": jax.random.normal(first, (4, 8)), "b": jax.random.normal(second, (8, 1))}


def loss_of(critic, x):
    return jnp.mean((jnp.tanh(x @ critic["a"]) @ critic["b"] - x.sum(1, keepdims=True)) ** 2)


def batch(epoch, step):
    return np.random.default_rng([epoch, step]).normal(size=(16, 4)).astype(np.float32)


def made(init, step):
    measure = Measure("loss", "lower", chance=10.0, tolerance=0.1)
    return traced_training(Training(init, step, batch, 4, 1, lambda state: {"loss": 0.0}, measure))


def kept_for(training):
    return {leaf.name: leaf.parameter for leaf in training.state.leaves if leaf.role == Role.HISTORY}


def twins(order=(2, 3), joined=False):
    """Two critics of the same shapes, each with its Adam, in a tuple; these may stand in another order than theirs."""

    def init():
        critics = [critic(0), critic(1)]
        state = dict(zip((0, 1, *order), [*critics, *map(OPTIMIZER.init, critics)], strict=True))
        return tuple(state[place] for place in range(4))

    def step(state, x):
        new, updates = {}, []
        for place, of in enumerate(order):
            update, new[of] = OPTIMIZER.update(jax.grad(loss_of)(state[place], x), state[of])
            updates.append(update)
        if joined:
            updates, _ = optax.clip_by_global_norm(1.0).update(updates, optax.EmptyState())
        new |= {place: optax.apply_updates(state[place], update) for place, update in enumerate(updates)}
        return tuple(new[place] for place in range(4)), {"loss": loss_of(state[0], x) + loss_of(state[1], x)}

    return init, step


@pytest.mark.parametrize("order", [(2, 3), (3, 2)])
def test_of_two_networks_of_the_same_shapes_each_has_its_own_moments(order):
    training = made(*twins(order))
    expected = {
        f"{of}/0/{moment}/{leaf}": f"{place}/{leaf}"
        for place, of in enumerate(order)
        for moment in ("mu", "nu")
        for leaf in "ab"
    }
    assert kept_for(training) == expected
    program = training_program(training, frozenset({LARGEST}))
    state, x = program.place(program.init()), program.batch(0, 0)
    before = training.program.traced.state.joined(jax.device_get(jax.tree.leaves(state)))
    _, report = program.step(state, x, 0, 0)
    for place in (0, 1):
        for leaf, gradient in jax.grad(loss_of)(before[place], batch(0, 0)).items():
            largest = float(jnp.abs(gradient).max())
            assert report.reductions[f"{LARGEST}/{place}/{leaf}"] == pytest.approx(largest, rel=1e-4)


@pytest.mark.parametrize(
    "optimizer", [optax.rmsprop(1e-3, momentum=0.9), optax.contrib.muon(1e-3)], ids=["rms", "muon"]
)
@pytest.mark.filterwarnings("ignore:.*multiply a vector in a loop")  # by Muon, of which none is struck here
def test_of_rivals_each_has_its_own_though_the_second_reads_what_the_first_has_become(optimizer):
    """As in a GAN: the loss of one is computed by the new weights of the other."""

    def init():
        critics = critic(0), critic(1)
        return critics, tuple(map(optimizer.init, critics)), critics[1]

    def step(state, x):
        (first, second), (of_first, of_second), mean = state
        gradient = jax.grad(lambda one: loss_of(one, x) + loss_of(second, x))(first)
        updates, of_first = optimizer.update(gradient, of_first, first)
        first = optax.apply_updates(first, updates)
        gradient = jax.grad(lambda one: loss_of(one, x * jnp.tanh(x @ first["a"]).mean()))(second)
        updates, of_second = optimizer.update(gradient, of_second, second)
        second = optax.apply_updates(second, updates)
        mean = optax.incremental_update(second, mean, 0.1)
        return ((first, second), (of_first, of_second), mean), {"loss": loss_of(first, x)}

    found = kept_for(made(init, step))
    assert len(found) > 5
    for name, parameter in found.items():
        assert parameter == f"0/{1 if name[0] == '2' else name[2]}/{name[-1]}", name


def test_where_the_step_joins_all_nobody_is_named():
    """A norm of all updates makes every parameter depend on every moment, and both networks have the same shapes."""
    training = made(*twins(joined=True))
    assert len(kept_for(training)) == 8 and set(kept_for(training).values()) == {""}
    program = training_program(training, frozenset({LARGEST}))
    _, report = program.step(program.place(program.init()), program.batch(0, 0), 0, 0)
    named = {name.removeprefix(f"{LARGEST}/") for name in report.reductions if name.startswith(LARGEST)}
    assert named == {f"{of}/0/mu/{leaf}" for of in (2, 3) for leaf in "ab"}  # after the moments, and not after others
    assert moments(training.state.leaves) == {} and len(moments(made(*twins()).state.leaves)) == 4


def test_moments_and_averages_that_somebody_wrote_by_hand_are_told_apart():
    def init():
        critics = critic(0), critic(1)
        zero = jax.tree.map(jnp.zeros_like, critics)
        return {"first": critics[0], "second": critics[1], "m2": zero[1], "m1": zero[0], "mean1": critics[0]}

    def step(state, x):
        new = {}
        for name, moment in (("first", "m1"), ("second", "m2")):
            gradient = jax.grad(loss_of)(state[name], x)
            new[moment] = jax.tree.map(lambda m, g: 0.9 * m + g, state[moment], gradient)
            new[name] = jax.tree.map(lambda p, m: p - 0.01 * m, state[name], new[moment])
        new["mean1"] = jax.tree.map(lambda e, p: 0.9 * e + 0.1 * p, state["mean1"], new["first"])
        return new, {"loss": loss_of(state["first"], x)}

    expected = {f"{kept}/{leaf}": f"{of}/{leaf}" for kept, of in
                (("m1", "first"), ("m2", "second"), ("mean1", "first")) for leaf in "ab"}  # fmt: skip
    assert kept_for(made(init, step)) == expected


def test_statistics_that_have_the_shapes_of_parameters_are_no_history():
    def init():
        return {"params": critic(0), "seen": {"x": jnp.zeros((4, 8)), "y": jnp.zeros((8, 1))}}

    def step(state, x):
        params, seen = state["params"], state["seen"]
        loss, gradient = jax.value_and_grad(loss_of)(params, x - seen["x"][:, 0])
        seen = {"x": 0.9 * seen["x"] + x.mean(0)[:, None], "y": 0.9 * seen["y"] + (x @ params["a"]).mean(0)[:, None]}
        return {"params": jax.tree.map(lambda p, g: p - 0.01 * g, params, gradient), "seen": seen}, {"loss": loss}

    training = made(init, step)
    assert kept_for(training) == {}
    assert [leaf.name for leaf in training.state.leaves if leaf.role == Role.OTHER] == ["seen/x", "seen/y"]


def test_of_fast_and_slow_weights_moments_are_of_the_fast_ones():
    optimizer = optax.lookahead(OPTIMIZER, sync_period=2, slow_step_size=0.5)

    def init():
        params = optax.LookaheadParams.init_synced(critic(0))
        return {"params": params, "opt": optimizer.init(params)}

    def step(state, x):
        loss, gradient = jax.value_and_grad(loss_of)(state["params"].fast, x)
        updates, opt = optimizer.update(gradient, state["opt"], state["params"])
        return {"params": optax.apply_updates(state["params"], updates), "opt": opt}, {"loss": loss}

    found = kept_for(made(init, step))
    assert len(found) == 4
    assert all(parameter == f"params/fast/{name[-1]}" for name, parameter in found.items())


@pytest.mark.parametrize("wrapped", ["jit", "scan", "cond", "while", "checkpoint"])
def test_a_result_is_computed_from_what_changes_it_and_of_products_from_no_other(wrapped):
    """Compared with what changes if an argument does: nothing that changes a result is left out."""

    def plain(a, b, c):
        return a * 2.0, b + a, c * c

    def turn(carry, _):
        return plain(*carry), carry[1]

    functions = {
        "jit": jax.jit(plain),
        "scan": lambda *given: jax.lax.scan(turn, given, None, length=3)[0],
        "cond": lambda a, b, c: jax.lax.cond(c > 0, plain, lambda *given: given, a, b, c),
        "while": lambda *given: jax.lax.while_loop(
            lambda carry: jnp.abs(carry[0]) < 9.0, lambda carry: plain(*carry), given
        ),
        "checkpoint": jax.checkpoint(plain),
    }
    function, given = functions[wrapped], (1.0, 2.0, 3.0)
    found = computed_from(jax.make_jaxpr(function)(*given))
    base = function(*given)
    for place in range(3):
        for change in (0.5, -5.0):
            other = function(*[one + change * (place == at) for at, one in enumerate(given)])
            moved = {at for at, (one, two) in enumerate(zip(base, other, strict=True)) if one != two}
            assert all(place in found[at] for at in moved)
    exact = {"jit": [{0}, {0, 1}, {2}], "scan": [{0}, {0, 1}, {2}], "cond": [{0, 2}, {0, 1, 2}, {2}]}
    assert [set(one) for one in found] == exact.get(
        wrapped, exact["jit"] if wrapped == "checkpoint" else [{0, 1, 2}] * 3
    )
