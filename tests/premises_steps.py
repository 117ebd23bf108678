"""Trainings whose state carries a fault where no list of names would look: accumulators, averages, scales, moments."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
from optax import contrib

from fault_injection import Measure, Training

STEPS, EPOCHS, WINDOW = 8, 4, 4
TRUE = np.random.default_rng(0).standard_normal((6, 3), np.float32)
FIRST, SECOND = "mlp/~/linear_0", "größe:[1] #2"  # as Haiku names layers, and as nobody should


def examples(key, count=32):
    x = np.random.default_rng(key).standard_normal((count, 6), np.float32)
    return {"x": x, "y": np.argmax(x @ TRUE, 1).astype(np.int32)}


def measured(params, batch):
    h = jnp.tanh(batch["x"] @ params[FIRST]["w"] + params[FIRST]["b"])
    logits = h @ params[SECOND]["w"] + params[SECOND]["b"]
    loss = optax.softmax_cross_entropy_with_integer_labels(logits, batch["y"]).mean()
    return loss, {"loss": loss, "accuracy": jnp.mean((jnp.argmax(logits, -1) == batch["y"]).astype(jnp.float32))}


def parameters():
    random = np.random.default_rng(1)

    def layer(i, o):
        return {"w": jnp.asarray(random.normal(size=(i, o)) * 0.4, jnp.float32), "b": jnp.zeros(o)}

    return {FIRST: layer(6, 8), SECOND: layer(8, 3)}


def trained(optimizer, evaluated=lambda state: state["params"]):
    def init():
        params = parameters()
        return {"params": params, "opt": optimizer.init(params)}

    def step(state, batch):
        grads, metrics = jax.grad(measured, has_aux=True)(state["params"], batch)
        updates, opt = optimizer.update(grads, state["opt"], state["params"])
        return {"params": optax.apply_updates(state["params"], updates), "opt": opt}, metrics

    return Training(
        init=init,
        step=step,
        batch=lambda epoch, number: examples([epoch, number]),
        steps_per_epoch=STEPS,
        epochs=EPOCHS,
        evaluate=lambda state: measured(evaluated(state), examples(99, 512))[1],
        metric=Measure("accuracy", "higher", chance=0.34, tolerance=0.02, limits=(0.0, 1.0)),
    )


def sgd():
    return trained(optax.sgd(0.3))


def accumulated():
    return trained(optax.MultiSteps(optax.sgd(0.5, momentum=0.9), WINDOW))


def accumulated_plainly():
    """No moment shows the gradient of the last mini-step."""
    return trained(optax.MultiSteps(optax.sgd(0.5), WINDOW))


def adan():
    return trained(optax.adan(1e-2))


def prodigy():
    return trained(contrib.prodigy(1.0))


def ademamix():
    return trained(contrib.ademamix(1e-2))


def schedule_free():
    optimizer = contrib.schedule_free_sgd(0.3)
    return trained(optimizer, lambda state: contrib.schedule_free_eval_params(state["opt"], state["params"]))


def adafactor():
    return trained(optax.adafactor(1e-2))


def muon():
    return trained(contrib.muon(1e-2))


def adam_by_hand():
    """Its moments have names of their own, and stand in lists."""
    optimizer = optax.adam(1e-2)

    def init():
        params = parameters()
        return {"params": params, "memory": [[jnp.zeros_like(w) for w in jax.tree.leaves(params)] for _ in range(2)]}

    def step(state, batch):
        grads, metrics = jax.grad(measured, has_aux=True)(state["params"], batch)
        weights, tree = jax.tree.flatten(state["params"])
        first, second = state["memory"]
        grads = jax.tree.leaves(grads)
        first = [0.9 * m + 0.1 * g for m, g in zip(first, grads, strict=True)]
        second = [0.99 * v + 0.01 * g * g for v, g in zip(second, grads, strict=True)]
        new = [w - 1e-2 * m / (jnp.sqrt(v) + 1e-6) for w, m, v in zip(weights, first, second, strict=True)]
        return {"params": jax.tree.unflatten(tree, new), "memory": [first, second]}, metrics

    return dataclasses.replace(trained(optimizer), init=init, step=step)


def averaged():
    """What is evaluated is an average of the weights, which nothing reads while it trains."""
    plain = trained(optax.adam(2e-2))

    def init():
        return {**plain.init(), "shadow": parameters()}

    def step(state, batch):
        new, metrics = plain.step({"params": state["params"], "opt": state["opt"]}, batch)
        shadow = jax.tree.map(lambda a, b: 0.9 * a + 0.1 * b, state["shadow"], new["params"])
        return {**new, "shadow": shadow}, metrics

    def evaluate(state):
        return measured(state["shadow"], examples(99, 512))[1]

    return dataclasses.replace(plain, init=init, step=step, evaluate=evaluate)


def scaled():
    """The loss is multiplied by a scale, which is halved, and the step left out, where a gradient is not finite."""
    optimizer = optax.adam(2e-2)

    def init():
        params = parameters()
        return {"params": params, "opt": optimizer.init(params), "scale": jnp.float32(2.0**15)}

    def step(state, batch):
        def of_scaled(params):
            loss, metrics = measured(params, batch)
            return loss * state["scale"], metrics

        grads, metrics = jax.grad(of_scaled, has_aux=True)(state["params"])
        grads = jax.tree.map(lambda g: g / state["scale"], grads)
        fine = jnp.all(jnp.array([jnp.isfinite(g).all() for g in jax.tree.leaves(grads)]))
        updates, opt = optimizer.update(grads, state["opt"], state["params"])
        new = {"params": optax.apply_updates(state["params"], updates), "opt": opt, "scale": state["scale"]}
        old = {**state, "scale": state["scale"] / 2}
        return jax.tree.map(lambda a, b: jnp.where(fine, a, b), new, old), metrics

    return dataclasses.replace(trained(optimizer), init=init, step=step)


def normed():
    """Running statistics as Flax has them, and a step that reads them."""
    plain = trained(optax.sgd(0.1))

    def init():
        statistics = {"norm": {"mean": jnp.zeros(6), "var": jnp.ones(6)}}
        return {**plain.init(), "batch_stats": statistics}

    def step(state, batch):
        norm = state["batch_stats"]["norm"]
        x = (batch["x"] - norm["mean"]) / jnp.sqrt(norm["var"] + 1e-3)
        new, metrics = plain.step({"params": state["params"], "opt": state["opt"]}, {**batch, "x": x})
        now = {"mean": jnp.mean(batch["x"], 0), "var": jnp.var(batch["x"], 0)}
        return {**new, "batch_stats": {"norm": jax.tree.map(lambda a, b: 0.9 * a + 0.1 * b, norm, now)}}, metrics

    return dataclasses.replace(plain, init=init, step=step)
