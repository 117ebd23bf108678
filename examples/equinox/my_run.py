"""A multilayer perceptron in Equinox, on the handwritten digits; its activation function is a leaf of the model."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from sklearn.datasets import load_digits

BATCH, STEPS, EPOCHS = 64, 22, 4
optimizer = optax.adam(3e-3)


def create(seed):
    model = eqx.nn.MLP(64, 10, 64, 2, key=jax.random.key(seed))
    return model, optimizer.init(eqx.filter(model, eqx.is_array))


def measures(model, batch):
    logits = jax.vmap(model)(batch["image"])
    loss = optax.softmax_cross_entropy_with_integer_labels(logits, batch["label"]).mean()
    hits = jnp.argmax(logits, -1) == batch["label"]
    return loss, {"loss": loss, "accuracy": jnp.mean(hits.astype(jnp.float32))}


@eqx.filter_jit
def train_step(state, batch):
    model, opt_state = state
    (_, metrics), grads = eqx.filter_value_and_grad(measures, has_aux=True)(model, batch)
    updates, opt_state = optimizer.update(grads, opt_state, eqx.filter(model, eqx.is_array))
    return (eqx.apply_updates(model, updates), opt_state), metrics


@eqx.filter_jit
def evaluated(model, batch):
    return measures(model, batch)[1]


digits = load_digits()
images, labels = (digits.data / 16 - 0.3).astype(np.float32), digits.target.astype(np.int32)
held_out = {"image": images[1437:], "label": labels[1437:]}


def get_batch(seed, epoch, step):
    order = np.random.default_rng([seed, epoch]).permutation(1437)[step * BATCH :][:BATCH]
    return {"image": images[order], "label": labels[order]}


# Above: the training as it was.  Below: what strikes it.


def training(seed: int = 0):
    from fault_injection import Measure, Training

    return Training(
        init=lambda: create(seed),
        step=train_step,
        batch=lambda epoch, step: get_batch(seed, epoch, step),
        steps_per_epoch=STEPS,
        epochs=EPOCHS,
        evaluate=lambda state: evaluated(state[0], held_out),
        metric=Measure("accuracy", "higher", chance=0.1, tolerance=0.02, limits=(0.0, 1.0)),
    )
