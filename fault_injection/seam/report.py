"""What a step, and a forward pass in evaluation, say of themselves."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from ..models.fault import AllStruck, Struck

Array = Any  # of JAX, or fetched from its devices


class StepReport(NamedTuple):
    """What a step says of itself.

    Attributes:
      loss, metric: of the global batch, before the update.
      digest: uint32 [leaves of the state], see `digest.digest`.
      magnitude: float32 [gradients, then leaves of the state], largest absolute value of each;
        NaN or infinite exactly where an array has a non-finite element.
      struck: what the fault, or each of several, did; None without fault support.
      tensors: observations asked for, with leading axis [R].
      reductions: those asked for, by `REDUCTION/KIND/NAME`, see `models.observe.reductions`.
    """

    loss: Array
    metric: Array
    digest: Array
    magnitude: Array
    struck: AllStruck | None = None
    tensors: Mapping[str, Any] = {}
    reductions: Mapping[str, Array] = {}


class Inference(NamedTuple):
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
    tensors: Mapping[str, Any] = {}
    reductions: Mapping[str, Array] = {}


def finite(report: StepReport, rule: str) -> bool:
    """Whether the step saw finite values only.

    Args:
      rule: one of `NONFINITE_RULES`: `loss` looks at the loss alone, `state` at gradients and the
        whole state as well.
    """
    looked_at = [report.loss] if rule == "loss" else [report.loss, report.magnitude]
    return all(bool(np.isfinite(values).all()) for values in looked_at)
