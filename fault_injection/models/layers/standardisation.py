"""Convolution with a standardised kernel: it normalises weights where other networks normalise activations."""

import jax
import jax.numpy as jnp
from jax import lax

from ..arrays import Cache, Initial, Key, Params, Shape, Stats
from ..layer import BackwardResult, Context, ForwardResult, Layer
from .convolution import convolution
from .initial import fan_in_normal, filled

LEAST = 1e-4  # of var·fan_in
_AXES = (0, 1, 2)  # of [k,k,I,O]: each output channel has statistics of its own


def standardised_convolution(name: str, features: int, size: int, stride: int = 1) -> Layer:
    """As `convolution`, with the kernel `(kernel − mean) · gain / √max(var · fan_in, 1e-4)`, per output channel.

    Parameters `kernel` [k,k,I,O], fan-in-scaled, `gain` [O], one, and `bias` [O], zero.  Sites:
    `name`, `name_grad_in`, `name_grad_wt`; their operands are the standardised kernel and its
    gradient.

    Reference: Brock, De, Smith, Simonyan, ICML 2021, section 2; derivation in docs/backward.md.

    >>> params, _ = standardised_convolution("conv0", 16, 3).init((0,), (1, 8, 32, 32, 4))
    >>> {name: leaf.shape for name, leaf in params["conv0"].items()}
    {'gain': (16,), 'kernel': (3, 3, 4, 16), 'bias': (16,)}
    """
    inner = convolution(name, features, size, stride)

    def with_kernel(params: Params, kernel: jax.Array) -> Params:
        return {name: {"kernel": kernel, "bias": params[name]["bias"]}}

    def init(key: Key, shape: Shape) -> tuple[Initial, Initial]:
        kernel = fan_in_normal(key, name, (size, size, shape[-1], features))
        return {name: {"gain": filled(1, features), "kernel": kernel, "bias": filled(0, features)}}, {}

    def forward(params: Params, stats: Stats, x: jax.Array, ctx: Context) -> ForwardResult:
        kernel = _standardise(params[name]["kernel"], params[name]["gain"])
        y, _, cache, observations = inner.forward(with_kernel(params, kernel), stats, x, ctx)
        return y, {}, (cache, kernel), observations

    def backward(params: Params, cache: Cache, dy: jax.Array, ctx: Context) -> BackwardResult:
        cache, kernel = cache
        dx, d, observations = inner.backward(with_kernel(params, kernel), cache, dy, ctx)
        dw, dgain = _backward(params[name]["kernel"], params[name]["gain"], d[name]["kernel"])
        return dx, {name: {"gain": dgain, "kernel": dw, "bias": d[name]["bias"]}}, observations

    return Layer(init, forward, backward)


def _statistics(w: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Deviations from the mean, 1/√max(n·var, LEAST), and whether n·var is the larger; n is the fan-in."""
    centred = w - jnp.mean(w, _AXES)
    squares = jnp.sum(centred * centred, _AXES)  # n·var, var being the biased variance
    return centred, lax.rsqrt(jnp.maximum(squares, LEAST)), squares > LEAST


@jax.jit
def _standardise(w: jax.Array, gain: jax.Array) -> jax.Array:
    centred, scale, _ = _statistics(w)
    return centred * (scale * gain)


@jax.jit
def _backward(w: jax.Array, gain: jax.Array, dy: jax.Array) -> tuple[jax.Array, jax.Array]:
    # y = gain·scale·centred.  If the scale depends on w, dw loses its part along centred.
    # The forward pass subtracts the mean from w, so the backward pass subtracts the mean from dw.
    centred, scale, free = _statistics(w)
    along = jnp.sum(dy * centred, _AXES)
    dcentred = (gain * scale) * (dy - jnp.where(free, along * scale * scale, 0) * centred)
    return dcentred - jnp.mean(dcentred, _AXES), along * scale
