"""One forward and one backward pass of the workers of a device."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from ..models.arrays import Params, Stats
from ..models.layer import Context, Layer, Observations, merge
from ..models.loss import Head, cross_entropy
from ..seam.leaves import Batch


class Passes(NamedTuple):
    """What a forward and a backward pass of the device's workers give.

    Attributes:
      loss, metric: this device's share of the global batch's.
      stats: new running statistics, the mean over its workers.
      grads: summed over its workers.
      seen: observations.
      logits: [R,b,…,classes].
    """

    loss: jax.Array
    metric: jax.Array
    stats: Stats
    grads: Params
    seen: Observations
    logits: jax.Array


def forward_and_backward(
    network: Layer, params: Params, stats: Stats, batch: Batch, ctx: Context, terms: int, head: Head = cross_entropy
) -> Passes:
    """One forward and one backward pass of the device's workers.

    Args:
      batch: `input` [R,b,…], `target` [R,b,…].
      terms: elements of the global batch's target; the loss is the sum over them divided by their number.
      head: gives loss, metric and gradient of each.
    """
    logits, new_stats, cache, forward = network.forward(params, stats, batch["input"], ctx)
    loss, metric, dlogits = head(logits, batch["target"])
    _, grads, backward = network.backward(params, cache, dlogits / terms, ctx)
    loss, metric = jnp.sum(loss) / terms, jnp.sum(metric) / terms
    return Passes(loss, metric, new_stats, grads, merge([forward, backward]), logits)
