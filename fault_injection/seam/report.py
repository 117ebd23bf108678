"""What a step, and a forward pass in evaluation, say of themselves."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from ..models.fault import Struck
from .digest import digest, magnitude
from .packed import Packed
from .trees import Array, State, leaf_names


@struct.dataclass
class StepReport:
    """What a step says of itself.

    Attributes:
      loss, metric: of the global batch, before the update.
      digest: uint32 [leaves of the state], see `digest.digest`.
      magnitude: float32 [gradients, then leaves of the state], largest absolute value of each;
        NaN or infinite exactly where an array has a non-finite element.
      struck: what the fault did, None without fault support.
      tensors: observations asked for, with leading axis [R].
      reductions: those asked for, by `REDUCTION/KIND/NAME`, see `models.observe.reductions`.
    """

    loss: Array
    metric: Array
    digest: Array
    magnitude: Array
    struck: Struck | None = None
    tensors: dict[str, Any] = struct.field(default_factory=dict)
    reductions: Mapping[str, Array] = struct.field(default_factory=dict)


def report(
    loss: jax.Array,
    metric: jax.Array,
    gradients: Any,
    state: State,
    struck: Struck | None = None,
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


@struct.dataclass
class Inference:
    """What a forward pass in evaluation says of a batch.

    Attributes:
      loss, metric: [R,b,…], of each target, whatever its weight.
      predicted: int32 [R,b,…], the class of the largest logit.
      struck: what the fault did, None without one.
      tensors: observations asked for, with leading axis [R].
      reductions: those asked for, by `REDUCTION/KIND/NAME`.
    """

    loss: Array
    metric: Array
    predicted: Array
    struck: Struck | None = None
    tensors: dict[str, Any] = struct.field(default_factory=dict)
    reductions: Mapping[str, Array] = struct.field(default_factory=dict)


def finite(report: StepReport, rule: str) -> bool:
    """Whether the step saw finite values only.

    Args:
      rule: one of `NONFINITE_RULES`: `loss` looks at the loss alone, `state` at gradients and the
        whole state as well.
    """
    looked_at = [report.loss] if rule == "loss" else [report.loss, report.magnitude]
    return all(bool(np.isfinite(values).all()) for values in looked_at)
