"""A step of any usual form computes what it computes as `(state, batch) -> (state, metrics)`, struck or not."""

import dataclasses
import types
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from fault_injection import Measure, Training, instrument
from fault_injection.any_step.step_forms import fields, one_form
from fault_injection.any_step.traced_training import traced_training
from fault_injection.any_step.training_program import training_program
from fault_injection.machine.errors import InputError


@pytest.fixture(autouse=True, scope="module")
def as_users_have_it():
    with jax.numpy_dtype_promotion("standard"):
        yield


W, X = {"a": np.float32([[1, 2], [3, 4], [5, 6]])}, np.linspace(-1, 1, 12, dtype=np.float32).reshape(4, 3)
TX = optax.adam(0.1)
LOSS = Measure("loss", "lower", chance=10.0, tolerance=0.1)


def loss_of(w, x):
    return jnp.mean((x @ w["a"] - 1) ** 2)


@jax.jit
def update(w, moments, x):
    loss, grads = jax.value_and_grad(loss_of)(w, x)
    updates, moments = TX.update(grads, moments)
    return optax.apply_updates(w, updates), moments, loss


class Named(NamedTuple):
    loss: jax.Array
    norm: jax.Array


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Record:
    loss: jax.Array


def standard(state, x):
    w, moments, loss = update(*state, x)
    return (w, moments), {"loss": loss}


PAIR = (W, TX.init(W))
FORMS = {
    "the loss alone": (lambda new, loss, x: (new, loss)),
    "the loss first": (lambda new, loss, x: (loss, new)),
    "metrics first": (lambda new, loss, x: ({"loss": loss}, new)),
    "a dataclass": (lambda new, loss, x: (new, Record(loss))),
    "a named tuple": (lambda new, loss, x: (new, Named(loss, jnp.ones(())))),
    "a loss of each device": (lambda new, loss, x: (new, {"loss": loss[None]})),
    "the parts of the state": (lambda new, loss, x: (*new, loss)),
    "the loss and the parts": (lambda new, loss, x: (loss, *new)),
    "further values": (lambda new, loss, x: (new, loss, {"z": x})),
    "further values among the parts": (lambda new, loss, x: (*new, loss, x)),
}


def training(step, state, batch, **others):
    def evaluate(new):
        return {"loss": loss_of(new[0], X)}

    return Training(lambda: state, step, lambda epoch, step: batch, 2, 1, evaluate, LOSS, **others)


def one_step(made):
    """State and loss of a fault-free step and of one with a fault in the forward product."""
    program = training_program(made)
    state, batch = program.place(program.init()), program.batch(0, 0)
    fault = made.program.fault(next(iter(made.program.sites)), "output", (0, 1), values=[100.0])
    struck, told = program.faulty_step(state, batch, 0, 0, fault)
    plain, clean = program.step(state, batch, 0, 0)
    return [np.asarray(one).tobytes() for one in jax.tree.leaves((struck, told.loss, plain, clean.loss))]


@pytest.fixture(scope="module")
def expected():
    return one_step(traced_training(training(standard, PAIR, X)))


@pytest.mark.parametrize("form", FORMS)
def test_what_a_step_returns_changes_nothing_of_it(form, expected):
    def step(state, x):
        w, moments, loss = update(*state, x)
        return FORMS[form]((w, moments), loss, x)

    assert one_step(traced_training(training(step, PAIR, X))) == expected


def test_how_a_step_takes_its_state_changes_nothing_of_it(expected):
    assert one_step(traced_training(training(update, PAIR, X))) == expected
    both = training(lambda w, m, x, _key: update(w, m, x), PAIR, (X, np.uint32(7)))
    assert one_step(traced_training(both)) == expected
    whole = one_form(lambda state, x, _key: (state, x), W, (X, np.uint32(7)))
    assert whole(W, (X, 7)) == (W, X)
    taken = one_form(lambda a, b, c: (a @ b["a"], c), (W["a"].T, W), (X, X))  # only the parts of the state fit
    assert np.array_equal(taken((W["a"].T, W), (X, X))[0], W["a"].T @ W["a"])
    with pytest.raises(InputError, match=r"may be lambda state, batch: \(\*state, batch\) or .*: say which, as arg"):
        one_form(lambda a, b, c: None, PAIR, (X, 7))


def test_what_a_step_takes_can_be_said(expected):
    def step(*, x, moments, w):
        return update(w, moments, x)

    made = training(lambda one: step(**one), PAIR, X, arguments=lambda s, x: ({"w": s[0], "moments": s[1], "x": x},))
    assert one_step(traced_training(made)) == expected


def test_metrics_of_a_step_that_returns_its_state_alone_are_those_of_evaluate(expected):
    made = traced_training(training(lambda s, x: standard(s, x)[0], PAIR, X))
    assert made.said == ("the step returns no metrics: those of evaluate, of the new state, stand for them",)
    assert traced_training(training(standard, PAIR, X)).said == ()
    assert made.program.sites.keys() == traced_training(training(standard, PAIR, X)).program.sites.keys()
    program = training_program(made)
    new, told = program.step(program.place(program.init()), program.batch(0, 0), 0, 0)
    assert float(told.loss) == pytest.approx(float(loss_of(made.tree(jax.tree.leaves(new))[0], X)), rel=1e-6)
    untraced = training(lambda s, x: standard(s, x)[0], PAIR, X)
    untraced = dataclasses.replace(untraced, evaluate=lambda state: {"loss": float(loss_of(state[0], X))})
    with pytest.raises(InputError, match=r"returns its new state alone, and evaluate.* cannot be traced .*return them"):
        traced_training(untraced)


def test_a_step_on_replicas_of_the_state():
    def step(w, x):
        loss, grads = jax.value_and_grad(loss_of)(w, x)
        return jax.tree.map(lambda p, g: p - 0.1 * jax.lax.pmean(g, "d"), w, grads), {"loss": loss}

    replicas = jax.tree.map(lambda one: one[None], (W, X))
    made = training(jax.pmap(step, "d"), *replicas)
    program = training_program(traced_training(made))
    _, told = program.step(program.place(program.init()), program.batch(0, 0), 0, 0)
    assert float(told.loss) == pytest.approx(float(loss_of(W, X)))


def test_instrument_takes_the_forms_too():
    program = instrument(update, PAIR, X)
    state, loss = program.reference(PAIR, X)
    assert float(loss) == pytest.approx(float(update(*PAIR, X)[2])) and len(state) == 2


@pytest.mark.parametrize(
    ("metrics", "named"),
    [
        ({"loss": 1.0, "acc": 2.0}, {"loss": 1.0, "acc": 2.0}),
        ((1.0, {"acc": 2.0}), {"loss": 1.0, "acc": 2.0}),
        (({"acc": 2.0}, np.ones(3), 1.0), {"loss": 1.0, "acc": 2.0}),
        (types.SimpleNamespace(loss=1.0), {}),
        (np.ones(3), {}),
        (None, {}),
    ],
)
def test_names_of_metrics(metrics, named):
    assert fields(metrics) == named


def test_which_of_two_numbers_is_the_loss_is_asked():
    with pytest.raises(InputError, match=r"2 numbers beside its state.*\(state, metrics\)"):
        traced_training(training(lambda s, x: (*standard(s, x), jnp.ones(()), jnp.ones(())), PAIR, X))


# ---- Modules that change ------------------------------------------------------------------


class Tied(nnx.Module):
    """Two layers that share their kernel."""

    def __init__(self, rngs):
        self.one = nnx.Linear(3, 3, rngs=rngs)
        self.two = nnx.Linear(3, 3, rngs=rngs)
        self.two.kernel = self.one.kernel
        self.calls = nnx.BatchStat(jnp.zeros((), jnp.int32))

    def __call__(self, x):
        self.calls[...] += 1
        return self.two(jnp.tanh(self.one(x)))


def created():
    model = Tied(nnx.Rngs(0))
    return model, nnx.Optimizer(model, optax.adam(0.1), wrt=nnx.Param)


@nnx.jit
def in_place(model, optimizer, x):
    loss, grads = nnx.value_and_grad(lambda model: jnp.mean((model(x) - 1) ** 2))(model)
    optimizer.update(model, grads)
    return loss


@pytest.mark.parametrize("returns", ["the loss", "the modules and the loss"])
def test_a_step_that_changes_modules_is_that_of_its_own_loop(returns):
    def returned(model, optimizer, x):
        return model, optimizer, in_place(model, optimizer, x)

    step = in_place if returns == "the loss" else returned
    made = traced_training(
        Training(created, step, lambda e, s: X, 4, 1, lambda s: {"loss": jnp.mean((s[0](X) - 1) ** 2)}, LOSS)
    )
    program = training_program(made)
    state, losses = program.place(program.init()), []
    for number in range(4):
        state, told = program.step(state, program.batch(0, number), 0, number)
        losses.append(float(told.loss))
    model, optimizer = created()
    assert losses == pytest.approx([float(in_place(model, optimizer, X)) for _ in range(4)], rel=1e-5)
    names = made.program.traced.names
    assert sum("kernel" in name for name in names) == 3  # the shared one, and its two moments
    assert int(jax.tree.leaves(state)[names.index("0/calls/value")]) == 4
    assert program.evaluate(state).loss == pytest.approx(float(jnp.mean((model(X) - 1) ** 2)), rel=1e-5)


# ---- Mistakes -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"epochs": 2.5}, "epochs is 2.5; expected a whole number"),
        ({"steps_per_epoch": 0}, "steps_per_epoch is 0; expected 1 at least"),
        ({"metric": None}, "metric is None; expected a Measure, such as Measure"),
        ({"evaluate": None}, "evaluate is None; expected a function"),
        ({"batch": lambda e, s: {}["x"]}, r"batch\(0, 0\) raises KeyError"),
        (
            {"step": lambda s, x: (s, {"losses": loss_of(s[0], x)})},
            "no 'loss' in .*; did you mean 'losses'",
        ),
        (
            {"step": lambda s, x: (s, {"loss": loss_of(s[0], x) > 0})},
            "'loss' of the step's metrics is .*; expected a number",
        ),
    ],
)
def test_a_mistake_in_a_training_is_one_line(changed, said):
    with pytest.raises(InputError, match=said) as error:
        traced_training(dataclasses.replace(training(standard, PAIR, X), **changed))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(("found", "said"), [("text", "expected a number"), (1 / 3, None)])
def test_what_evaluate_gives_is_looked_at(found, said):
    made = dataclasses.replace(training(standard, PAIR, X), evaluate=lambda state: {"loss": found})
    program = training_program(traced_training(made))
    if said is None:
        assert program.evaluate(program.place(program.init())).loss == found
        return
    with pytest.raises(InputError, match=said):
        program.evaluate(program.place(program.init()))
