"""A small vision transformer on the digits, as a user might write it: its training, and its inference as a step.

The inference is a step whose state keeps the parameters as they are, with the loss and the class of each example beside
them.  So what detects faults in steps of one's own is measured in evaluation, too (`dr_dna.py`).

Reference: Dosovitskiy et al., An Image is Worth 16x16 Words, ICLR 2021.
"""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

from fault_injection import Measure, Training
from fault_injection.data.batches import Batches, steps_per_epoch
from fault_injection.data.digits import load_digits

PATCH, WIDTH, HEADS, BLOCKS = 8, 48, 4, 4
BATCH, EPOCHS = 128, 100


class Block(nn.Module):
    """Attention and two dense layers, each after a norm and added to what it reads."""

    @nn.compact
    def __call__(self, x):
        x = x + nn.MultiHeadDotProductAttention(HEADS, name="attention")(nn.LayerNorm()(x))
        y = nn.gelu(nn.Dense(4 * WIDTH, name="up")(nn.LayerNorm()(x)))
        return x + nn.Dense(WIDTH, name="down")(y)


class ViT(nn.Module):
    """Images [b,32,32,3] -> logits [b,10]."""

    @nn.compact
    def __call__(self, images):
        x = nn.Conv(WIDTH, (PATCH, PATCH), PATCH, name="patches")(images)
        x = x.reshape(len(x), -1, WIDTH)
        x = x + self.param("positions", nn.initializers.normal(0.02), (1, *x.shape[1:]))
        for number in range(BLOCKS):
            x = Block(name=f"block_{number}")(x)
        return nn.Dense(10, name="head")(jnp.mean(nn.LayerNorm()(x), 1))


model = ViT()
optimizer = optax.adam(2e-3)
digits = load_digits()
held_out = {"image": digits.table[digits.test_images], "label": digits.test_labels}
measure = Measure("accuracy", "higher", chance=digits.chance, tolerance=0.02, limits=(0.0, 1.0))


def create_state(seed):
    params = model.init(jax.random.key(seed), jnp.zeros((1, 32, 32, 3)))["params"]
    return {"params": params, "opt_state": optimizer.init(params)}


def answers(params, batch):
    """Of each example the loss, the class, and whether it is right."""
    logits = model.apply({"params": params}, batch["image"])
    loss = optax.softmax_cross_entropy_with_integer_labels(logits, batch["label"])
    predicted = jnp.argmax(logits, -1).astype(jnp.int32)
    return loss, predicted, predicted == batch["label"]


@jax.jit
def train_step(state, batch):
    def loss_fn(params):
        loss, _, right = answers(params, batch)
        return loss.mean(), {"loss": loss.mean(), "accuracy": right.mean()}

    grads, metrics = jax.grad(loss_fn, has_aux=True)(state["params"])
    updates, opt_state = optimizer.update(grads, state["opt_state"])
    return {"params": optax.apply_updates(state["params"], updates), "opt_state": opt_state}, metrics


@jax.jit
def eval_step(state, batch):
    loss, _, right = answers(state["params"], batch)
    return {"loss": loss.mean(), "accuracy": right.mean()}


def get_batch(seed, epoch, step, examples=BATCH):
    batch = Batches(digits, seed, examples, examples, "crop").train(epoch, step)
    return {"image": batch["input"][:, 0], "label": batch["target"][:, 0]}


def training(seed: int = 123):
    return Training(
        init=lambda: create_state(seed),
        step=train_step,
        batch=functools.partial(get_batch, seed),
        steps_per_epoch=steps_per_epoch(len(digits.train_labels), BATCH),
        epochs=EPOCHS,
        evaluate=lambda state: eval_step(state, held_out),
        metric=measure,
    )


def inference(seed: int = 123, examples: int = BATCH):
    """Its step infers so many examples; `loss`, `predicted` and `right` of the state are what it says of them."""

    def init():
        nothing = {name: np.zeros(examples, kind) for name, kind in KEPT.items()}
        return {"params": create_state(seed)["params"], **nothing}

    @jax.jit
    def step(state, batch):
        loss, predicted, right = answers(state["params"], batch)
        kept = {"loss": loss, "predicted": predicted, "right": right}
        return {"params": state["params"], **kept}, {"loss": loss.mean(), "accuracy": right.mean()}

    return Training(
        init=init,
        step=step,
        batch=lambda epoch, number: get_batch(seed, epoch, number, examples),
        steps_per_epoch=steps_per_epoch(len(digits.train_labels), examples),
        epochs=EPOCHS,
        evaluate=lambda state: eval_step(state, held_out),
        metric=measure,
    )


def inference_of_one(seed: int = 123):
    return inference(seed, examples=1)


KEPT = {"loss": np.float32, "predicted": np.int32, "right": np.bool_}
