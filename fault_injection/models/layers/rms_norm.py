"""Normalisation by the root mean square."""

import jax
import jax.numpy as jnp
from jax import lax

from ..arrays import Cache, Initial, Key, Params, Shape, Stats
from ..combinators import in_float32
from ..layer import BackwardResult, Context, ForwardResult, Layer, Observations, observed
from .initial import filled

EPSILON = 1e-5  # Llama


def rms_norm(name: str, epsilon: float = EPSILON) -> Layer:
    """`y = scale · x̂` with `x̂ = x · r` and `r = (mean(x²) + epsilon)^(−½)`, the mean over channels.

    Parameter `scale` [C], one at the start.  A row whose mean square overflows has r = 0, hence the
    output 0.  The backward pass reads x̂ and r, and so has no power of r that underflows and no
    multiple of x that overflows, as automatic differentiation has (docs/backward.md, RMS norm).

    Reference: Zhang and Sennrich, NeurIPS 2019.

    >>> norm, ctx = rms_norm("norm"), Context(jax.random.key(0), jnp.arange(1))
    >>> params, _ = norm.init((0,), (1, 1, 2))
    >>> norm.forward(params, {}, jnp.array([[[3.0, -3.0]]]), ctx)[0].round(3).tolist()
    [[[1.0, -1.0]]]
    """

    def init(key: Key, shape: Shape) -> tuple[Initial, Initial]:
        return {name: {"scale": filled(1, shape[-1])}}, {}

    def forward(params: Params, stats: Stats, x: jax.Array, ctx: Context) -> ForwardResult:
        r = lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + epsilon)  # [R,b,…,1]
        normalised = x * r
        return normalised * params[name]["scale"], {}, (normalised, r), Observations()

    def backward(params: Params, cache: Cache, dy: jax.Array, ctx: Context) -> BackwardResult:
        normalised, r = cache
        g = dy * params[name]["scale"]
        dx = r * (g - normalised * jnp.mean(g * normalised, -1, keepdims=True))
        dscale = jnp.sum(dy * normalised, axis=tuple(range(dy.ndim - 1)))
        return dx, {name: {"scale": dscale}}, observed(ctx, "gradients", name, dx)

    return in_float32(Layer(init, forward, backward))
