"""Batch normalisation, per worker, in the accelerator's arithmetic."""

import functools

import jax
import jax.numpy as jnp
from jax import lax

from ..arrays import Cache, Initial, Key, Params, Shape, Stats
from ..combinators import in_float32
from ..layer import BackwardResult, Context, ForwardResult, Layer, Observations, observed
from .initial import filled

EPSILON = 1e-3  # Keras
MOMENTUM = 0.9  # of the published set-ups but one
_AXES = (1, 2, 3)  # of [R,b,H,W,C]: batch statistics are each worker's own


def batch_norm(name: str, momentum: float = MOMENTUM) -> Layer:
    """Normalise each channel by its batch statistics in training, by the running ones in evaluation.

    Parameters `gamma`, `beta` [C].  Statistics `mean`, `var` [C] are averaged over the workers and
    run as `running −= (running − batch) · (1 − momentum)`; the running variance follows the
    unbiased batch variance.  So a running variance that overflows is infinite for one step and
    NaN after the next, as on XLA/TPU; `momentum · running + …` would leave it infinite.

    The forward variance is E[x²] − E[x]² in one pass, as on XLA/TPU: it is NaN once the
    mean's square overflows, which decides published outcomes.  The backward pass recomputes
    mean and variance in two passes (docs/science.md, Arithmetic).

    Args:
      momentum: in [0, 1), the share of the running statistics that a step keeps.

    Reference: Ioffe and Szegedy, ICML 2015; derivation in docs/backward.md.

    >>> norm, ctx = batch_norm("bn1"), Context(jax.random.key(0), jnp.arange(1))
    >>> params, stats = norm.init((0,), (1, 2, 1, 1, 1))
    >>> y, new_stats, _, _ = norm.forward(params, stats, jnp.array([1.0, 3.0]).reshape(1, 2, 1, 1, 1), ctx)
    >>> y.reshape(-1).round(2).tolist(), round(float(new_stats["bn1"]["mean"][0]), 2)
    ([-1.0, 1.0], 0.2)
    """

    def init(key: Key, shape: Shape) -> tuple[Initial, Initial]:
        one, zero = filled(1, shape[-1]), filled(0, shape[-1])
        return {name: {"gamma": one, "beta": zero}}, {name: {"mean": zero, "var": one}}

    def forward(params: Params, stats: Stats, x: jax.Array, ctx: Context) -> ForwardResult:
        p, running = params[name], stats[name]
        if not ctx.train:
            y = _normalise(x, running["mean"], running["var"], p["gamma"], p["beta"])
            return y, {}, None, Observations()
        y, new = _forward(x, p["gamma"], p["beta"], running, 1 - momentum)
        return y, {name: new}, x, Observations()

    def backward(params: Params, cache: Cache, dy: jax.Array, ctx: Context) -> BackwardResult:
        dx, dgamma, dbeta = _backward(cache, params[name]["gamma"], dy)
        return dx, {name: {"gamma": dgamma, "beta": dbeta}}, observed(ctx, "gradients", name, dx)

    return in_float32(Layer(init, forward, backward))


def _normalise(x: jax.Array, mean: jax.Array, var: jax.Array, gamma: jax.Array, beta: jax.Array) -> jax.Array:
    return (x - mean) * (lax.rsqrt(var + EPSILON) * gamma) + beta


@functools.partial(jax.jit, static_argnames="decay")
def _forward(
    x: jax.Array, gamma: jax.Array, beta: jax.Array, running: dict[str, jax.Array], decay: float
) -> tuple[jax.Array, dict[str, jax.Array]]:
    n = x.shape[1] * x.shape[2] * x.shape[3]
    mean = jnp.mean(x, _AXES, keepdims=True)  # [R,1,1,1,C]
    var = jnp.mean(x * x, _AXES, keepdims=True) - mean * mean
    y = _normalise(x, mean, var, gamma, beta)

    def updated(old: jax.Array, per_worker: jax.Array) -> jax.Array:
        new = jnp.mean(per_worker, axis=0).reshape(old.shape)
        return old - (old - new) * decay

    unbiased = var * (n / max(n - 1, 1))
    return y, {"mean": updated(running["mean"], mean), "var": updated(running["var"], unbiased)}


@jax.jit
def _backward(x: jax.Array, gamma: jax.Array, dy: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    n = x.shape[1] * x.shape[2] * x.shape[3]
    mean = jnp.mean(x, _AXES, keepdims=True)
    centred = x - mean
    var = jnp.mean(centred * centred, _AXES, keepdims=True)
    scale = lax.rsqrt(var + EPSILON)
    # With x̂ = centred·scale:  dγ = Σ dy·x̂,  dβ = Σ dy,
    # dx = γ·scale·(dy − dβ/n − x̂·dγ/n).  The sums are each worker's own.
    dbeta = jnp.sum(dy, _AXES, keepdims=True)
    dgamma = jnp.sum(dy * centred, _AXES, keepdims=True) * scale
    dx = (gamma * scale) * (dy - dbeta / n - centred * (scale * dgamma / n))
    return dx, jnp.sum(dgamma, (0, 1, 2, 3)), jnp.sum(dbeta, (0, 1, 2, 3))
