"""Activations: rectified linear unit, sigmoid, swish."""

import jax
import jax.numpy as jnp

from ..arrays import Cache, Params, Stats
from ..combinators import in_float32
from ..layer import BackwardResult, Context, ForwardResult, Layer, Observations, stateless


def relu(scale: float = 1.0) -> Layer:
    """`scale · max(x, 0)`; a NaN passes.

    The gradient is a select on the output, so a NaN under a closed mask becomes 0.  The forward
    pass is a select too: XLA's maximum on CPUs may return 0 for a NaN.

    Args:
      scale: positive.

    >>> y, *_ = relu(2.0).forward({}, {}, jnp.array([[-1.0, 3.0]]), Context(jax.random.key(0), jnp.arange(1)))
    >>> y.tolist()
    [[0.0, 6.0]]
    """

    def forward(params: Params, stats: Stats, x: jax.Array, ctx: Context) -> ForwardResult:
        y = jnp.where(x <= 0, 0, x * scale)
        return y, {}, y, Observations()

    def backward(params: Params, cache: Cache, dy: jax.Array, ctx: Context) -> BackwardResult:
        y = cache
        return jnp.where(y > 0, dy * scale, 0), {}, Observations()

    return Layer(stateless, forward, backward)


def sigmoid() -> Layer:
    """`1 / (1 + exp(−x))`.

    >>> y, *_ = sigmoid().forward({}, {}, jnp.array([[0.0]]), Context(jax.random.key(0), jnp.arange(1)))
    >>> y.tolist()
    [[0.5]]
    """

    def forward(params: Params, stats: Stats, x: jax.Array, ctx: Context) -> ForwardResult:
        y = jax.nn.sigmoid(x)
        return y, {}, y, Observations()

    def backward(params: Params, cache: Cache, dy: jax.Array, ctx: Context) -> BackwardResult:
        y = cache
        return dy * (y * (1 - y)), {}, Observations()

    return in_float32(Layer(stateless, forward, backward))


def swish() -> Layer:
    """`x · sigmoid(x)`.

    Reference: Ramachandran, Zoph, Le, arXiv 1710.05941, with β = 1.

    >>> y, *_ = swish().forward({}, {}, jnp.array([[0.0, 50.0]]), Context(jax.random.key(0), jnp.arange(1)))
    >>> y.tolist()
    [[0.0, 50.0]]
    """

    def forward(params: Params, stats: Stats, x: jax.Array, ctx: Context) -> ForwardResult:
        return x * jax.nn.sigmoid(x), {}, x, Observations()

    def backward(params: Params, cache: Cache, dy: jax.Array, ctx: Context) -> BackwardResult:
        x = cache
        s = jax.nn.sigmoid(x)
        return dy * (s * (1 + x * (1 - s))), {}, Observations()

    return in_float32(Layer(stateless, forward, backward))
