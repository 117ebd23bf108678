"""Dropout with a mask that depends on (seed, epoch, step, worker, layer) and on nothing else."""

import zlib

import jax
import jax.numpy as jnp

from ..arrays import Cache, Params, Shape, Stats
from ..layer import BackwardResult, Context, ForwardResult, Layer, Observations, stateless


def dropout(name: str, rate: float) -> Layer:
    """Zero each activation with probability `rate` in training and scale the others by 1/(1 − rate).

    The mask does not depend on activations, so a faulty and a golden run differ by the fault alone.
    (In the published artifact, a NaN closes the mask.)  The rate is exact to 2⁻¹⁶.

    Args:
      name: of the layer; its random key derives from it.  It has no parameters.
      rate: in [0, 1).

    Reference: Srivastava et al., JMLR 2014.

    >>> ctx = Context(jax.random.key(0), jnp.arange(1))
    >>> y, *_ = dropout("dropout1", 0.5).forward({}, {}, jnp.ones((1, 64)), ctx)
    >>> sorted(set(y.reshape(-1).tolist()))
    [0.0, 2.0]
    """
    keep = 1.0 - rate
    threshold = round(rate * 2**16)  # 16 random bits per element cost half of 32

    def mask(ctx: Context, shape: Shape) -> jax.Array:
        layer_key = jax.random.fold_in(ctx.key, zlib.crc32(name.encode()) & 0x7FFFFFFF)

        def of_worker(worker: jax.Array) -> jax.Array:
            return jax.random.bits(jax.random.fold_in(layer_key, worker), shape[1:], "uint16")

        return jax.vmap(of_worker)(ctx.workers) >= threshold  # [R,b,…]

    def forward(params: Params, stats: Stats, x: jax.Array, ctx: Context) -> ForwardResult:
        if not ctx.train or rate == 0:
            return x, {}, None, Observations()
        kept = mask(ctx, x.shape)
        return jnp.where(kept, x / keep, 0), {}, kept, Observations()

    def backward(params: Params, cache: Cache, dy: jax.Array, ctx: Context) -> BackwardResult:
        if rate == 0:
            return dy, {}, Observations()
        return jnp.where(cache, dy / keep, 0), {}, Observations()

    return Layer(stateless, forward, backward)
