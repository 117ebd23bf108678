"""A training in the style of Equinox, without Equinox: the model is a module, a dataclass that is a pytree.

A module has static fields (sizes) and leaves that are no arrays (activation functions).  The step takes it apart into
arrays and the rest, differentiates the arrays, and puts it together again.
"""

import dataclasses
import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import optax
from momentum_training import EPOCHS, STEPS, examples

from fault_injection import Measure, Training

optimizer = optax.adam(2e-2)


@functools.partial(
    jax.tree_util.register_dataclass, data_fields=["weight", "bias", "activation"], meta_fields=["width"]
)
@dataclasses.dataclass(frozen=True)
class Dense:
    weight: jax.Array  # [outputs, inputs]
    bias: jax.Array
    activation: Callable[[jax.Array], jax.Array]
    width: int

    def __call__(self, x):
        assert x.shape == (self.width,)  # of one example, as in Equinox
        return self.activation(self.weight @ x + self.bias)


@functools.partial(jax.tree_util.register_dataclass, data_fields=["layers"], meta_fields=[])
@dataclasses.dataclass(frozen=True)
class Model:
    layers: tuple[Dense, ...]

    def __call__(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


def identity(x):
    return x


def create():
    keys = jax.random.split(jax.random.key(0))
    shapes, functions = ((8, 4), (2, 8)), (jnp.tanh, identity)
    model = Model(
        tuple(
            Dense(jax.random.normal(key, shape) / 2, jnp.zeros(shape[0]), function, shape[1])
            for key, shape, function in zip(keys, shapes, functions, strict=True)
        )
    )
    return model, optimizer.init(partitioned(model)[0])


def partitioned(tree):
    """The tree's arrays, and all that is none; None stands where the other has a leaf."""
    is_array = jax.tree.map(lambda leaf: isinstance(leaf, (jax.Array, np.ndarray)), tree)
    return tuple(
        jax.tree.map(lambda leaf, array, wanted=wanted: leaf if array is wanted else None, tree, is_array)
        for wanted in (True, False)
    )


def combined(arrays, rest):
    return jax.tree.map(lambda a, b: b if a is None else a, arrays, rest, is_leaf=lambda leaf: leaf is None)


def measures(model, batch):
    x, label = batch
    logits = jax.vmap(model)(x)
    loss = optax.softmax_cross_entropy_with_integer_labels(logits, label).mean()
    return loss, {"loss": loss, "accuracy": jnp.mean((jnp.argmax(logits, -1) == label).astype(jnp.float32))}


def step(state, batch):
    model, opt = state
    arrays, rest = partitioned(model)
    (_, metrics), grads = jax.value_and_grad(lambda a: measures(combined(a, rest), batch), has_aux=True)(arrays)
    updates, opt = optimizer.update(grads, opt, arrays)
    return (combined(optax.apply_updates(arrays, updates), rest), opt), metrics


def training():
    return Training(
        init=create,
        step=step,
        batch=lambda epoch, number: examples(epoch, number),
        steps_per_epoch=STEPS,
        epochs=EPOCHS,
        evaluate=lambda state: measures(state[0], examples(2**31))[1],
        metric=Measure("accuracy", "higher", chance=0.5, tolerance=0.05, limits=(0.0, 1.0)),
    )
