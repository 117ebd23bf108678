"""Forward passes in evaluation: what a program says of test data, on the devices of a mesh."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from ..models.fault import Fault
from ..models.layer import Context, Layer, Observations
from ..models.loss import Head, predicted
from ..models.observe.dr_dna import Profile
from ..models.observe.reductions import together
from ..seam.leaves import Batch
from ..seam.packed import Packed
from ..seam.report import Inference
from .state import ExplicitState
from .sums import total
from .watched_activations import returned, scored, with_largest


def evaluating(network: Layer, head: Head, axis: str | None) -> Callable[..., tuple[jax.Array, ...]]:
    """A function that sums loss, metric and weight of a batch, over the devices of `axis`.

    Args:
      head: gives loss and metric of each example.
      axis: None where each device has the whole batch.
    """

    def sums(state: ExplicitState, batch: Batch, numbers: jax.Array) -> tuple[jax.Array, ...]:
        ctx = Context(key=jax.random.key(0), workers=numbers, train=False)
        logits = network.forward(state.params, state.stats, batch["input"], ctx)[0]
        loss, metric, _ = head(logits, batch["target"])
        weighted = [jnp.sum(t * batch["weight"]) for t in (loss, metric.astype(loss.dtype), jnp.ones_like(loss))]
        found: tuple[jax.Array, ...] = total(tuple(weighted), axis)
        return found

    return sums


def inferring(
    network: Layer,
    head: Head,
    axis: str | None,
    supported: frozenset[str] | None,
    reductions: frozenset[str],
) -> Callable[..., Inference]:
    """A function that makes a forward pass and says of each example what `Inference` has.

    Args:
      head, axis: as for `evaluating`.
      supported, reductions: as for `explicit_program`.
    """

    def inference(
        state: ExplicitState, batch: Batch, numbers: jax.Array, profile: Profile | None, fault: Fault | None
    ) -> Inference:
        ctx = Context(
            key=jax.random.key(0),
            workers=numbers,
            fault=fault,
            supported=supported,
            train=False,
            reduce=with_largest(reductions, profile),
            profile=profile,
        )
        logits, _, _, seen = network.forward(state.params, state.stats, batch["input"], ctx)
        loss, metric, _ = head(logits, batch["target"])
        found = together(seen.reduced, axis) | scored(profile, seen, axis)
        struck = total(seen.struck, axis)
        return Inference(loss, metric, predicted(logits), struck, returned(profile, seen), Packed(found))

    return inference


def activation_sizes(network: Layer, state: ExplicitState, example: jax.ShapeDtypeStruct) -> dict[str, int]:
    """Elements of one example's activation by forward operation; nothing is computed.

    Args:
      state: shapes and dtypes.
    """

    def forward(state: ExplicitState, x: jax.Array) -> Observations:
        ctx = Context(jax.random.key(0), jnp.arange(1), train=False, observe=frozenset({"activations"}))
        return network.forward(state.params, state.stats, x, ctx)[3]

    seen = jax.eval_shape(forward, state, jax.ShapeDtypeStruct((1, 1, *example.shape), example.dtype))
    return {site: seen.tensors["activations"][site].size for site in seen.sites}
