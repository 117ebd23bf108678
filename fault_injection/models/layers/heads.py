"""Heads of an attention: channels divided into heads, and heads that serve a group of others."""

import jax
import jax.numpy as jnp

from ..arrays import Cache, Params, Stats
from ..layer import BackwardResult, Context, ForwardResult, Layer, Observations, stateless


def split_heads(heads: int) -> Layer:
    """[R,b,T,heads·D] -> [R,b,heads,T,D].

    >>> ctx = Context(jax.random.key(0), jnp.arange(1))
    >>> split_heads(4).forward({}, {}, jnp.ones((1, 2, 3, 20)), ctx)[0].shape
    (1, 2, 4, 3, 5)
    """

    def forward(params: Params, stats: Stats, x: jax.Array, ctx: Context) -> ForwardResult:
        return x.reshape(*x.shape[:-1], heads, -1).swapaxes(2, 3), {}, None, Observations()

    def backward(params: Params, cache: Cache, dy: jax.Array, ctx: Context) -> BackwardResult:
        return joined_heads(dy), {}, Observations()

    return Layer(stateless, forward, backward)


def joined_heads(x: jax.Array) -> jax.Array:
    """[R,b,H,T,D] -> [R,b,T,H·D].

    >>> joined_heads(jnp.ones((1, 2, 4, 3, 5))).shape
    (1, 2, 3, 20)
    """
    x = x.swapaxes(2, 3)
    return x.reshape(*x.shape[:3], -1)


def repeated_heads(times: int) -> Layer:
    """[R,b,K,T,D] -> [R,b,K·times,T,D]: head h becomes the heads h·times … (h+1)·times − 1.

    Reference: Ainslie et al., EMNLP 2023 (grouped queries).

    >>> x, ctx = jnp.arange(2.0).reshape(1, 1, 2, 1, 1), Context(jax.random.key(0), jnp.arange(1))
    >>> repeated_heads(2).forward({}, {}, x, ctx)[0].reshape(-1).tolist()
    [0.0, 0.0, 1.0, 1.0]
    """

    def forward(params: Params, stats: Stats, x: jax.Array, ctx: Context) -> ForwardResult:
        return jnp.repeat(x, times, axis=2), {}, None, Observations()

    def backward(params: Params, cache: Cache, dy: jax.Array, ctx: Context) -> BackwardResult:
        return dy.reshape(*dy.shape[:2], -1, times, *dy.shape[3:]).sum(3), {}, Observations()

    return Layer(stateless, forward, backward)
