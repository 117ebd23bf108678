"""Global average pooling."""

import jax.numpy as jnp

from ..layer import Layer, Observations, observed, stateless


def global_average(name: str, *, keep_map: bool = False) -> Layer:
    """Mean over the map: [R,b,H,W,C] -> [R,b,C].  `name` labels its input gradient where observed.

    Args:
      keep_map: leave a map of one position, [R,b,1,1,C].
    """

    def forward(params, stats, x, ctx):
        return jnp.mean(x, axis=(2, 3), keepdims=keep_map), {}, x.shape, Observations()

    def backward(params, cache, dy, ctx):
        workers, examples, height, width, channels = cache
        dx = jnp.broadcast_to(dy.reshape(workers, examples, 1, 1, channels) / (height * width), cache)
        return dx, {}, observed(ctx, "gradients", name, dx)

    return Layer(stateless, forward, backward)
