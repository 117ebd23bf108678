"""A training of one's own by the strictest rules of promotion: two dense layers, trained by momentum."""

import jax
import jax.numpy as jnp
import numpy as np

from fault_injection import Measure, Training

STEPS, EPOCHS = 6, 3
TRUE = np.random.default_rng(7).standard_normal((4, 2), np.float32)


def examples(*address):
    x = np.random.default_rng(address).standard_normal((16, 4), np.float32)
    return x, jnp.argmax(x @ TRUE, 1)


def create():
    first, second = jax.random.split(jax.random.key(0))
    params = {"fc1": jax.random.normal(first, (4, 8)) / 2, "fc2": jax.random.normal(second, (8, 2)) / 3}
    return {"params": params, "trace": jax.tree.map(jnp.zeros_like, params)}


def measures(params, batch):
    x, label = batch
    logits = jax.nn.relu(x @ params["fc1"]) @ params["fc2"]
    loss = -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(logits), label[:, None], 1))
    return loss, {"loss": loss, "accuracy": jnp.mean(jnp.argmax(logits, 1) == label, dtype=jnp.float32)}


@jax.jit
def step(state, batch):
    (_, metrics), grads = jax.value_and_grad(measures, has_aux=True)(state["params"], batch)
    momentum = jax.tree.map(lambda m, g: 0.9 * m + g, state["trace"], grads)
    return {"params": jax.tree.map(lambda w, m: w - 0.1 * m, state["params"], momentum), "trace": momentum}, metrics


def training():
    return Training(
        init=create,
        step=step,
        batch=lambda epoch, number: examples(epoch, number),
        steps_per_epoch=STEPS,
        epochs=EPOCHS,
        evaluate=lambda state: measures(state["params"], examples(2**31))[1],
        metric=Measure("accuracy", "higher", chance=0.5, tolerance=0.05, limits=(0.0, 1.0)),
    )
