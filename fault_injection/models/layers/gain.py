"""A learnt scalar factor."""

import jax
import jax.numpy as jnp
import numpy as np

from ..arrays import Cache, Initial, Key, Params, Shape, Stats
from ..combinators import in_float32
from ..layer import BackwardResult, Context, ForwardResult, Layer, Observations


def skip_gain(name: str) -> Layer:
    """`y = x · gain`, with one scalar parameter `skip_gain`, 0 at the start: a block begins as its shortcut.

    Reference: De and Smith, NeurIPS 2020 (SkipInit); Brock, De, Smith, ICLR 2021.

    >>> skip_gain("block0").init((0,), (1, 8, 4, 4, 16))
    ({'block0': {'skip_gain': array(0., dtype=float32)}}, {})
    """

    def init(key: Key, shape: Shape) -> tuple[Initial, Initial]:
        return {name: {"skip_gain": np.zeros((), np.float32)}}, {}

    def forward(params: Params, stats: Stats, x: jax.Array, ctx: Context) -> ForwardResult:
        return x * params[name]["skip_gain"], {}, x, Observations()

    def backward(params: Params, cache: Cache, dy: jax.Array, ctx: Context) -> BackwardResult:
        x = cache
        return dy * params[name]["skip_gain"], {name: {"skip_gain": jnp.sum(dy * x)}}, Observations()

    return in_float32(Layer(init, forward, backward))
