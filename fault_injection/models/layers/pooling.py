"""Global average pooling."""

import jax
import jax.numpy as jnp

from ..arrays import Cache, Params, Stats
from ..combinators import in_float32
from ..layer import BackwardResult, Context, ForwardResult, Layer, Observations, observed, stateless


def global_average(name: str, *, keep_map: bool = False) -> Layer:
    """Mean over the map: [R,b,H,W,C] -> [R,b,C].

    Args:
      name: under which its input gradient is observed.  It has no parameters.
      keep_map: leave a map of one position, [R,b,1,1,C].

    >>> x, ctx = jnp.arange(4.0).reshape(1, 1, 2, 2, 1), Context(jax.random.key(0), jnp.arange(1))
    >>> global_average("pool").forward({}, {}, x, ctx)[0].tolist()
    [[[1.5]]]
    """

    def forward(params: Params, stats: Stats, x: jax.Array, ctx: Context) -> ForwardResult:
        return jnp.mean(x, axis=(2, 3), keepdims=keep_map), {}, x.shape, Observations()

    def backward(params: Params, cache: Cache, dy: jax.Array, ctx: Context) -> BackwardResult:
        workers, examples, height, width, channels = cache
        dx = jnp.broadcast_to(dy.reshape(workers, examples, 1, 1, channels) / (height * width), cache)
        return dx, {}, observed(ctx, "gradients", name, dx)

    return in_float32(Layer(stateless, forward, backward))
