"""A training in plain JAX and Optax, for fault-injection.  It runs as it is; the lines marked EDIT are yours to change.

fault-injection sites NAME:training     # what a fault can strike
fault-injection golden NAME:training    # the fault-free run
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax
from sklearn.datasets import load_digits

BATCH, STEPS, EPOCHS = 64, 20, 5  # EDIT: examples of a step, steps of an epoch, epochs
optimizer = optax.adam(3e-3)  # EDIT: your optimizer

# EDIT: your data; here 1,797 handwritten digits, of which the last 500 are the test part.
digits = load_digits()
images, labels = (digits.data / 16).astype(np.float32), digits.target.astype(np.int32)
tests = images[1297:], labels[1297:]


def create(seed):
    """EDIT: the state before the first step.  Any pytree."""
    first, second = jax.random.split(jax.random.key(seed))
    params = {"hidden": jax.random.normal(first, (64, 32)) / 8, "head": jax.random.normal(second, (32, 10)) / 6}
    return params, optimizer.init(params)


def predict(params, x):
    """EDIT: your model."""
    return jax.nn.relu(x @ params["hidden"]) @ params["head"]


def measure(params, batch):
    """EDIT: your loss, and the metric by which runs are compared."""
    logits = predict(params, batch[0])
    loss = optax.softmax_cross_entropy_with_integer_labels(logits, batch[1]).mean()
    return loss, {"loss": loss, "accuracy": jnp.mean((logits.argmax(-1) == batch[1]).astype(jnp.float32))}


@jax.jit
def train_step(params, opt_state, batch):
    """EDIT: your step, as it is: `(state, batch) -> (state, metrics)`, or parts of these."""
    gradients, metrics = jax.grad(measure, has_aux=True)(params, batch)
    updates, opt_state = optimizer.update(gradients, opt_state)
    return optax.apply_updates(params, updates), opt_state, metrics


def get_batch(seed, epoch, step):
    """EDIT: the batch of a step; the same whenever it is asked for, so what is random is seeded by epoch and step."""
    order = np.random.default_rng([seed, epoch]).permutation(1297)[step * BATCH :][:BATCH]
    return images[order], labels[order]


def training(seed: int = 0):
    """What fault-injection asks for; a workload is called FILE.py:training."""
    from fault_injection import Measure, Training

    return Training(
        init=lambda: create(seed),
        step=train_step,
        batch=lambda epoch, step: get_batch(seed, epoch, step),
        steps_per_epoch=STEPS,
        epochs=EPOCHS,
        evaluate=lambda state: measure(state[0], tests)[1],
        predict=lambda state, batch: predict(state[0], batch[0]),  # single answers, which `pvf` judges
        tests=lambda: [tests],
        # EDIT: what guessing gives, and how much worse a run may end that counts as no worse.
        metric=Measure("accuracy", "higher", chance=0.1, tolerance=0.02, limits=(0.0, 1.0)),
    )
