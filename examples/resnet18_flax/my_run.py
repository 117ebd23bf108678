"""The published ResNet-18 as a Flax Linen module, on the data and with the optimizer of the workload `resnet18`."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax.training import train_state

from fault_injection.data.batches import Batches
from fault_injection.data.digits import load_digits
from fault_injection.explicit.optimizers import keras_adam
from fault_injection.models.networks.resnet import resnet18

WIDTH, BATCH, STEPS, EPOCHS = 8, 128, 11, 5
AXES, EPSILON, KEEPS = (0, 1, 2), 1e-3, 0.9


@jax.custom_vjp
def normalise(x, gamma, beta):
    """By the statistics of the batch; the variance in one pass, in the gradient in two."""
    mean = jnp.mean(x, AXES)
    var = jnp.mean(x * x, AXES) - mean * mean
    return (x - mean) * (jax.lax.rsqrt(var + EPSILON) * gamma) + beta, mean, var


def normalise_backward(kept, cotangents):
    (x, gamma), dy = kept, cotangents[0]
    n = x.size // x.shape[-1]
    centred = x - jnp.mean(x, AXES)
    scale = jax.lax.rsqrt(jnp.mean(centred * centred, AXES) + EPSILON)
    dbeta, dgamma = jnp.sum(dy, AXES), jnp.sum(dy * centred, AXES) * scale
    return (gamma * scale) * (dy - dbeta / n - centred * (scale * dgamma / n)), dgamma, dbeta


normalise.defvjp(lambda x, gamma, beta: (normalise(x, gamma, beta), (x, gamma)), normalise_backward)


@jax.custom_vjp
def relu(x):
    """`nn.relu` is a maximum, which XLA computes on CPUs as 0 for a NaN: this one lets it pass."""
    return jnp.where(x <= 0, 0, x)


relu.defvjp(lambda x: (relu(x), x), lambda x, dy: (jnp.where(x > 0, dy, 0),))


class BatchNorm(nn.Module):
    """Flax's own clips its variance at 0, which decides what becomes of large faults."""

    @nn.compact
    def __call__(self, x, train):
        gamma, beta = (
            self.param("gamma", nn.initializers.ones, x.shape[-1:]),
            self.param("beta", nn.initializers.zeros, x.shape[-1:]),
        )
        running = {
            name: self.variable("batch_stats", name, fill, x.shape[-1:])
            for name, fill in (("mean", jnp.zeros), ("var", jnp.ones))
        }
        if not train:
            mean, var = running["mean"].value, running["var"].value
            return (x - mean) * (jax.lax.rsqrt(var + EPSILON) * gamma) + beta
        n = x.size // x.shape[-1]
        y, mean, var = normalise(x, gamma, beta)
        for name, new in (("mean", mean), ("var", var * (n / (n - 1)))):
            running[name].value -= (running[name].value - jax.lax.stop_gradient(new)) * (1 - KEEPS)
        return y


class ResNet18(nn.Module):
    """Images [b, 32, 32, 3] -> logits [b, 10]; its layers are called as the published ones."""

    @nn.compact
    def __call__(self, x, train):
        def conv(x, name, features, size, stride=1):
            return nn.Conv(features, (size, size), stride, name=name)(x)

        def norm(x, name):
            return BatchNorm(name=name)(x, train)

        x = relu(norm(conv(x, "conv1", WIDTH, 7, 2), "bn1"))
        for stage in (1, 2, 3, 4):
            for i in (0, 1):
                name, features = f"basicblock_{stage}_basic_{i}", WIDTH * 2 ** (stage - 1)
                stride = 2 if stage > 1 and i == 0 else 1
                y = relu(norm(conv(x, f"{name}_conv1", features, 3, stride), f"{name}_bn1"))
                y = norm(conv(y, f"{name}_conv2", features, 3), f"{name}_bn2")
                if stride != 1:
                    x = norm(conv(x, f"{name}_downsample", features, 1, stride), f"{name}_bn3")
                x = relu(x + y)
        return nn.Dense(10, name="fc")(jnp.mean(x, (1, 2)))


class TrainState(train_state.TrainState):
    batch_stats: Any


model = ResNet18()
optimizer = keras_adam(optax.polynomial_schedule(1e-3, 1e-4, power=1, transition_steps=5000))


def create_state(seed):
    params, stats = resnet18(width=WIDTH, dropout_rate=0.0).init((seed,), (1, BATCH, 32, 32, 3))
    return TrainState.create(apply_fn=model.apply, params=params, tx=optimizer, batch_stats=stats)


def measures(logits, labels):
    loss = optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()
    return {"loss": loss, "accuracy": jnp.mean((jnp.argmax(logits, -1) == labels).astype(jnp.float32))}


def gradients(params, batch_stats, batch):
    """Of the mean loss, with the metrics and the new statistics."""

    def loss_fn(params):
        variables = {"params": params, "batch_stats": batch_stats}
        logits, updates = model.apply(variables, batch["image"], train=True, mutable=["batch_stats"])
        metrics = measures(logits, batch["label"])
        return metrics["loss"], (metrics, updates["batch_stats"])

    return jax.grad(loss_fn, has_aux=True)(params)


@jax.jit
def train_step(state, batch):
    grads, (metrics, batch_stats) = gradients(state.params, state.batch_stats, batch)
    return state.apply_gradients(grads=grads, batch_stats=batch_stats), metrics


@jax.jit
def eval_step(state, batch):
    logits = state.apply_fn({"params": state.params, "batch_stats": state.batch_stats}, batch["image"], train=False)
    return measures(logits, batch["label"])


digits = load_digits()
held_out = {"image": digits.table[digits.test_images], "label": digits.test_labels}


def get_batch(seed, epoch, step):
    batch = Batches(digits, seed, 1, BATCH, "crop").train(epoch, step)
    return {"image": np.asarray(batch["input"][0]), "label": np.asarray(batch["target"][0])}


# Above: the training as it was.  Below: what strikes it.


def training(seed: int = 123):
    from fault_injection import Measure, Training

    return Training(
        init=lambda: create_state(seed),
        step=train_step,
        batch=lambda epoch, step: get_batch(seed, epoch, step),
        steps_per_epoch=STEPS,
        epochs=EPOCHS,
        evaluate=lambda state: eval_step(state, held_out),
        metric=Measure("accuracy", "higher", chance=digits.chance, tolerance=0.02, limits=(0.0, 1.0)),
        roles={"opt_state/m/*": "history:m", "opt_state/v/*": "history:v"},
    )
