"""Activations: rectified linear unit, sigmoid, swish."""

import jax
import jax.numpy as jnp

from ..layer import Layer, Observations, stateless


def relu(scale: float = 1.0) -> Layer:
    """`scale · max(x, 0)`; a NaN passes.

    The gradient is a select on the output, so a NaN under a closed mask becomes 0.  The forward
    pass is a select too: XLA's maximum on CPUs may return 0 for a NaN.

    Args:
      scale: positive.
    """

    def forward(params, stats, x, ctx):
        y = jnp.where(x <= 0, 0, x * scale)
        return y, {}, y, Observations()

    def backward(params, cache, dy, ctx):
        y = cache
        return jnp.where(y > 0, dy * scale, 0), {}, Observations()

    return Layer(stateless, forward, backward)


def sigmoid() -> Layer:
    """`1 / (1 + exp(−x))`."""

    def forward(params, stats, x, ctx):
        y = jax.nn.sigmoid(x)
        return y, {}, y, Observations()

    def backward(params, cache, dy, ctx):
        y = cache
        return dy * (y * (1 - y)), {}, Observations()

    return Layer(stateless, forward, backward)


def swish() -> Layer:
    """`x · sigmoid(x)`.

    Reference: Ramachandran, Zoph, Le, arXiv 1710.05941, with β = 1.
    """

    def forward(params, stats, x, ctx):
        return x * jax.nn.sigmoid(x), {}, x, Observations()

    def backward(params, cache, dy, ctx):
        x = cache
        s = jax.nn.sigmoid(x)
        return dy * (s * (1 + x * (1 - s))), {}, Observations()

    return Layer(stateless, forward, backward)
