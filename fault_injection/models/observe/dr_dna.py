"""Dr. DNA: how far the activations of an example are from what they are without faults.

Activations are looked at in a few sampled places, and by their largest absolute value.

Reference: Ma et al., Dr. DNA, ASPLOS 2024 (docs/detection_dr_dna.md says what of it is theirs).
"""

from collections.abc import Callable, Mapping
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from ..isolation import fence
from ..largest import largest_of_rows
from ..precision import wide

PLACES = 32  # in the activation of one example
FEWEST = 32  # examples that a profile is made of, at least: with fewer, what is rare says nothing
BINS = 10
SAMPLED = PLACES + 1  # numbers that are kept of an example's activation: see `sampled`
SAMPLES = "samples"  # the kind of tensors that a profile is made of
MARGIN = 5.0  # a threshold of a distance is so many times the largest one without a fault

# What a step reports of a layer, as `NAME/LAYER`: see `VALUES`.
BEYOND_PLACES, BEYOND_LAYER = "dr_dna_places/activations", "dr_dna_layer/activations"
SUM = "dr_dna_sum/activations"
BEYOND = (BEYOND_PLACES, BEYOND_LAYER)

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
      largest: float32 [L], largest absolute value of the whole activation.
      limits: float32 [L,len(VALUES)], largest of each of `VALUES` of an example without a fault.
    """

    low: Array
    high: Array
    frequency: Array
    layer_low: Array
    layer_high: Array
    below: Array
    extremes: Array
    expected: Array
    largest: Array
    limits: Array


@struct.dataclass
class Profile:
    """Where a pass samples activations, and what they are expected to be there.

    It is data: switching to another profile of the same layers compiles nothing anew.

    Attributes:
      layers: names of forward operations, in the order of the pass.
      positions: int32 [L,PLACES], row-major positions in the activation of one example.
      histograms: None where the profile is yet to be made: a pass then returns the samples.
      told: names of `VALUES` that a pass reports of each layer.
      mitigate: whether the pass clamps what is far from expected.
    """

    layers: tuple[str, ...] = struct.field(pytree_node=False)
    positions: Array
    histograms: Histograms | None = None
    told: tuple[str, ...] = struct.field(pytree_node=False, default=BEYOND)
    mitigate: bool = struct.field(pytree_node=False, default=False)


def watched(profile: Profile, layer: str, activation: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The samples of an activation, and the activation as it goes on.

    Args:
      layer: one of the profile's.
      activation: [R,b,…], the result of a forward operation.

    Returns:
      The activation, clamped where `profile.mitigate` asks for it and an example is far from
      expected, and float32 [R,b,SAMPLED], the samples of the unclamped one.

    >>> profile = Profile(("fc",), np.arange(PLACES)[None] % 3)
    >>> y, samples = watched(profile, "fc", jnp.array([[[1.0, 2.0, 3.0]]]))
    >>> y.tolist(), samples[0, 0, :4].tolist(), samples[0, 0, -1].item()
    ([[[1.0, 2.0, 3.0]]], [1.0, 2.0, 3.0, 1.0], 3.0)
    """
    at = profile.layers.index(layer)
    samples = sampled(activation, profile.positions[at])
    if profile.mitigate and profile.histograms is not None:
        activation = _clamped(activation, samples, jax.tree.map(lambda leaf: leaf[at], profile.histograms))
    return activation, samples


@jax.jit
def sampled(activation: jax.Array, positions: jax.Array) -> jax.Array:
    """What is kept of the activations [R,b,…] of examples: float32 at least, [R,b,n + 1].

    These are the elements at row-major positions [n], then the largest absolute value of all elements, NaN where one
    is among them.
    """
    workers, examples = activation.shape[:2]
    rows = activation.reshape(workers * examples, -1)
    if activation.size >= 2**31:  # beyond what int32 can count
        elements = jnp.take(rows, positions, axis=-1, mode="clip")
    else:  # From one vector XLA for CPUs takes elements several times as fast as along an axis.
        first = np.arange(len(rows), dtype=np.int32) * rows.shape[1]
        elements = jnp.take(activation.reshape(-1), first[:, None] + positions, mode="clip")
    kept = jnp.concatenate([wide(elements), largest_of_rows(rows)[:, None]], -1)
    return kept.reshape(workers, examples, -1)


@jax.jit
def _clamped(activation: jax.Array, samples: jax.Array, expected: Histograms) -> jax.Array:
    one = jax.tree.map(lambda leaf: leaf[None], expected)
    beyond = jnp.stack([VALUES[name](one, samples[..., None, :])[..., 0] for name in BEYOND], -1)
    far = jnp.any(beyond > MARGIN * expected.limits[np.array([NAMES.index(name) for name in BEYOND])], -1)  # [R,b]
    far = far.reshape(*far.shape, *(1,) * (activation.ndim - 2))
    # Ordinary numbers first: clipping leaves NaN as it is.
    number = jnp.where(jnp.isnan(activation), jnp.zeros_like(activation), activation)
    most = expected.largest.astype(activation.dtype)
    return fence(jnp.where(far, jnp.clip(number, -most, most), activation))


def beyond_places(expected: Histograms, samples: Array) -> jax.Array:
    """How far the farthest of its places is outside of that place's range, in widths of that range; without a bound.

    0 is inside.  NaN counts as +∞.

    Args:
      samples: float32 [...,L,SAMPLED].

    Returns:
      float32 [...,L].
    """
    x = _ordered(samples)[..., :PLACES]
    outside = jnp.maximum(expected.low - x, x - expected.high) / (expected.high - expected.low)
    return jnp.maximum(jnp.max(outside, -1), 0)


def beyond_layer(expected: Histograms, samples: Array) -> jax.Array:
    """By how much the largest absolute value exceeds the profile's, as a share of the profile's; without a bound.

    0 is below it.  NaN counts as +∞.  Where all of a profile's values are 0, it is the value itself.

    Args:
      samples: float32 [...,L,SAMPLED].

    Returns:
      float32 [...,L].
    """
    usual = jnp.asarray(expected.largest)
    return jnp.maximum(_ordered(samples)[..., -1] - usual, 0) / jnp.where(usual > 0, usual, 1)


def _ordered(samples: Array) -> jax.Array:
    return jnp.where(jnp.isnan(samples), jnp.inf, samples)


def layer_scores(expected: Histograms, samples: Array) -> jax.Array:
    """s1 + s2 + s3 of each layer by itself.

    s1 sums, over the places, 1 − the share of examples in the bin of this value; it is 1 outside
    the range.  s2 is the earth mover's distance, in bins, between the histogram of this example's
    samples and the layer's; what lies outside the range lies one bin beyond it.  s3 is 0, ½ or 1:
    half the number of extremes that the usual place does not have.  NaN counts as +∞.

    Args:
      samples: float32 [...,L,SAMPLED].

    Returns:
      float32 [...,L].
    """
    x = _ordered(samples)[..., :PLACES]
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
      samples: float32 [...,L,SAMPLED].

    Returns:
      float32 [...,L].
    """
    score = jnp.cumsum(layer_scores(expected, samples), -1)
    return (score - expected.expected) / jnp.maximum(expected.expected, 1e-6)


# By the name under which a step reports it: a value of each layer [...,L], of samples [...,L,SAMPLED].
VALUES: dict[str, Callable[[Histograms, Array], jax.Array]] = {
    BEYOND_PLACES: beyond_places,
    BEYOND_LAYER: beyond_layer,
    SUM: excess,
}
NAMES = tuple(VALUES)


def largest_values(profile: Profile, samples: Mapping[str, Array]) -> dict[str, jax.Array]:
    """float32 [L] of each of `VALUES` that the profile tells: the largest of an example.

    Args:
      samples: float32 [R,b,SAMPLED] by layer, from `watched`.
    """
    assert profile.histograms is not None
    return _largest_values(profile.told, profile.histograms, [samples[layer] for layer in profile.layers])


@partial(jax.jit, static_argnums=0)
def _largest_values(told: tuple[str, ...], expected: Histograms, samples: list[jax.Array]) -> dict[str, jax.Array]:
    stacked = jnp.stack(samples, -2)
    return {name: jnp.max(VALUES[name](expected, stacked), (0, 1)) for name in told}  # none is NaN


def _at(x: Array, place: Array) -> jax.Array:
    """x [...,L] at one place [L] of each layer."""
    index = jnp.broadcast_to(place[:, None], (*x.shape[:-1], 1))
    return jnp.take_along_axis(jnp.asarray(x), index, -1, mode="clip")[..., 0]


def bins_of(x: Array, low: Array, high: Array) -> jax.Array:
    """int32, which of `BINS` equal parts of the range; −1 is below, `BINS` above; `high` is in the last."""
    part = jnp.clip(jnp.floor((x - low) * (BINS / (high - low))), 0, BINS - 1).astype(jnp.int32)
    return jnp.where(x < low, -1, jnp.where(x > high, BINS, part))
