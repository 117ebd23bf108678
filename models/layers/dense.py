"""Dense layer; its three operations are sites, beyond the published artifact."""

import jax.numpy as jnp

from ..layer import Layer, merge
from ..operations import Dense, DenseGradIn, DenseGradWt, perform
from .initial import filled, glorot_normal


def dense(name: str, features: int) -> Layer:
    """`y = x @ kernel + bias` from [R,b,I] to [R,b,features].

    Parameters `kernel` [I,O], Glorot-normal, and `bias` [O], zero.  Sites: `name`,
    `name_grad_in`, `name_grad_wt`.
    """

    def init(key, shape):
        kernel = glorot_normal(key, name, (shape[-1], features))
        return {name: {"kernel": kernel, "bias": filled(0, features)}}, {}

    def forward(params, stats, x, ctx):
        y, observations = perform(Dense(), name, x, params[name]["kernel"], ctx)
        return y + params[name]["bias"], {}, x, observations

    def backward(params, cache, dy, ctx):
        x = cache  # [R,b,I]
        dx, at_in = perform(DenseGradIn(), f"{name}_grad_in", dy, params[name]["kernel"], ctx)
        dkernel, at_wt = perform(DenseGradWt(), f"{name}_grad_wt", x, dy, ctx)
        dparams = {"kernel": dkernel, "bias": jnp.sum(dy, axis=(0, 1))}
        return dx, {name: dparams}, merge([at_in, at_wt])

    return Layer(init, forward, backward)
