"""The report of a step, made inside it."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..models.fault import AllStruck
from .digest import digest, magnitude
from .leaves import State
from .packed import Packed
from .report import StepReport
from .trees import Array, leaf_names


def report(
    loss: jax.Array,
    metric: jax.Array,
    gradients: Any,
    state: State,
    struck: AllStruck | None = None,
    tensors: dict[str, Any] | None = None,
    reductions: Mapping[str, Array] | None = None,
    known: Mapping[str, tuple[jax.Array, jax.Array]] | None = None,
) -> StepReport:
    """The report of a step, made inside it.

    Args:
      loss, metric: scalars, of the global batch.
      gradients: any pytree of arrays; their magnitudes come first.
      state: the one that the step returns.
      known: digest and magnitude of leaves of the state, by name, that the step knows without looking at them.
    """
    known = known or {}
    leaves = dict(zip(leaf_names(state), jax.tree.leaves(state), strict=True))
    unknown = [leaf for name, leaf in leaves.items() if name not in known]
    digests, largest = digest(unknown), magnitude((gradients, unknown))
    if known:
        found = [known[name] for name in leaves if name in known]
        place = np.argsort(np.argsort([name in known for name in leaves], kind="stable"))  # of each leaf, then
        gradient, of_state = jnp.split(largest, [len(jax.tree.leaves(gradients))])
        digests = jnp.append(digests, jnp.stack([one for one, _ in found]))[place]
        largest = jnp.append(gradient, jnp.append(of_state, jnp.stack([one for _, one in found]))[place])
    return StepReport(loss, metric, digests, largest, struck, tensors or {}, Packed(reductions or {}))
