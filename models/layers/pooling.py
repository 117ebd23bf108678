"""Global average pooling."""

import jax.numpy as jnp

from ..layer import Layer, Observations, observed, stateless


def global_average(name: str) -> Layer:
    """Mean over the map: [R,b,H,W,C] -> [R,b,C].  `name` labels its input gradient where observed."""

    def forward(params, stats, x, ctx):
        return jnp.mean(x, axis=(2, 3)), {}, x.shape, Observations()

    def backward(params, cache, dy, ctx):
        _, _, height, width, _ = cache
        dx = jnp.broadcast_to(dy[:, :, None, None, :] / (height * width), cache)
        return dx, {}, observed(ctx, "gradients", name, dx)

    return Layer(stateless, forward, backward)
