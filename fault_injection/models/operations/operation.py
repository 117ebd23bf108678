"""What an operation is: see the package."""

import abc
import math
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from ..fault import Operand


class Operation(abc.ABC):
    """One operation on two tensors, a product or a lookup: hashable, its fields being static.

    Attributes:
      gradient: which operand is a gradient of the loss; None in a forward pass.
    """

    gradient: ClassVar[Operand | None] = None

    @abc.abstractmethod
    def compute(self, a: jax.Array, b: jax.Array, /) -> Any:
        """The result for all workers, in the fastest formulation: an array, or a `SparseGradient`.

        The class says what `a` and `b` are; each that belongs to workers has them as leading axis [R].
        """

    @abc.abstractmethod
    def operands(self, a: jax.Array, b: jax.Array, r: jax.Array | int, /) -> tuple[jax.Array, jax.Array]:
        """Input and weight operand of worker `r` (its number on this device), in the published layout."""

    @abc.abstractmethod
    def product(self, a: jax.Array, b: jax.Array, /) -> jax.Array:
        """The output operand of one worker from its input and weight operand, all in the published layout."""


class Summed(Operation):
    """An operation with one result for all workers, their sum; the others have one result for each worker."""

    def from_published(self, output: jax.Array, /) -> jax.Array:
        """An output operand in the layout of `compute`'s result, which most have already."""
        return output


class SparseGradient(NamedTuple):
    """The gradient of a table [V,C], given by the rows that are read: all others are zero.

    Attributes:
      rows: int32 [n], distinct and rising; V where a place is empty.
      values: [n,C], the gradient of each of these rows; 0 where a place is empty.
    """

    rows: jax.Array
    values: jax.Array


class Checkable(abc.ABC):
    """An operation linear in each operand, so that sums of its results are results of sums: lookups are none.

    Attributes:
      along: axes of `compute`'s result that are added up.
      columns: axes of the second operand that these come from.
    """

    along: tuple[int, ...] = (-1,)
    columns: tuple[int, ...] = (-1,)

    @abc.abstractmethod
    def compute(self, a: jax.Array, b: jax.Array, /) -> Any:
        """The result."""

    def added(self, a: jax.Array, b: jax.Array, /) -> "tuple[Checkable, jax.Array, jax.Array]":
        """An operation and operands that give `compute`'s result added up over `along`, at a fraction of its cost."""
        return self, a, jnp.sum(b, self.columns, keepdims=True)

    def terms(self, a: jax.Array, b: jax.Array, /) -> int:
        """How many products are added up to one element of the result; at most, where a stride leaves some out."""
        return b.size // math.prod(b.shape[axis] for axis in self.columns)
