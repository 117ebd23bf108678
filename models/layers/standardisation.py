"""Convolution by a standardised kernel: what a network without normalisation of activations normalises instead."""

import jax
import jax.numpy as jnp
from jax import lax

from ..layer import Layer
from .convolution import convolution
from .initial import fan_in_normal, filled

LEAST = 1e-4  # of var·fan_in
_AXES = (0, 1, 2)  # of [k,k,I,O]: each output channel has statistics of its own


def standardised_convolution(
    name: str, features: int, size: int, stride: int = 1, *, input_gradient: bool = True
) -> Layer:
    """As `convolution`, by `(kernel − mean) · gain / √max(var · fan_in, 1e-4)`, per output channel.

    Parameters `kernel` [k,k,I,O], fan-in-scaled, `gain` [O], one, and `bias` [O], zero.  Sites:
    `name`, `name_grad_in`, `name_grad_wt`, whose operands are the standardised kernel and its
    gradient.

    Reference: Brock, De, Smith, Simonyan, ICML 2021, section 2; derivation in docs/backward.md.
    """
    inner = convolution(name, features, size, stride, input_gradient=input_gradient)

    def with_kernel(params, kernel):
        return {name: {"kernel": kernel, "bias": params[name]["bias"]}}

    def init(key, shape):
        kernel = fan_in_normal(key, name, (size, size, shape[-1], features))
        return {name: {"gain": filled(1, features), "kernel": kernel, "bias": filled(0, features)}}, {}

    def forward(params, stats, x, ctx):
        kernel = _standardise(params[name]["kernel"], params[name]["gain"])
        y, _, cache, observations = inner.forward(with_kernel(params, kernel), stats, x, ctx)
        return y, {}, (cache, kernel), observations

    def backward(params, cache, dy, ctx):
        cache, kernel = cache
        dx, d, observations = inner.backward(with_kernel(params, kernel), cache, dy, ctx)
        dw, dgain = _backward(params[name]["kernel"], params[name]["gain"], d[name]["kernel"])
        return dx, {name: {"gain": dgain, "kernel": dw, "bias": d[name]["bias"]}}, observations

    return Layer(init, forward, backward)


def _statistics(w):
    """Deviations from the mean, 1/√max(n·var, LEAST), and whether n·var is the larger; n is the fan-in."""
    centred = w - jnp.mean(w, _AXES)
    squares = jnp.sum(centred * centred, _AXES)  # n·var, var being the biased variance
    return centred, lax.rsqrt(jnp.maximum(squares, LEAST)), squares > LEAST


@jax.jit
def _standardise(w, gain):
    centred, scale, _ = _statistics(w)
    return centred * (scale * gain)


@jax.jit
def _backward(w, gain, dy):
    # y = gain·scale·centred.  Where the scale depends on w, dw loses its part along centred;
    # subtracting the mean in the forward pass does so in the backward pass.
    centred, scale, free = _statistics(w)
    along = jnp.sum(dy * centred, _AXES)
    dcentred = (gain * scale) * (dy - jnp.where(free, along * scale * scale, 0) * centred)
    return dcentred - jnp.mean(dcentred, _AXES), along * scale
