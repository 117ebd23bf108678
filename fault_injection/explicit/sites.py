"""The sites of a network, found by tracing it: nothing is computed."""

import re

import jax
import jax.numpy as jnp

from ..models.arrays import Params, Stats
from ..models.fault import Operand, site_id
from ..models.isolation import only_shapes
from ..models.layer import Context, Layer, Observations, merge
from ..models.site import Site, TensorSpec


def list_sites(network: Layer, example: jax.ShapeDtypeStruct) -> dict[str, Site]:
    """All sites of `network` by name, in the order in which a step runs them.

    Args:
      example: shape [b, …] and dtype of one worker's input.

    Raises:
      ValueError: a site occurs twice, or two sites have the same id.

    >>> from fault_injection.models.layers.convolution import convolution
    >>> sites = list_sites(convolution("conv1", 8, 3, 2), jax.ShapeDtypeStruct((16, 32, 32, 3), "float32"))
    >>> list(sites)
    ['conv1', 'conv1_grad_in', 'conv1_grad_wt']
    >>> site = sites["conv1_grad_in"]
    >>> site.layer, site.stage, site.shapes[Operand.INPUT]
    ('conv1', 'backward', (16, 34, 34, 8))
    """
    shape = (1, *example.shape)
    params, stats = network.init(None, shape)

    def passes(params: Params, stats: Stats, x: jax.Array) -> tuple[Observations, Observations]:
        ctx = Context(key=jax.random.key(0), workers=jnp.arange(1, dtype=jnp.int32), observe=frozenset({"operands"}))
        y, _, cache, forward = network.forward(params, stats, x, ctx)
        _, _, backward = network.backward(params, cache, y, ctx)
        return forward, backward

    with only_shapes():
        traced = jax.eval_shape(passes, params, stats, jax.ShapeDtypeStruct(shape, example.dtype))
    merge(traced)  # raises if a site occurs twice
    sites: dict[str, Site] = {}
    ids: dict[int, str] = {}
    for stage, seen in zip(("forward", "backward"), traced, strict=True):
        for name in seen.sites:
            if (other := ids.setdefault(site_id(name), name)) != name:
                raise ValueError(f"sites {other!r} and {name!r} have the same id; rename one of their layers")
            tensors = {operand: seen.tensors["operands"][name][operand.name.lower()] for operand in Operand}
            operands = {operand: TensorSpec(t.shape[1:], t.dtype) for operand, t in tensors.items()}
            layer = name if stage == "forward" else re.sub("_grad_(in|wt)$", "", name)
            sites[name] = Site(name, layer, stage, operands)
    return sites
