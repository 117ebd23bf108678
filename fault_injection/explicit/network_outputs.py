"""The logits of an explicit network, as a function of its parameters."""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..models.fault import Fault
from ..models.layer import Context, Layer
from ..seam.outputs import Outputs


def outputs_of(network: Layer, state: Any, tests: Sequence[Any], examples: int | None) -> Outputs:
    """Of all test examples, or of the first ones.

    Args:
      state: of its training, whole.
      tests: batches of test examples, as `ForwardPasses.tests` gives them.
    """
    state = jax.device_get(state)
    inputs, targets = _examples(tests, examples)

    def logits(
        parameters: Mapping[str, jax.Array],
        others: Any,
        inputs: jax.Array | None,
        fault: Fault | None,
        sites: frozenset[str] | None,
    ) -> jax.Array:
        assert inputs is not None
        params: dict[str, dict[str, jax.Array]] = {}
        for leaf, array in parameters.items():
            _, layer, name = leaf.split("/")
            params.setdefault(layer, {})[name] = array
        ctx = Context(jax.random.key(0), jnp.zeros(1, jnp.int32), fault=fault, supported=sites, train=False)
        return network.forward(params, others, inputs[None], ctx)[0][0]

    parameters = {
        f"params/{layer}/{name}": np.asarray(leaf)
        for layer, leaves in state.params.items()
        for name, leaf in leaves.items()
    }
    return Outputs(parameters, state.stats, inputs, targets, logits)


def _examples(tests: Sequence[Any], examples: int | None) -> tuple[np.ndarray, np.ndarray]:
    """Inputs and targets of the test examples, [n,…] both."""
    found: dict[str, list[np.ndarray]] = {"input": [], "target": []}
    for batch in jax.device_get(tests):
        workers, each = batch["weight"].shape[:2]
        there = batch["weight"].reshape(workers * each, -1)[:, 0] > 0
        for name, into in found.items():
            into.append(batch[name].reshape(-1, *batch[name].shape[2:])[there])
    inputs, targets = (np.concatenate(parts)[:examples] for parts in found.values())
    return inputs, targets
