"""How large a gradient is expected to be, from the shapes of a network alone."""

import math
from collections.abc import Mapping

import jax
import jax.numpy as jnp

from ..models.arrays import Params, Stats
from ..models.layer import Context, Layer, merge
from ..seam.trees import leaf_names


def gradient_scale(network: Layer, params: Params, stats: Stats, inputs: jax.ShapeDtypeStruct) -> dict[str, float]:
    """√(n / B²) of each parameter by name: the size of a sum of n numbers of variance one, each divided by B.

    n is the number of partial sums in one gradient of the parameter, and B the examples of the batch.

    Args:
      params, stats: of the network, or their shapes.
      inputs: shape and dtype of the global batch, [R,b,…].

    >>> from fault_injection.models.layers.dense import dense
    >>> network, x = dense("fc", 10), jax.ShapeDtypeStruct((2, 8, 5), "float32")
    >>> gradient_scale(network, *network.init(None, x.shape), x)
    {'fc/bias': 0.25, 'fc/kernel': 0.25}
    """
    ctx = Context(jax.random.key(0), jnp.arange(inputs.shape[0]), observe=frozenset({"activations", "gradients"}))

    def passes(params: Params, stats: Stats, x: jax.Array) -> dict[str, dict[str, jax.Array]]:
        y, _, cache, forward = network.forward(params, stats, x, ctx)
        return merge([forward, network.backward(params, cache, y, ctx)[2]]).tensors

    tensors = jax.eval_shape(passes, params, stats, inputs)
    shapes = {name: t.shape for kind in ("gradients", "activations") for name, t in tensors.get(kind, {}).items()}
    examples = math.prod(inputs.shape[:2])
    return {
        name: math.sqrt(partial_sums(name.partition("/")[0], parameter.shape, shapes)) / examples
        for name, parameter in zip(leaf_names(params), jax.tree.leaves(params), strict=True)
    }


def partial_sums(layer: str, parameter: tuple[int, ...], shapes: Mapping[str, tuple[int, ...]]) -> int:
    """How many products are summed in one gradient of a parameter.

    There is one for each position of the layer's output in the global batch: the output's elements
    but for its channels.  A parameter that is a single number has one for each element.

    Args:
      shapes: of outputs of layers, or of what flows back into them, [R,b,…,C] by name.

    >>> partial_sums("conv1", (3, 3, 8, 16), {"conv1": (8, 128, 32, 32, 16)})
    1048576
    """
    # A parameter of a whole block stands for what its layers pass on.
    found = [shape for name, shape in shapes.items() if name == layer] or [
        shape for name, shape in shapes.items() if name.startswith(f"{layer}_")
    ]
    largest = max(found, key=math.prod, default=(0,))
    return math.prod(largest[:-1] if parameter else largest)
