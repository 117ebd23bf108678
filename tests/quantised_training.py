"""A training whose forward products are of int8, and whose gradients of weights are products of float8."""

import jax
import jax.numpy as jnp
import numpy as np

from fault_injection import Measure, Training


def as_integers(x):
    """int8, and the scale of each step."""
    scale = jnp.max(jnp.abs(x)) / 127
    return jnp.round(x / scale).astype(jnp.int8), scale


def as_float8(x):
    largest = jnp.max(jnp.abs(x))
    return (x / largest * 448).astype(jnp.float8_e4m3fn), largest / 448


def product(a, b, out):
    return jax.lax.dot_general(a, b, (((1,), (0,)), ((), ())), preferred_element_type=out)


def untouched(tensor):
    return tensor


def loss_with(strike_integers, strike_float8):
    """The loss whose first layer has operands with something done to them, by hand."""

    def layer(mine, other):
        @jax.custom_vjp
        def multiplied(x, w):
            (a, scale), (b, other_scale) = as_integers(x), as_integers(w)
            return product(mine(a), b, jnp.int32).astype(jnp.float32) * scale * other_scale

        def forward(x, w):
            return multiplied(x, w), (x, w)

        def backward(kept, gradient):
            x, w = kept
            (a, scale), (b, other_scale) = as_float8(x.T), as_float8(gradient)
            of_weight = product(other(a), b, jnp.float32) * scale * other_scale
            return gradient @ w.T, of_weight

        multiplied.defvjp(forward, backward)
        return multiplied

    first, second = layer(strike_integers, strike_float8), layer(untouched, untouched)

    def loss(params, batch):
        hidden = jnp.tanh(first(batch["x"], params["w1"]))
        return jnp.mean((second(hidden, params["w2"]) - batch["y"]) ** 2)

    return loss


def step_with(strike_integers=untouched, strike_float8=untouched):
    loss = loss_with(strike_integers, strike_float8)

    @jax.jit
    def step(params, batch):
        value, gradients = jax.value_and_grad(loss)(params, batch)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients), {"loss": value}

    return step


def make_batch(epoch, step):
    x = np.random.default_rng([epoch, step]).normal(size=(32, 8)).astype(np.float32)
    return {"x": x, "y": np.tanh(x[:, :1] - x[:, 1:2])}


def make_state(seed):
    rng = np.random.default_rng(seed)
    sizes = {"w1": (8, 16), "w2": (16, 1)}
    return {name: 0.3 * rng.normal(size=shape).astype(np.float32) for name, shape in sizes.items()}


def training(seed: int = 0) -> Training:
    loss, held = loss_with(untouched, untouched), make_batch(99, 0)
    return Training(
        init=lambda: make_state(seed),
        step=step_with(),
        batch=make_batch,
        steps_per_epoch=5,
        epochs=3,
        evaluate=lambda params: {"loss": loss(params, held)},
        metric=Measure("loss", "lower", chance=1.0, tolerance=0.01),
    )
