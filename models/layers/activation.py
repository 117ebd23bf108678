"""Rectified linear unit."""

import jax.numpy as jnp

from ..layer import Layer, Observations, stateless


def relu() -> Layer:
    """`max(x, 0)`; a NaN passes.  The gradient is a select on the output, so a NaN under a closed mask becomes 0.

    The forward pass is a select too: XLA's maximum on CPUs may return 0 for a NaN.
    """

    def forward(params, stats, x, ctx):
        y = jnp.where(x <= 0, 0, x)
        return y, {}, y, Observations()

    def backward(params, cache, dy, ctx):
        y = cache
        return jnp.where(y > 0, dy, 0), {}, Observations()

    return Layer(stateless, forward, backward)
