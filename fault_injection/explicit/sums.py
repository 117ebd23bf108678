"""What becomes of the workers' gradients and of their copies: sums over all, around a ring, and averages.

Everything here runs inside of a step, on the devices of one axis.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ..models.arrays import Params
from ..models.fault import AllStruck
from ..models.overwrite import bits, of_bits
from ..seam.strategies import Sum
from .exchange import Striker
from .passes import Passes


def exchanged(
    rule: Sum,
    here: Passes,
    striker: Striker,
    numbers: jax.Array,
    axis: str | None,
    devices: int,
    alone: Callable[[jax.Array], Params],
) -> tuple[jax.Array, jax.Array, Params, AllStruck | None]:
    """What a step has when the workers have exchanged their gradients by a rule of a strategy.

    Args:
      here: of this device's workers.  Their gradients are summed over them; or [W,…], of each, where they go around
        a ring or are not summed.
      striker: of gradients.
      numbers: int32 [R], of this device's workers.
      axis, alone: as `Striker.of_worker` takes them.
      devices: how many there are.

    Returns:
      Loss and metric of the global batch; the gradients summed over all workers, or of each of this device's; what a
      fault did before the sum.  All but the gradients of each are alike on all devices.
    """
    loss, metric, struck = here.loss, here.metric, here.seen.struck
    if rule is Sum.AT_ONCE:
        loss, metric, grads, struck = sum_over((loss, metric, here.grads, struck), axis)
        return loss, metric, striker.of_sum(striker.of_worker(grads, here.grads, numbers, axis, alone)), struck
    if rule is Sum.NONE:  # loss and metric are means over the workers
        workers = len(numbers) * devices
        loss, metric = loss / workers, metric / workers
    loss, metric, struck = sum_over((loss, metric, struck), axis)
    grads = striker.of_copies(here.grads, numbers, axis)
    return loss, metric, striker.of_sum(ring_sum(grads, axis, devices)) if rule is Sum.RING else grads, struck


def ring_sum(tree: Any, axis: str | None, devices: int) -> Any:
    """The sum of the workers' trees, piece by piece around a ring of all R workers, as a ring all-reduce adds it.

    The leaves of a tree are one vector, in their order, of R equal pieces (the last is filled up with
    zeros).  Piece c begins at worker c, goes on to worker c + 1, and so on; each adds its own:

    .. math::
      s_c = (((g_{c,c} + g_{c+1,c}) + g_{c+2,c}) + …) + g_{c+R-1,c}

    with g_{r,c} piece c of worker r, and r modulo R.  So the order of a sum depends on the piece that
    an element lies in, and on nothing else; not on how many devices share the workers.

    Args:
      tree: leaves [W,…] of one floating type, of this device's W workers.
      axis: of the devices.
      devices: how many there are.

    Returns:
      The tree of the sums, alike on all devices.

    Reference: Patarasuk and Yuan, JPDC 2009; Sergeev and Del Balso, Horovod, 2018, section 3.

    >>> import functools
    >>> from fault_injection.explicit.mesh import AXIS, SPLIT, WHOLE, mesh_of
    >>> ring = functools.partial(ring_sum, axis=AXIS, devices=1)
    >>> ring = jax.shard_map(ring, mesh=mesh_of(1), in_specs=SPLIT, out_specs=WHOLE, check_vma=False)
    >>> ring({"w": jnp.float32([[1e8, 1e8, 1e8], [1, 1, 1], [-1e8, -1e8, -1e8]])})["w"].tolist()
    [0.0, 0.0, 1.0]
    """
    leaves, structure = jax.tree.flatten(tree)
    here = len(leaves[0])
    flat = jnp.concatenate([leaf.reshape(here, -1) for leaf in leaves], 1)  # [W,n]
    workers, n = here * devices, flat.shape[1]
    size = -(-n // workers)
    pieces = jnp.pad(flat, ((0, 0), (0, workers * size - n))).reshape(here, workers, size)
    first = here * lax.axis_index(axis) if axis is not None and devices > 1 else 0
    numbers = first + jnp.arange(here, dtype=jnp.int32)
    onward = [(device, (device + 1) % devices) for device in range(devices)]

    def own(turn: Any) -> jax.Array:
        """Of each worker the piece that is with it at this turn, [W,size]."""
        return jnp.take_along_axis(pieces, ((numbers - turn) % workers)[:, None, None], 1)[:, 0]

    def passed_on(turn: jax.Array, partial: jax.Array) -> jax.Array:
        last = partial[-1:] if devices == 1 else lax.ppermute(partial[-1:], axis, onward)
        return jnp.concatenate([last, partial[:-1]]) + own(turn)

    complete = lax.fori_loop(1, workers, passed_on, own(0))  # worker r has piece r + 1
    every = complete if devices == 1 else lax.all_gather(complete, axis, tiled=True)
    summed = jnp.roll(every, 1, 0).reshape(-1)[:n]
    parts = jnp.split(summed, np.cumsum([leaf[0].size for leaf in leaves])[:-1])
    return jax.tree.unflatten(structure, [p.reshape(leaf.shape[1:]) for p, leaf in zip(parts, leaves, strict=True)])


def sum_over(tree: Any, axis: str | None) -> Any:
    """The sum over the devices; where there is no axis, each device has the total already."""
    return tree if axis is None else lax.psum(tree, axis)


def of_first(tree: Any, numbers: jax.Array, axis: str | None) -> Any:
    """The copies [W,…] with worker 0's in the place of each, bit for bit.

    Args:
      numbers: int32 [W], of this device's workers.
      axis: of the devices; None where this one has all workers.
    """

    def first(leaf: jax.Array) -> jax.Array:
        words = jnp.where(numbers[0] == 0, bits(leaf[0]), 0)  # as integers, so that zeros add nothing
        return jnp.broadcast_to(of_bits(sum_over(words, axis), leaf.dtype), leaf.shape)

    return jax.tree.map(first, tree)


def averaged(tree: Any, axis: str) -> Any:
    """The copies [W,…] with the mean over all workers in the place of each; integers stay as they are."""

    def mean(leaf: jax.Array) -> jax.Array:
        if not jnp.issubdtype(leaf.dtype, jnp.floating):
            return leaf
        return jnp.broadcast_to(lax.pmean(jnp.mean(leaf, 0), axis), leaf.shape)

    return jax.tree.map(mean, tree)
