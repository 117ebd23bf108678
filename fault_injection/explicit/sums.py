"""What becomes of the workers' gradients and of their copies: sums over all, around a ring, and averages.

Everything here runs inside of a step, on the devices of one axis.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ..models.layer import Params
from ..seam.strategies import Sum
from .exchange import Striker
from .passes import Passes


class Exchanged(NamedTuple):
    """What a step has after the workers' gradients were exchanged, alike on all devices but for `grads`.

    Attributes:
      loss, metric: of the global batch.
      grads: summed over all workers; or of each worker of this device, [W,…].
      struck: what a fault did before the sum.
    """

    loss: jax.Array
    metric: jax.Array
    grads: Params
    struck: Any


# Of the passes of this device's workers, who strikes gradients, their numbers, the axis of the devices, how many there
# are, and the gradients of some of this device's workers alone.
Exchange = Callable[[Passes, Striker, jax.Array, str | None, int, Callable[[jax.Array], Params]], Exchanged]


def at_once(
    here: Passes,
    striker: Striker,
    numbers: jax.Array,
    axis: str | None,
    devices: int,
    alone: Callable[[jax.Array], Params],
) -> Exchanged:
    """The sum over this device's workers, then over the devices in the order of their collective."""
    loss, metric, grads, struck = total((here.loss, here.metric, here.grads, here.seen.struck), axis)
    return Exchanged(loss, metric, striker.of_sum(striker.of_worker(grads, here.grads, numbers, axis, alone)), struck)


def around_a_ring(
    here: Passes,
    striker: Striker,
    numbers: jax.Array,
    axis: str | None,
    devices: int,
    alone: Callable[[jax.Array], Params],
) -> Exchanged:
    """The sum in the order of a ring all-reduce, of each worker's own gradients [W,…]."""
    loss, metric, struck = total((here.loss, here.metric, here.seen.struck), axis)
    grads = ring_sum(striker.of_copies(here.grads, numbers, axis), axis, devices)
    return Exchanged(loss, metric, striker.of_sum(grads), struck)


def each_its_own(
    here: Passes,
    striker: Striker,
    numbers: jax.Array,
    axis: str | None,
    devices: int,
    alone: Callable[[jax.Array], Params],
) -> Exchanged:
    """No sum: the gradients of each worker's own batch; loss and metric are means over the workers."""
    workers = len(numbers) * devices
    loss, metric, struck = total((here.loss / workers, here.metric / workers, here.seen.struck), axis)
    return Exchanged(loss, metric, striker.of_copies(here.grads, numbers, axis), struck)


EXCHANGES: dict[Sum, Exchange] = {Sum.AT_ONCE: at_once, Sum.RING: around_a_ring, Sum.NONE: each_its_own}


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


def total(tree: Any, axis: str | None) -> Any:
    """The sum over the devices; where there is no axis, each device has the total already."""
    return tree if axis is None else lax.psum(tree, axis)


def averaged(tree: Any, axis: str) -> Any:
    """The copies [W,…] with the mean over all workers in the place of each; integers stay as they are."""

    def mean(leaf: jax.Array) -> jax.Array:
        if not jnp.issubdtype(leaf.dtype, jnp.floating):
            return leaf
        return jnp.broadcast_to(lax.pmean(jnp.mean(leaf, 0), axis), leaf.shape)

    return jax.tree.map(mean, tree)


def largest(magnitudes: jax.Array, axis: str) -> jax.Array:
    """The largest over the devices of absolute values, by their bits, so that no NaN is lost."""
    words = lax.pmax(lax.bitcast_convert_type(magnitudes, jnp.uint32), axis)
    return lax.bitcast_convert_type(words, jnp.float32)
