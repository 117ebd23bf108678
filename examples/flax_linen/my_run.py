"""A small residual network in Flax Linen, with batch statistics, on the handwritten digits."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax.training import train_state
from sklearn.datasets import load_digits

BATCH, STEPS, EPOCHS = 64, 22, 4


class Block(nn.Module):
    features: int
    stride: int = 1

    @nn.compact
    def __call__(self, x, train):
        norm = lambda: nn.BatchNorm(use_running_average=not train, momentum=0.9)  # noqa: E731
        y = nn.relu(norm()(nn.Conv(self.features, (3, 3), self.stride, use_bias=False)(x)))
        y = norm()(nn.Conv(self.features, (3, 3), use_bias=False)(y))
        if x.shape != y.shape:
            x = nn.Conv(self.features, (1, 1), self.stride, use_bias=False, name="shortcut")(x)
        return nn.relu(x + y)


class ResNet(nn.Module):
    @nn.compact
    def __call__(self, x, train):
        x = nn.Conv(16, (3, 3), use_bias=False, name="stem")(x)
        for features, stride in ((16, 1), (32, 2)):
            x = Block(features, stride)(x, train)
        return nn.Dense(10, name="head")(jnp.mean(x, (1, 2)))


class TrainState(train_state.TrainState):
    batch_stats: Any


model = ResNet()


def create_state(seed):
    variables = model.init(jax.random.key(seed), jnp.zeros((1, 8, 8, 1)), train=False)
    tx = optax.sgd(0.1, momentum=0.9)
    return TrainState.create(
        apply_fn=model.apply, params=variables["params"], tx=tx, batch_stats=variables["batch_stats"]
    )


def measures(logits, labels):
    loss = optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()
    return {"loss": loss, "accuracy": jnp.mean((jnp.argmax(logits, -1) == labels).astype(jnp.float32))}


@jax.jit
def train_step(state, batch):
    def loss_fn(params):
        variables = {"params": params, "batch_stats": state.batch_stats}
        logits, updates = state.apply_fn(variables, batch["image"], train=True, mutable=["batch_stats"])
        metrics = measures(logits, batch["label"])
        return metrics["loss"], (metrics, updates)

    grads, (metrics, updates) = jax.grad(loss_fn, has_aux=True)(state.params)
    return state.apply_gradients(grads=grads, batch_stats=updates["batch_stats"]), metrics


@jax.jit
def eval_step(state, batch):
    logits = state.apply_fn({"params": state.params, "batch_stats": state.batch_stats}, batch["image"], train=False)
    return measures(logits, batch["label"])


digits = load_digits()
images, labels = (digits.images[..., None] / 16 - 0.3).astype(np.float32), digits.target.astype(np.int32)
held_out = {"image": images[1437:], "label": labels[1437:]}


def get_batch(seed, epoch, step):
    order = np.random.default_rng([seed, epoch]).permutation(1437)[step * BATCH :][:BATCH]
    return {"image": images[order], "label": labels[order]}


# Above: the training as it was.  Below: what strikes it.


def training(seed: int = 0):
    from fault_injection import Measure, Training

    return Training(
        init=lambda: create_state(seed),
        step=train_step,
        batch=lambda epoch, step: get_batch(seed, epoch, step),
        steps_per_epoch=STEPS,
        epochs=EPOCHS,
        evaluate=lambda state: eval_step(state, held_out),
        metric=Measure("accuracy", "higher", chance=0.1, tolerance=0.02, limits=(0.0, 1.0)),
    )
