"""A training of one's own as the tests of the command line use it: two dense layers, a norm's statistics, Adam."""

import time

import jax
import jax.numpy as jnp
import numpy as np
import optax

STEPS, EPOCHS = 6, 3
optimizer = optax.adam(1e-2)
TRUE = np.random.default_rng(7).standard_normal((4, 2), np.float32)


def examples(seed, *address):
    x = np.random.default_rng([seed, *address]).standard_normal((16, 4), np.float32)
    return {"x": x, "label": np.argmax(x @ TRUE, 1).astype(np.int32)}


def create(seed):
    first, second = jax.random.split(jax.random.key(seed))
    params = {
        "fc1": {"kernel": jax.random.normal(first, (4, 8)) / 2, "bias": jnp.zeros(8)},
        "fc2": {"kernel": jax.random.normal(second, (8, 2)) / 3, "bias": jnp.zeros(2)},
    }
    statistics = {"norm": {"mean": jnp.zeros(8), "var": jnp.ones(8)}}
    return {"params": params, "batch_stats": statistics, "opt": optimizer.init(params), "key": jax.random.key(seed)}


def measures(params, batch):
    h = jax.nn.relu(batch["x"] @ params["fc1"]["kernel"] + params["fc1"]["bias"])
    logits = h @ params["fc2"]["kernel"] + params["fc2"]["bias"]
    loss = optax.softmax_cross_entropy_with_integer_labels(logits, batch["label"]).mean()
    hits = (jnp.argmax(logits, 1) == batch["label"]).astype(jnp.float32)
    return loss, ({"loss": loss, "accuracy": jnp.mean(hits)}, h)


@jax.jit
def train_step(state, batch):
    key, noise = jax.random.split(state["key"])
    batch = batch | {"x": batch["x"] + 0.01 * jax.random.normal(noise, batch["x"].shape)}
    (_, (metrics, h)), grads = jax.value_and_grad(measures, has_aux=True)(state["params"], batch)
    updates, opt = optimizer.update(grads, state["opt"])
    old = state["batch_stats"]["norm"]
    new = {"mean": jnp.mean(h, 0), "var": jnp.var(h, 0)}
    statistics = {"norm": jax.tree.map(lambda a, b: 0.9 * a + 0.1 * b, old, new)}
    params = optax.apply_updates(state["params"], updates)
    return {"params": params, "batch_stats": statistics, "opt": opt, "key": key}, metrics


evaluated = jax.jit(lambda params, batch: measures(params, batch)[1][0])


def training(seed: int = 0):
    from fault_injection import Measure, Training

    return Training(
        init=lambda: create(seed),
        step=train_step,
        batch=lambda epoch, step: examples(seed, epoch, step),
        steps_per_epoch=STEPS,
        epochs=EPOCHS,
        evaluate=lambda state: evaluated(state["params"], examples(2**31)),
        metric=Measure("accuracy", "higher", chance=0.5, tolerance=0.05, limits=(0.0, 1.0)),
    )


def slowed(seed: int = 0):
    """A longer one without tolerance, whose batches take long enough for a process to be killed between two steps."""
    import dataclasses

    def batch(epoch, step):
        time.sleep(0.02)
        return examples(seed, epoch, step)

    usual = training(seed)
    strict = dataclasses.replace(usual.metric, tolerance=0.0)
    return dataclasses.replace(usual, batch=batch, epochs=7, metric=strict)


def branching(seed: int = 0):
    """The second layer is computed in every other step alone."""
    import dataclasses

    @jax.jit
    def step(state, batch):
        def shown(params):
            h = batch["x"] @ params["fc1"]["kernel"]
            odd = state["number"] % 2 == 1
            return jnp.mean(jax.lax.cond(odd, lambda h: h @ params["fc2"]["kernel"], lambda h: h[:, :2], h) ** 2)

        loss, grads = jax.value_and_grad(shown)(state["params"])
        params = jax.tree.map(lambda w, g: w - 0.01 * g, state["params"], grads)
        return {"params": params, "number": state["number"] + 1}, {"loss": loss, "accuracy": 1 - loss}

    return dataclasses.replace(
        training(seed), init=lambda: {"params": create(seed)["params"], "number": jnp.zeros((), jnp.int32)}, step=step
    )


def without_loss(seed: int = 0):
    """A mistake: the metrics have no loss."""
    import dataclasses

    def step(state, batch):
        state, metrics = train_step(state, batch)
        return state, {"accuracy": metrics["accuracy"]}

    return dataclasses.replace(training(seed), step=step)


def nothing():
    """A mistake: it returns nothing."""


def no_start():
    """A mistake: it has no initial state."""
    import dataclasses

    return dataclasses.replace(training(), init=lambda: 1 // 0)
