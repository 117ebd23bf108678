"""A step that cannot be used is refused in one line: the place, and the remedy.  What is no array stays what it is."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fault_injection import instrument
from fault_injection.machine.errors import InputError
from fault_injection.models.fault import inactive_fault

W, X = {"a": np.ones((3, 2), np.float32)}, np.ones((4, 3), np.float32)


@jax.jit
def inner(w, x):
    loss, grads = jax.value_and_grad(lambda w: jnp.mean((x @ w["a"] - 1) ** 2))(w)
    return jax.tree.map(lambda p, g: p - 0.1 * g, w, grads), {"loss": loss}


def item(w, x):
    w, metrics = inner(w, x)
    return w, {"loss": metrics["loss"].item()}


def with_text(w, x):
    w, metrics = inner(w, x)
    return w, {**metrics, "phase": "train"}


def branching(state, x):
    w, metrics = inner(state["w"], x)
    return {"w": w, "n": state["n"] + 1}, {**metrics, "warm": 1.0 if state["n"] < 3 else 0.0}


def in_a_mesh(w, x):
    with jax.set_mesh(jax.make_mesh((1,), ("rows",), axis_types=(jax.sharding.AxisType.Auto,))):
        return inner(w, x)


@pytest.mark.parametrize(
    ("step", "state", "said"),
    [
        (item, W, ("test_step_mistakes.py:", "as by float() or .item(); return the array")),
        (with_text, W, ("'phase' of the step's metrics is 'train'", "leave it out")),
        (lambda w, x: inner(w, x)[1], W, ("returns a dict, in which its state is not", "(state, metrics)")),
        (
            lambda v, w, x: (inner(v, x)[0], inner(w, x)[0], inner(w, x)[0]),
            (W, W),
            ("2 parts of what the step returns are like its state", "(lambda a, b, c: ((a, b), c))(*step"),
        ),
        (lambda w, x: (w, {"loss": x.sum()}), {"a/b": X, "a": {"b": X}}, ("two leaves of the state are called 'a/b'",)),
        (branching, {"w": W, "n": 0}, ("test_step_mistakes.py:", "jnp.where")),
        (in_a_mesh, W, ("test_step_mistakes.py:", "set the mesh around instrument")),
        (inner.lower(W, X).compile(), W, ("give the function itself",)),
        (lambda p, o, b: inner(p, b), W, ("takes (p, o, b)", "arguments=lambda state, batch")),
        (jax.jit(inner, in_shardings=({"b": None}, None)), W, ("in_shardings[0]", "shardings need the structure")),
    ],
)
def test_a_mistake_is_answered_with_its_place_and_its_remedy(step, state, said):
    with pytest.raises(InputError) as error:
        instrument(step, state, X)
    assert all(part in str(error.value) for part in said), error.value
    assert "\n" not in str(error.value)


class Trainer:
    def __init__(self):
        self.w = W

    def step(self, state, x):
        self.w, metrics = inner(self.w, x)
        return state, metrics


def test_what_keeps_a_traced_value_is_named_though_jax_fails_to_find_it():
    with pytest.raises(InputError, match=r"outside of itself \(Trainer\.w\): return it"):
        instrument(Trainer().step, {}, X)


@dataclasses.dataclass
class Unknown:
    """JAX does not know it as a tree."""

    w: np.ndarray


def test_an_object_that_jax_does_not_see_into_is_refused_as_state_and_compared_as_batch():
    def step(state, batch):
        return inner(state, batch.w)

    with pytest.raises(InputError, match="the state is a Unknown that JAX does not see into: make it a pytree"):
        instrument(lambda state, x: (state, inner({"a": state.w}, x)[1]), Unknown(W["a"]), X)
    batch = Unknown(X)
    program = instrument(step, W, batch)
    program(inactive_fault(), W, batch)
    with pytest.raises(InputError, match="another Unknown than the step was traced with: make it a pytree"):
        program(inactive_fault(), W, Unknown(X))


def test_numbers_of_python_stay_what_the_users_step_sees():
    def step(state, x):
        loss, grad = jax.value_and_grad(
            lambda w: jnp.mean((state["scale"] * jnp.tanh(x @ w) + jnp.zeros(state["size"]) - 1) ** 2)
        )(state["w"])
        return {**state, "w": state["w"] - 0.1 * grad, "count": state["count"] + 1}, {"loss": loss}

    state = {"w": W["a"], "scale": 2.0, "size": 2, "count": 0}
    program = instrument(step, state, X)
    new, metrics = program.reference(state, X)
    own, own_metrics = jax.jit(lambda w: step({**state, "w": w}, X))(W["a"])
    assert (new["scale"], new["size"], int(new["count"])) == (2.0, 2, 1) and type(new["size"]) is int
    assert np.allclose(new["w"], own["w"]) and np.allclose(metrics["loss"], own_metrics["loss"])
    program.reference(new, X)
    with pytest.raises(InputError, match="'size' is 3; the step was traced with 2"):
        program.reference(new | {"size": 3}, X)


def test_what_nothing_is_known_of_is_listed():
    sparse = pytest.importorskip("jax.experimental.sparse")
    adjacency = sparse.BCOO.fromdense(jnp.eye(4))

    def step(state, batch):
        doubled = jax.pure_callback(lambda x: 2 * x, jax.ShapeDtypeStruct((4, 3), jnp.float32), batch["x"])
        loss, grads = jax.value_and_grad(lambda w: jnp.mean(batch["adjacency"] @ (doubled @ w["a"])))(state)
        return jax.tree.map(lambda p, g: p - g, state, grads), {"loss": loss}

    program = instrument(step, W, {"adjacency": adjacency, "x": X})
    listed = {one.partition(" (")[0] for one in program.not_covered}
    assert {"pure_callback", "bcoo_dot_general"} <= listed
    assert list(program.sites) == ["forward:a", "grad_wt:a"]


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="XLA on CPUs alone compiles such a loop as one kernel")
def test_products_of_vectors_in_a_loop_are_warned_of():
    def step(state, xs):
        def loss(w):
            return jnp.mean(jax.lax.scan(lambda h, x: (jnp.tanh(x @ w + h), None), jnp.zeros(2), xs)[0])

        value, grad = jax.value_and_grad(loss)(state["a"])
        return {"a": state["a"] - grad}, {"loss": value}

    with pytest.warns(UserWarning, match="sites such as forward:a multiply a vector in a loop"):
        instrument(step, W, X)
