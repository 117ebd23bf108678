"""A learnt scalar factor."""

import jax.numpy as jnp
import numpy as np

from ..layer import Layer, Observations


def skip_gain(name: str) -> Layer:
    """`y = x · gain`, with one scalar parameter `skip_gain`, 0 at the start: a block begins as its shortcut.

    Reference: De and Smith, NeurIPS 2020 (SkipInit); Brock, De, Smith, ICLR 2021.
    """

    def init(key, shape):
        return {name: {"skip_gain": np.zeros((), np.float32)}}, {}

    def forward(params, stats, x, ctx):
        return x * params[name]["skip_gain"], {}, x, Observations()

    def backward(params, cache, dy, ctx):
        x = cache
        return dy * params[name]["skip_gain"], {name: {"skip_gain": jnp.sum(dy * x)}}, Observations()

    return Layer(init, forward, backward)
