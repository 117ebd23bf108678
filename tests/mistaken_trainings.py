"""Trainings with one mistake each, as people make them; `test_mistaken_trainings` says how each is answered."""

import dataclasses
import sys

import jax
import jax.numpy as jnp
import numpy as np

from fault_injection import Measure, Training

W = {"w": np.ones((3, 2), np.float32)}
X = np.random.default_rng(0).normal(size=(8, 3)).astype("f4")
KEPT = []


def loss_of(w, x):
    return jnp.mean((x @ w["w"] - 1) ** 2)


def update(w, x):
    loss, gradient = jax.value_and_grad(loss_of)(w, x)
    return jax.tree.map(lambda p, g: p - 0.1 * g, w, gradient), {"loss": loss}


def evaluated(w):
    return {"loss": loss_of(w, X)}


class Tensor:
    """JAX does not see into it."""

    def __init__(self):
        self.array = X


def training():
    measure = Measure("loss", "lower", chance=1.0, tolerance=0.01)
    return Training(lambda: W, update, lambda epoch, step: X, 3, 2, evaluated, measure)


def but(**new):
    return lambda: dataclasses.replace(training(), **new)


def keeping(w, x):
    KEPT.append(loss_of(w, x))
    return update(w, x)


def new_state(change):
    """A step whose new state is changed."""

    def step(w, x):
        new, metrics = update(w, x)
        return change(new), metrics

    return but(step=step)


def new_loss(loss):
    """A step that computes its loss in another way."""
    return but(step=lambda w, x: (update(w, x)[0], {"loss": loss(w, x)}))


def returns_nothing():
    return None


def exits():
    sys.exit("no data")


def wants_more(config):
    return training()


init_raises = but(init=lambda: 1 / 0)
init_is_text = but(init=lambda: "weights")
init_differs = but(init=lambda: {"w": np.random.normal(size=(3, 2)).astype("f4")})
init_is_empty = but(init=dict)
batch_raises = but(batch=lambda epoch, step: [][step])
batch_is_nothing = but(batch=lambda epoch, step: None)
batch_of_epoch = but(batch=lambda epoch: X)
batch_shrinks = but(batch=lambda epoch, step: X[: 8 - step])
batch_changes_type = but(batch=lambda epoch, step: X if step == 0 else X.astype("f2"))
batch_changes_names = but(
    step=lambda w, batch: update(w, batch["x"]), batch=lambda epoch, step: {"x": X} if step == 0 else {"y": X}
)
batch_unseeded = but(batch=lambda epoch, step: np.random.normal(size=(8, 3)).astype("f4"))
batch_is_hidden = but(step=lambda w, batch: update(w, batch.array), batch=lambda epoch, step: Tensor())
evaluate_raises = but(evaluate=lambda w: w["weights"])
evaluate_is_text = but(evaluate=lambda w: "good")
evaluate_is_nothing = but(evaluate=lambda w: None)
evaluate_misspells = but(evaluate=lambda w: {"los": 0.1})
evaluate_is_nan = but(evaluate=lambda w: {"loss": float("nan")})
metric_is_missing = but(metric=Measure("accuracy", "higher", chance=0.1, tolerance=0.02))
metric_is_nothing = but(metric=None)
epochs_are_broken = but(epochs=2.5)
epochs_are_none = but(epochs=0)
steps_are_text = but(steps_per_epoch="3")
turns_are_none = but(turns=0)
predict_alone = but(predict=lambda w, x: x @ w["w"])
step_is_nothing = but(step=None)
step_takes_three = but(step=lambda params, opt_state, x: update(params, x))
step_takes_keywords = but(step=lambda w, *, x: update(w, x))
step_returns_nothing = but(step=lambda w, x: None)
step_changes_type = new_state(lambda w: jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), w))
step_changes_shape = new_state(lambda w: {"w": w["w"][:2]})
step_adds_a_leaf = new_state(lambda w: {**w, "n": jnp.ones(2)})
step_loses_a_leaf = but(init=lambda: {**W, "m": np.zeros(2, "f4")}, step=lambda w, x: update({"w": w["w"]}, x))
step_has_no_loss = but(step=lambda w, x: (update(w, x)[0], {"accuracy": 1.0}))
step_asks_for_a_number = new_loss(lambda w, x: loss_of(w, x).item())
step_calls_numpy = new_loss(lambda w, x: np.mean(np.asarray(x @ w["w"])))
step_makes_a_shape = new_loss(lambda w, x: jnp.ones(jnp.int32(x[0, 0])).sum())
step_reads_the_clock = new_loss(lambda w, x: loss_of(w, x) * np.random.default_rng().normal())
step_branches = but(step=lambda w, x: update(w, x) if loss_of(w, x) > 1 else (w, {"loss": 0.0}))
step_multiplies_wrongly = but(step=lambda w, x: update(w, x @ x))
step_misspells = but(step=lambda w, x: update(w["params"], x))
step_keeps = but(step=keeping)
step_is_still = but(step=lambda w, x: (w, update(w, x)[1]))
step_diverges = new_state(lambda w: jax.tree.map(lambda leaf: leaf * jnp.nan, w))
roles_are_no_roles = but(roles={"w": "weights"})
roles_name_nothing = but(roles={"v": "parameters"})
sites_name_nothing = but(sites=["conv*"])
