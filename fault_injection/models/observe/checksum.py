"""Checksums of products: sums of results, compared with the results of sums (docs/detection_checksum.md).

The columns of C = A·B add up to A times the sum of B's columns.  Both sides are computed in float32.
They differ by rounding, or because C is wrong.  A checksum is the difference in units of what
rounding can explain, of the row where that is largest: above 1, C is wrong.
"""

import math
from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
from flax import struct

from ..isolation import fence, isolated
from ..largest import largest
from ..operations.operation import Checkable
from ..precision import as_multiplied

DEVIATIONS = 8.0  # standard deviations of what many roundings add up to
UNIT = 2.0**-24  # unit roundoff of float32


@struct.dataclass
class Performed:
    """An operation that has been performed for all workers of a device.

    Attributes:
      operation: which one.
      a, b: its operands as they lie in memory.
      scales: float32 [2], by which the result was multiplied; None for none.
      result: what it gave.
    """

    operation: Checkable = struct.field(pytree_node=False)
    a: jax.Array
    b: jax.Array
    scales: jax.Array | None
    result: jax.Array

    @property
    def columns(self) -> int:
        """How many results are added up: n."""
        return math.prod(self.result.shape[axis] for axis in self.operation.along)

    @property
    def terms(self) -> int:
        """How many products are added up to one result: K."""
        return self.operation.terms(self.a, self.b)

    @property
    def unit(self) -> float:
        """The unit roundoff of the results' format: u."""
        return float(jnp.finfo(self.result.dtype).eps) / 2

    @property
    def underflow(self) -> float:
        """What is lost of a row's sum where results are too small for their format, and products for float32."""
        lost = float(jnp.finfo(self.result.dtype).smallest_subnormal) + self.terms * float(jnp.finfo(jnp.float32).tiny)
        return self.columns * lost


Tolerance = Callable[[Performed, jax.Array, jax.Array, jax.Array], jax.Array]


def bound(done: Performed, a: jax.Array, b: jax.Array, results: jax.Array) -> jax.Array:
    """What rounding can make of a row's difference: float32, one per row.

    Args:
      a, b: the operands in float32; of eight bits, the first times the scales.
      results: in float32.
    """
    magnitudes = _of_sums(done, jnp.abs(a), jnp.abs(b))
    sums = 2 * (_growth(done.terms) + _growth(done.columns)) * UNIT
    # Right results are no larger than the magnitudes.  So a wrong one does not excuse itself by its size.
    rounded = jnp.minimum(_added_up(done, jnp.abs(results)), magnitudes)
    return done.unit * rounded + sums * magnitudes + done.underflow


def _growth(terms: int) -> float:
    """How many units of roundoff a sum of so many terms loses at most, in units of the sum of their magnitudes."""
    return min(terms, DEVIATIONS * math.sqrt(terms))


def deviation(done: Performed, a: jax.Array, b: jax.Array, results: jax.Array) -> jax.Array:
    """As `bound`, but the sums' roundings are independent of each other: so many deviations of what they add up to.

    The results' own roundings are not: columns can be alike, as those of a token that comes twice.
    Images and kernel positions are alike most often, in backgrounds: where those are added up, this
    is `bound`.
    """
    if done.operation.along != (-1,):
        return bound(done, a, b, results)
    n, terms = done.columns, done.terms
    top_a, top_b = (jnp.maximum(largest(t), jnp.finfo(t.dtype).tiny) for t in (a, b))
    operation, a_sum, b_sum = done.operation.added(a / top_a, b / top_b)
    top = top_a * top_b  # so that no square overflows
    products = _of_sums(done, (a / top_a) ** 2, (b / top_b) ** 2)
    sums = operation.compute(a_sum**2, b_sum**2)
    results = results / top
    # By the inequality of Cauchy and Schwarz, right results are no larger than what stands second.
    rounded = jnp.minimum(_added_up(done, jnp.abs(results)), jnp.sqrt(n * terms * products))
    squares = jnp.minimum(_added_up(done, results**2), terms * products)
    square = jnp.minimum(_added_up(done, results) ** 2, terms * sums)
    variance = (
        (terms + n) / 2 * products
        + (terms / 2 + n / 3) * sums
        + (terms / 3 + n / 2) * squares
        + (terms + n) / 3 * square
    )
    least = 2.0**-60 * terms * n  # squares of less than this share of the largest product are lost
    return (done.unit * rounded + DEVIATIONS * UNIT * jnp.sqrt(variance / 3) + least) * top + done.underflow


@partial(jax.jit, static_argnums=0)
@isolated("true")
def ratio(tolerance: Tolerance, done: Performed) -> jax.Array:
    """A checksum: float32, the largest of all rows' differences, each divided by its tolerance.

    It is infinite where a result or a sum is not finite.

    >>> from fault_injection.models.operations.product import Dense
    >>> a, b = jnp.ones((1, 2, 3)), jnp.ones((3, 4))
    >>> good, bad = (Performed(Dense(), a, b, None, jnp.full((1, 2, 4), c)) for c in (3.0, 3.001))
    >>> ratio(bound, good).item(), ratio(bound, bad).item() > 1
    (0.0, True)
    """
    # What the compiler makes of the step must not depend on who else reads its tensors.
    a, b, results = fence(done.a, done.b, done.result)
    a, b = as_multiplied(a, b, done.result.dtype.name)
    results = results.astype(a.dtype)
    if done.scales is not None:
        a = a * (done.scales[0] * done.scales[1])
    with jax.default_matmul_precision("highest"):
        differences = jnp.abs(_added_up(done, results) - _of_sums(done, a, b))
        tolerances = tolerance(done, a, b, results)
    sound = jnp.isfinite(differences) & jnp.isfinite(tolerances)
    return largest(jnp.where(sound, differences / tolerances, jnp.inf))


def _added_up(done: Performed, tensor: jax.Array) -> jax.Array:
    """The columns of a tensor like the result added up."""
    return jnp.sum(tensor, done.operation.along, keepdims=True)


def _of_sums(done: Performed, a: jax.Array, b: jax.Array) -> jax.Array:
    """The same sums for other operands, computed from sums of an operand."""
    operation, a, b = done.operation.added(a, b)
    return operation.compute(a, b)
