"""Dr. DNA: how far the activations of an example are from what they are without faults, at a few sampled places.

Reference: Ma et al., Dr. DNA, ASPLOS 2024 (docs/detection_dr_dna.md says what of it is theirs).
"""

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from ..isolation import fence
from ..precision import wide

PLACES = 32  # in the activation of one example
FEWEST = 32  # examples that a profile is made of, at least: with fewer, what is rare says nothing
BINS = 10
NAME = "dr_dna/activations"  # what a step reports of a layer: `NAME/LAYER`
SAMPLES = "samples"  # the kind of tensors that a profile is made of

Array = jax.Array | np.ndarray


@struct.dataclass
class Histograms:
    """What activations are without faults; L layers, k = `PLACES` places in each.

    Attributes:
      low, high: float32 [L,k], range of each place.
      frequency: float32 [L,k,BINS], shares of the examples in equal parts of that range (τ1).
      layer_low, layer_high: float32 [L], range of all places of a layer together.
      below: float32 [L,BINS+1], share of a layer's values below each edge of equal parts of that
        range: its histogram, summed up (τ2).
      extremes: int32 [L,2], which place most often has the largest and the smallest value (τ3).
      expected: float32 [L], mean of the score S of the layers up to this one (Ŝ).
      limit: float32 [L], largest (S − Ŝ)/Ŝ of an example without a fault.
      clamp_above: float32 [L], score of a layer alone above which mitigation clamps.
      largest: float32 [L], largest absolute value of the whole activation.
    """

    low: Array
    high: Array
    frequency: Array
    layer_low: Array
    layer_high: Array
    below: Array
    extremes: Array
    expected: Array
    limit: Array
    clamp_above: Array
    largest: Array


@struct.dataclass
class Profile:
    """Where a pass samples activations, and what they are expected to be there.

    It is data: switching to another profile of the same layers compiles nothing anew.

    Attributes:
      layers: names of forward operations, in the order of the pass.
      positions: int32 [L,PLACES], row-major positions in the activation of one example.
      histograms: None where the profile is yet to be made: a pass then returns the samples.
      mitigate: whether the pass clamps what is far from expected.
    """

    layers: tuple[str, ...] = struct.field(pytree_node=False)
    positions: Array
    histograms: Histograms | None = None
    mitigate: bool = struct.field(pytree_node=False, default=False)


def watched(profile: Profile, layer: str, activation: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The samples of an activation, and the activation as it goes on.

    Args:
      layer: one of the profile's.
      activation: [R,b,…], the result of a forward operation.

    Returns:
      The activation, clamped where `profile.mitigate` asks for it and an example is far from
      expected, and float32 [R,b,PLACES], the samples of the unclamped one.

    >>> profile = Profile(("fc",), np.arange(PLACES)[None] % 3)
    >>> y, samples = watched(profile, "fc", jnp.array([[[1.0, 2.0, 3.0]]]))
    >>> y.tolist(), samples[0, 0, :4].tolist()
    ([[[1.0, 2.0, 3.0]]], [1.0, 2.0, 3.0, 1.0])
    """
    at = profile.layers.index(layer)
    samples = sampled(activation, profile.positions[at])
    if profile.mitigate and profile.histograms is not None:
        activation = _clamped(activation, samples, jax.tree.map(lambda leaf: leaf[at], profile.histograms))
    return activation, samples


@jax.jit
def sampled(activation: jax.Array, positions: jax.Array) -> jax.Array:
    """The elements [R,b,n] of the activations [R,b,…] of examples at row-major positions [n], float32 at least."""
    workers, examples = activation.shape[:2]
    if activation.size >= 2**31:  # beyond what int32 can count
        return wide(jnp.take(activation.reshape(workers, examples, -1), positions, axis=-1, mode="clip"))
    # From one vector XLA for CPUs takes elements several times as fast as along an axis.
    first = np.arange(workers * examples, dtype=np.int32) * (activation.size // (workers * examples))
    index = first.reshape(workers, examples, 1) + positions
    return wide(jnp.take(activation.reshape(-1), index, mode="clip"))


@jax.jit
def _clamped(activation: jax.Array, samples: jax.Array, expected: Histograms) -> jax.Array:
    one = jax.tree.map(lambda leaf: leaf[None], expected)
    far = layer_scores(one, samples[..., None, :])[..., 0] > expected.clamp_above  # [R,b]
    far = far.reshape(*far.shape, *(1,) * (activation.ndim - 2))
    # Ordinary numbers first: clipping leaves NaN as it is.
    number = jnp.where(jnp.isnan(activation), jnp.zeros_like(activation), activation)
    most = expected.largest.astype(activation.dtype)
    return fence(jnp.where(far, jnp.clip(number, -most, most), activation))


def layer_scores(expected: Histograms, samples: Array) -> jax.Array:
    """s1 + s2 + s3 of each layer by itself.

    s1 sums, over the places, 1 − the share of examples in the bin of this value; it is 1 outside
    the range.  s2 is the earth mover's distance, in bins, between the histogram of this example's
    samples and the layer's; what lies outside the range lies one bin beyond it.  s3 is 0, ½ or 1:
    half the number of extremes that the usual place does not have.  NaN counts as +∞.

    Args:
      samples: float32 [...,L,PLACES].

    Returns:
      float32 [...,L].
    """
    x = jnp.where(jnp.isnan(samples), jnp.inf, samples)
    bin = bins_of(x, expected.low, expected.high)
    first = np.arange(expected.frequency.size // BINS, dtype=np.int32).reshape(expected.low.shape) * BINS
    frequency = jnp.take(jnp.ravel(expected.frequency), first + jnp.clip(bin, 0, BINS - 1), mode="clip")
    s1 = jnp.sum(1 - jnp.where((bin >= 0) & (bin < BINS), frequency, 0), -1)

    bin = bins_of(x, expected.layer_low[..., None], expected.layer_high[..., None]).astype(jnp.int8)
    # Counted in 8 bits: in wider ones, XLA for CPUs stores all comparisons before it counts them.
    below = jnp.sum(bin[..., None] < np.arange(BINS + 1, dtype=np.int8), -2, dtype=jnp.int8)
    s2 = jnp.sum(jnp.abs(below.astype(jnp.float32) / PLACES - expected.below), -1)

    largest, smallest = _at(x, expected.extremes[:, 0]), _at(x, expected.extremes[:, 1])
    elsewhere = [largest < jnp.max(x, -1), smallest > jnp.min(x, -1)]
    s3 = sum(jnp.where(one, jnp.float32(0.5), jnp.float32(0)) for one in elsewhere)
    return s1 + s2 + s3


def excess(expected: Histograms, samples: Array) -> jax.Array:
    """(S − Ŝ)/Ŝ of each layer; S is the sum of the scores up to it.

    Args:
      samples: float32 [...,L,PLACES].

    Returns:
      float32 [...,L].
    """
    score = jnp.cumsum(layer_scores(expected, samples), -1)
    return (score - expected.expected) / jnp.maximum(expected.expected, 1e-6)


def largest_excess(profile: Profile, samples: dict[str, jax.Array]) -> jax.Array:
    """float32 [L], the largest `excess` of an example.

    Args:
      samples: float32 [R,b,PLACES] by layer, from `watched`.
    """
    assert profile.histograms is not None
    return _largest_excess(profile.histograms, [samples[layer] for layer in profile.layers])


@jax.jit
def _largest_excess(expected: Histograms, samples: list[jax.Array]) -> jax.Array:
    return jnp.max(excess(expected, jnp.stack(samples, -2)), (0, 1))


def _at(x: Array, place: Array) -> jax.Array:
    """x [...,L] at one place [L] of each layer."""
    index = jnp.broadcast_to(place[:, None], (*x.shape[:-1], 1))
    return jnp.take_along_axis(jnp.asarray(x), index, -1, mode="clip")[..., 0]


def bins_of(x: Array, low: Array, high: Array) -> jax.Array:
    """int32, which of `BINS` equal parts of the range; −1 is below, `BINS` above; `high` is in the last."""
    part = jnp.clip(jnp.floor((x - low) * (BINS / (high - low))), 0, BINS - 1).astype(jnp.int32)
    return jnp.where(x < low, -1, jnp.where(x > high, BINS, part))
