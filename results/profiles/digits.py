"""The training on which shipped defect profiles are tried: three dense layers on handwritten digits.

It is like the one of the README, with a third dense layer.
`run.sh` makes the campaigns of this folder, `write.py` makes the tables and pictures of docs/profiles.md from them.
"""

import itertools

import jax
import jax.numpy as jnp
import optax
from sklearn.datasets import load_digits

from fault_injection import Measure, Training

PIXELS, DIGITS = load_digits(return_X_y=True)
IMAGES, LABELS = jnp.asarray(PIXELS / 16, jnp.float32), jnp.asarray(DIGITS)
BATCH, STEPS, EPOCHS, TRAINED = 64, 20, 6, 1280
WIDTHS = (64, 64, 64, 10)
OPTIMIZER = optax.sgd(0.1, momentum=0.9)


def init():
    keys = jax.random.split(jax.random.key(0), len(WIDTHS) - 1)
    shapes = itertools.pairwise(WIDTHS)
    params = {
        f"fc{number}": jax.random.normal(key, shape) / shape[0] ** 0.5
        for number, (key, shape) in enumerate(zip(keys, shapes, strict=True), 1)
    }
    return params, OPTIMIZER.init(params)


def measured(params, batch):
    """The loss, and loss and accuracy."""
    x, y = batch
    for number in range(1, len(WIDTHS)):
        x = x @ params[f"fc{number}"]
        x = jax.nn.relu(x) if number < len(WIDTHS) - 1 else x
    loss = optax.softmax_cross_entropy_with_integer_labels(x, y).mean()
    return loss, {"loss": loss, "accuracy": jnp.mean(x.argmax(-1) == y, dtype=jnp.float32)}


@jax.jit
def step(state, batch):
    params, opt_state = state
    gradients, metrics = jax.grad(measured, has_aux=True)(params, batch)
    updates, opt_state = OPTIMIZER.update(gradients, opt_state)
    return (optax.apply_updates(params, updates), opt_state), metrics


def float32():
    """The training; its name is that of the campaigns."""
    return Training(
        init=init,
        step=step,
        batch=lambda epoch, step: (IMAGES[BATCH * step :][:BATCH], LABELS[BATCH * step :][:BATCH]),
        steps_per_epoch=STEPS,
        epochs=EPOCHS,
        evaluate=lambda state: measured(state[0], (IMAGES[TRAINED:], LABELS[TRAINED:]))[1],
        metric=Measure("accuracy", "higher", chance=0.1, tolerance=0.02, limits=(0.0, 1.0)),
    )
