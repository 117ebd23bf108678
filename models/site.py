"""The sites of a network, found by tracing it: nothing is computed."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from .fault import Operand, site_id
from .layer import Context, Layer


@dataclasses.dataclass(frozen=True)
class Site:
    """One operation that can be struck.

    Attributes:
      name: as in an injection file.
      layer: the layer it belongs to.
      stage: `forward` or `backward`.
      operands: shapes and dtypes of its three operands for one worker.
    """

    name: str
    layer: str
    stage: str
    operands: dict[Operand, jax.ShapeDtypeStruct]

    @property
    def shapes(self) -> dict[Operand, tuple[int, ...]]:
        return {operand: tensor.shape for operand, tensor in self.operands.items()}


def list_sites(network: Layer, example: jax.ShapeDtypeStruct) -> dict[str, Site]:
    """All sites of `network` by name, in the order in which a step runs them.

    Args:
      worker_batch: examples of one worker, the b of the operands' shapes.
      input_shape: of one example.

    Raises:
      ValueError: two sites whose names have the same hash.
    """
    shape = (1, *example.shape)
    params, stats = network.init(None, shape)

    def passes(params, stats, x):
        ctx = Context(key=jax.random.key(0), workers=jnp.arange(1), observe=frozenset({"operands"}))
        y, _, cache, forward = network.forward(params, stats, x, ctx)
        _, _, backward = network.backward(params, cache, y, ctx)
        # Lists keep the order, which tracing would lose in a dict.
        order.extend([("forward", name) for name in forward.tensors["operands"]])
        order.extend([("backward", name) for name in backward.tensors["operands"]])
        return {**forward.tensors["operands"], **backward.tensors["operands"]}

    order: list[tuple[str, str]] = []
    traced = jax.eval_shape(passes, params, stats, jax.ShapeDtypeStruct(shape, np.float32))
    sites = {}
    for stage, name in order:
        operands = traced[name]
        each = {o: operands[o.name.lower()] for o in Operand}
        layer = name.removesuffix("_grad_in").removesuffix("_grad_wt")
        sites[name] = Site(name, layer, stage, {o: jax.ShapeDtypeStruct(t.shape[1:], t.dtype) for o, t in each.items()})
    if len({site_id(name) for name in sites}) != len(sites):
        raise ValueError("two sites have the same id; rename one")
    return sites
