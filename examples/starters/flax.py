"""A training in Flax Linen, for fault-injection.  It runs as it is; the lines marked EDIT are yours to change.

fault-injection sites NAME:training     # what a fault can strike
fault-injection golden NAME:training    # the fault-free run
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen as nn
from flax.training.train_state import TrainState
from sklearn.datasets import load_digits

BATCH, STEPS, EPOCHS = 64, 20, 5  # EDIT: examples of a step, steps of an epoch, epochs

# EDIT: your data; here 1,797 handwritten digits, of which the last 500 are the test part.
digits = load_digits()
images, labels = (digits.data / 16).astype(np.float32), digits.target.astype(np.int32)
tests = images[1297:], labels[1297:]


class Model(nn.Module):
    """EDIT: your model."""

    @nn.compact
    def __call__(self, x):
        return nn.Dense(10, name="head")(nn.relu(nn.Dense(32, name="hidden")(x)))


model = Model()


def create(seed):
    """EDIT: the state before the first step.  Any pytree."""
    params = model.init(jax.random.key(seed), images[:1])["params"]
    return TrainState.create(apply_fn=model.apply, params=params, tx=optax.adam(3e-3))


def measure(params, batch):
    """EDIT: your loss, and the metric by which runs are compared."""
    logits = model.apply({"params": params}, batch[0])
    loss = optax.softmax_cross_entropy_with_integer_labels(logits, batch[1]).mean()
    return loss, {"loss": loss, "accuracy": jnp.mean((logits.argmax(-1) == batch[1]).astype(jnp.float32))}


@jax.jit
def train_step(state, batch):
    """EDIT: your step, as it is: `(state, batch) -> (state, metrics)`, or parts of these."""
    gradients, metrics = jax.grad(measure, has_aux=True)(state.params, batch)
    return state.apply_gradients(grads=gradients), metrics


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
        evaluate=lambda state: measure(state.params, tests)[1],
        # Single answers, which `pvf` judges.
        predict=lambda state, batch: model.apply({"params": state.params}, batch[0]),
        tests=lambda: [tests],
        # EDIT: what guessing gives, and how much worse a run may end that counts as no worse.
        metric=Measure("accuracy", "higher", chance=0.1, tolerance=0.02, limits=(0.0, 1.0)),
    )
