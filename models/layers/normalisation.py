"""Batch normalisation, per worker, in the accelerator's arithmetic."""

import jax
import jax.numpy as jnp
from jax import lax

from ..layer import Layer, Observations, observed
from .initial import filled

EPSILON = 1e-3  # Keras
MOMENTUM = 0.9
_AXES = (1, 2, 3)  # of [R,b,H,W,C]: batch statistics are each worker's own


def batch_norm(name: str) -> Layer:
    """Normalise each channel by its batch statistics in training, by the running ones in evaluation.

    Parameters `gamma`, `beta` [C]; statistics `mean`, `var` [C], running with momentum 0.9,
    averaged over the workers; the running variance takes the unbiased one.

    The forward variance is E[x²] − E[x]² in one pass, as on XLA/TPU: it is NaN once the
    mean's square overflows, which decides published outcomes.  The backward pass recomputes
    mean and variance in two passes (docs/science.md, Arithmetic).

    Reference: Ioffe and Szegedy, ICML 2015; derivation in docs/backward.md.
    """

    def init(key, shape):
        one, zero = filled(1, shape[-1]), filled(0, shape[-1])
        return {name: {"gamma": one, "beta": zero}}, {name: {"mean": zero, "var": one}}

    def forward(params, stats, x, ctx):
        p, running = params[name], stats[name]
        if not ctx.train:
            y = _normalise(x, running["mean"], running["var"], p["gamma"], p["beta"])
            return y, {}, None, Observations()
        y, new = _forward(x, p["gamma"], p["beta"], running)
        return y, {name: new}, x, Observations()

    def backward(params, cache, dy, ctx):
        dx, dgamma, dbeta = _backward(cache, params[name]["gamma"], dy)
        return dx, {name: {"gamma": dgamma, "beta": dbeta}}, observed(ctx, "gradients", name, dx)

    return Layer(init, forward, backward)


def _normalise(x, mean, var, gamma, beta):
    return (x - mean) * (lax.rsqrt(var + EPSILON) * gamma) + beta


@jax.jit
def _forward(x, gamma, beta, running):
    n = x.shape[1] * x.shape[2] * x.shape[3]
    mean = jnp.mean(x, _AXES, keepdims=True)  # [R,1,1,1,C]
    var = jnp.mean(x * x, _AXES, keepdims=True) - mean * mean
    y = _normalise(x, mean, var, gamma, beta)

    def updated(old, per_worker):
        new = jnp.mean(per_worker, axis=0).reshape(old.shape)
        return MOMENTUM * old + (1 - MOMENTUM) * new

    unbiased = var * (n / max(n - 1, 1))
    return y, {"mean": updated(running["mean"], mean), "var": updated(running["var"], unbiased)}


@jax.jit
def _backward(x, gamma, dy):
    n = x.shape[1] * x.shape[2] * x.shape[3]
    mean = jnp.mean(x, _AXES, keepdims=True)
    centred = x - mean
    var = jnp.mean(centred * centred, _AXES, keepdims=True)
    scale = lax.rsqrt(var + EPSILON)
    # With x̂ = centred·scale:  dγ = Σ dy·x̂,  dβ = Σ dy,
    # dx = γ·scale·(dy − dβ/n − x̂·dγ/n), the sums being each worker's own.
    dbeta = jnp.sum(dy, _AXES, keepdims=True)
    dgamma = jnp.sum(dy * centred, _AXES, keepdims=True) * scale
    dx = (gamma * scale) * (dy - dbeta / n - centred * (scale * dgamma / n))
    return dx, jnp.sum(dgamma, (0, 1, 2, 3)), jnp.sum(dbeta, (0, 1, 2, 3))
