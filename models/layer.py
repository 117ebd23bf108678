"""The values that everything in `models` passes around: a layer, its context, its observations."""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import struct

from .fault import Fault, Struck

Params = dict[str, dict[str, jax.Array]]
Stats = dict[str, dict[str, jax.Array]]


@struct.dataclass
class Context:
    """What a pass through a network depends on besides parameters and data.

    Attributes:
      key: the random key of (seed, epoch, step); a random layer derives its own from it by name.
      workers: int32 [R], global numbers of the workers on this device, the leading axis of
        every activation.
      fault: the fault of this step; None compiles without any conditional.
      train: training (batch statistics, dropout) or evaluation.
      observe: kinds of tensors to return besides the results: `operands` (of every site, in
        the published layouts), `gradients` (with respect to the inputs of norms and of the head).
    """

    key: jax.Array
    workers: jax.Array
    fault: Fault | None = None
    supported: frozenset[str] | None = struct.field(pytree_node=False, default=None)
    input_gradient: bool = struct.field(pytree_node=False, default=True)
    train: bool = struct.field(pytree_node=False, default=True)
    observe: frozenset[str] = struct.field(pytree_node=False, default=frozenset())


@struct.dataclass
class Observations:
    """What a pass reports besides its results.

    Attributes:
      struck: what the fault did; None where there is no fault.
      tensors: requested tensors, `{kind: {name: …}}`.
    """

    struck: Struck | None = None
    tensors: dict[str, dict[str, Any]] = struct.field(default_factory=dict)


def merge(observations: Iterable[Observations]) -> Observations:
    """Observations of several layers as one: at most one was struck, so adding loses nothing."""
    struck = None
    tensors: dict[str, dict[str, Any]] = {}
    for one in observations:
        if one.struck is not None:
            struck = one.struck if struck is None else jax.tree.map(jnp.add, struck, one.struck)
        for kind, named in one.tensors.items():
            tensors.setdefault(kind, {}).update(named)
    return Observations(struck, tensors)


def observed(ctx: Context, kind: str, name: str, tensor: jax.Array) -> Observations:
    """`tensor` as an observation, where its kind was asked for."""
    return Observations(tensors={kind: {name: tensor}} if kind in ctx.observe else {})


class Layer(NamedTuple):
    """A layer, or a whole network: three pure functions.

    `params` and `stats` are the two-level dicts of the entire network, from which a layer
    reads its own by name.  Activations have the workers of the device as leading axis,
    `[R, b, …]`.

    Attributes:
      init: `(key, shape) -> params, stats` of this layer, NumPy arrays, for activations of
        `shape` `[R, b, …]`; `key` is a tuple of integers, to which a layer
        adds its name, or None for shapes alone.
      forward: `(params, stats, x, ctx) -> y, stats, cache, observations`; the statistics
        returned are this layer's, new ones in training.
      backward: `(params, cache, dy, ctx) -> dx, dparams, observations`; `dparams` are summed
        over the device's workers.
    """

    init: Callable[[tuple[int, ...] | None, tuple[int, ...]], tuple[Params, Stats]]
    forward: Callable[[Params, Stats, jax.Array, Context], tuple[jax.Array, Stats, Any, Observations]]
    backward: Callable[[Params, Any, jax.Array, Context], tuple[jax.Array, Params, Observations]]


def stateless(key, shape):
    """The `init` of a layer that has neither parameters nor statistics."""
    del key, shape
    return {}, {}
