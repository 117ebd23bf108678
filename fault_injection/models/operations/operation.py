"""What an operation is: see the package."""

from typing import Any, ClassVar, NamedTuple, Protocol, runtime_checkable

import jax

from ..fault import Operand


class Operation(Protocol):
    """One operation on two tensors, a product or a lookup: hashable, its fields being static.

    Attributes:
      gradient: which operand is a gradient of the loss; None in a forward pass.
    """

    gradient: ClassVar[Operand | None]

    def compute(self, a: jax.Array, b: jax.Array, /) -> Any:
        """The result for all workers, in the fastest formulation: an array, or a `SparseGradient`.

        The class says what `a` and `b` are; each that belongs to workers has them as leading axis [R].
        """

    def operands(self, a: jax.Array, b: jax.Array, r: jax.Array | int, /) -> tuple[jax.Array, jax.Array]:
        """Input and weight operand of worker `r` (its number on this device), in the published layout."""

    def product(self, a: jax.Array, b: jax.Array, /) -> jax.Array:
        """The output operand of one worker from its input and weight operand, all in the published layout."""


@runtime_checkable
class Summed(Operation, Protocol):
    """An operation with one result for all workers, their sum; the others have one result for each worker."""

    def from_published(self, output: jax.Array, /) -> jax.Array:
        """An output operand in the layout of `compute`'s result."""


class SparseGradient(NamedTuple):
    """The gradient of a table [V,C], given by the rows that are read: all others are zero.

    Attributes:
      rows: int32 [n], distinct and rising; V where a place is empty.
      values: [n,C], the gradient of each of these rows; 0 where a place is empty.
    """

    rows: jax.Array
    values: jax.Array


@runtime_checkable
class Checkable(Protocol):
    """An operation linear in each operand, so that sums of its results are results of sums: lookups are none."""

    @property
    def along(self) -> tuple[int, ...]:
        """Axes of `compute`'s result that are added up."""

    def compute(self, a: jax.Array, b: jax.Array, /) -> Any:
        """The result."""

    def added(self, a: jax.Array, b: jax.Array, /) -> "tuple[Checkable, jax.Array, jax.Array]":
        """An operation and operands that give `compute`'s result added up over `along`, at a fraction of its cost."""

    def terms(self, a: jax.Array, b: jax.Array, /) -> int:
        """How many products are added up to one element of the result."""
