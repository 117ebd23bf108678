"""A network of which each worker has its own copy: what distributed data-parallel training computes."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp

from ..models.arrays import Cache, Params, Stats
from ..models.largest import largest_along
from ..models.layer import BackwardResult, Context, ForwardResult, Layer, Observations
from ..models.observe.reductions import is_sum


def own_copies(network: Layer) -> Layer:
    """The network with the workers as leading axis [R] of parameters, statistics and their gradients too.

    Worker r's part of the input passes through copy r; nothing is summed over workers.  `init`
    gives one copy, with which all begin.

    >>> from fault_injection.models.layers.dense import dense
    >>> network, ctx = own_copies(dense("fc", 1)), Context(jax.random.key(0), jnp.arange(2))
    >>> params = {"fc": {"kernel": jnp.array([[[1.0]], [[3.0]]]), "bias": jnp.zeros((2, 1))}}
    >>> network.forward(params, {}, jnp.ones((2, 1, 1)), ctx)[0].tolist()
    [[[1.0]], [[3.0]]]
    """

    def forward(params: Params, stats: Stats, x: jax.Array, ctx: Context) -> ForwardResult:
        each = [
            network.forward(_copy(params, r), _copy(stats, r), x[r : r + 1], alone(ctx, r))
            for r in range(len(ctx.workers))
        ]
        outputs, new_stats, caches, seen = zip(*each, strict=True)
        return jnp.concatenate(outputs), _stacked(new_stats), caches, of_all_workers(seen)

    def backward(params: Params, cache: Cache, dy: jax.Array, ctx: Context) -> BackwardResult:
        each = [
            network.backward(_copy(params, r), cache[r], dy[r : r + 1], alone(ctx, r)) for r in range(len(ctx.workers))
        ]
        dx, dparams, seen = zip(*each, strict=True)
        return jnp.concatenate(dx), _stacked(dparams), of_all_workers(seen)

    return Layer(network.init, forward, backward, network.takes)


def _copy(tree: Any, r: int) -> Any:
    return jax.tree.map(lambda leaf: leaf[r], tree)


def _stacked(trees: tuple[Any, ...]) -> Any:
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees)


def alone(ctx: Context, r: int) -> Context:
    """The context of the r-th of a device's workers."""
    return replace(ctx, workers=ctx.workers[r : r + 1])


def of_all_workers(each: Sequence[Observations]) -> Observations:
    """What one pass of all workers would have reported: here each site has run once per worker."""
    stacked = {name: jnp.stack([one.reduced[name] for one in each]) for name in each[0].reduced}
    return Observations(
        struck=jax.tree.map(lambda *parts: sum(parts[1:], parts[0]), *(one.struck for one in each)),
        tensors=jax.tree.map(lambda *parts: jnp.concatenate(parts), *(one.tensors for one in each)),
        sites=each[0].sites,
        maxima=jax.tree.map(lambda *parts: largest_along(jnp.stack(parts)), *(one.maxima for one in each)),
        reduced={name: parts.sum(0) if is_sum(name) else largest_along(parts) for name, parts in stacked.items()},
    )
