"""Reductions: what a step tells of what is too large to be returned.

Of a tensor these are norms, maxima, moments and histograms, and of a product checksums.  A reduction
of what is divided among devices is computed of each part, and the parts are put together: `of` a
part, then `across` the parts, then `finish`.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from ..largest import largest, largest_across
from ..precision import wide
from .checksum import Performed, bound, deviation, ratio

LOWEST, HIGHEST = -40, 40  # binary exponents that a histogram tells apart


class Reduction(NamedTuple):
    """One way to reduce a tensor or a product.

    Attributes:
      of: the reduction of it, or of a part of it; float32 or int32.
      across: what puts parts together: `sum` or `max`.
      finish: makes the result of what was put together.
    """

    of: Callable[[Any], jax.Array]
    across: str
    finish: Callable[[jax.Array], jax.Array]


def _moments(tensor: jax.Array) -> jax.Array:
    """Number of elements, then the sums of x, x², x³ and x⁴."""
    return jnp.stack([jnp.float32(tensor.size), *(jnp.sum(tensor**power) for power in (1, 2, 3, 4))])


def _histogram(tensor: jax.Array) -> jax.Array:
    """Counts of zeros, of binary exponents from below `LOWEST` to above `HIGHEST`, and of what is not finite."""
    exponent = jnp.clip(jnp.frexp(tensor)[1] - 1, LOWEST - 1, HIGHEST + 1) - LOWEST + 2
    bins = HIGHEST - LOWEST + 5
    bin = jnp.where(tensor == 0, 0, jnp.where(jnp.isfinite(tensor), exponent, bins - 1))
    return jnp.sum(bin.reshape(-1, 1) == jnp.arange(bins), axis=0, dtype=jnp.int32)


def _squares(tensor: jax.Array) -> jax.Array:
    """The sum of the squares, then the number of elements."""
    return jnp.stack([jnp.sum(tensor * tensor), jnp.float32(tensor.size)])


# By name.  `norm` is the Euclidean norm, `rms` the root of the mean square, `largest` the largest absolute value;
# `moments` are the means of x, x², x³ and x⁴; `histogram` counts binary exponents, see `_histogram`.  A NaN makes all
# of them NaN but the histogram.
OF_TENSORS = {
    "norm": Reduction(lambda tensor: jnp.sum(tensor * tensor), "sum", jnp.sqrt),
    "rms": Reduction(_squares, "sum", lambda found: jnp.sqrt(found[0] / found[1])),
    "largest": Reduction(largest, "max", lambda found: found),
    "moments": Reduction(_moments, "sum", lambda found: found[1:] / found[0]),
    "histogram": Reduction(_histogram, "sum", lambda found: found),
}
# Of the kind `products`, which are all operations but lookups: see `models.observe.checksum`.
OF_PRODUCTS = {
    "checksum": Reduction(partial(ratio, bound), "max", lambda found: found),
    "variance_checksum": Reduction(partial(ratio, deviation), "max", lambda found: found),
}
# The tensor itself, of which there is one for all devices: what the inverse of an optimizer's step needs.
WHOLE = "whole/parameter_gradients"
# The whole result of every operation that is computed.  Steps tell it among their tensors, not their reductions: it is
# for who looks at it on its device, see `runs.lockstep`.
RESULTS = "results"
WHOLE_RESULTS = f"whole/{RESULTS}"
REDUCTIONS = OF_TENSORS | OF_PRODUCTS | {"whole": Reduction(lambda tensor: tensor, "max", lambda found: found)}
# Results of the operations of the forward pass; gradients with respect to the inputs of norms and of the head, and
# to the outputs of embeddings; gradients of parameters, summed over the workers; gradients of parameters with two or
# more axes before that sum, under a name from `local_gradient` each; what a step adds to the parameters; and what Adam
# would add with the new moments, without bias correction (see `adam_step`).
KINDS = ("activations", "gradients", "parameter_gradients", "local_gradients", "updates", "adam_steps")
CHOICES = (
    *(f"{reduction}/{kind}" for reduction in OF_TENSORS for kind in KINDS),
    *(f"{reduction}/products" for reduction in OF_PRODUCTS),
    WHOLE,
)


def reduced(wanted: frozenset[str], kind: str, name: str, what: jax.Array | Performed) -> dict[str, jax.Array]:
    """What was asked for of a tensor or product, or of this device's part of it, by `REDUCTION/KIND/NAME`.

    >>> reduced(frozenset({"largest/gradients"}), "gradients", "norm", jnp.array([3.0, -4.0]))
    {'largest/gradients/norm': Array(4., dtype=float32)}
    """
    names = [reduction for reduction in REDUCTIONS if f"{reduction}/{kind}" in wanted]
    what = wide(what) if isinstance(what, jax.Array) else what
    return {f"{reduction}/{kind}/{name}": REDUCTIONS[reduction].of(what) for reduction in names}


def together(parts: dict[str, jax.Array], axis: str | None = None) -> dict[str, jax.Array]:
    """The reductions of whole tensors and products from those of their parts.

    Args:
      parts: what `reduced` gave.
      axis: of the devices that have the parts; None where each has the whole.

    >>> parts = reduced(frozenset({"moments/gradients"}), "gradients", "norm", jnp.array([3.0, -4.0]))
    >>> together(parts)["moments/gradients/norm"].tolist()
    [-0.5, 12.5, -18.5, 168.5]
    """
    found = {}
    for name, part in parts.items():
        if axis is not None:
            part = lax.psum(part, axis) if is_sum(name) else largest_across(part, axis)
        found[name] = REDUCTIONS[name.partition("/")[0]].finish(part)
    return found


def local_gradient(first: int, last: int, parameter: str) -> str:
    """The name of a gradient before it is summed over all workers.

    Args:
      first, last: the workers that it belongs to.  A device with several adds up theirs within one product, so that
        none of them has a gradient of its own.

    >>> local_gradient(3, 3, "fc/kernel"), local_gradient(0, 7, "fc/kernel")
    ('worker_3/fc/kernel', 'workers_0_to_7/fc/kernel')
    """
    who = f"worker_{first}" if first == last else f"workers_{first}_to_{last}"
    return f"{who}/{parameter}"


def adam_step(m: jax.Array, v: jax.Array, rate: jax.Array | float) -> jax.Array:
    """What Adam adds to a parameter, without bias correction and without its sign; float32.

    .. math:: α m / (\\sqrt{v} + 10^{-8})

    Args:
      m, v: the moments after the step.
      rate: α.

    Reference: arXiv 2604.00726, R_t.

    >>> adam_step(jnp.float32(3), jnp.float32(4), 0.5).item()
    0.75
    """
    return jnp.float32(rate) * wide(m) / (jnp.sqrt(wide(v)) + jnp.float32(1e-8))


def is_sum(name: str) -> bool:
    """Whether parts of the reduction `REDUCTION/KIND/NAME` are added up; else the largest of them counts."""
    return REDUCTIONS[name.partition("/")[0]].across == "sum"
