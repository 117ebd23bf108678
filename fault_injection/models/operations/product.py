"""Products of two activations, and their gradients."""

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp
from jax import lax

from ..fault import Operand
from .operation import Operation


@dataclasses.dataclass(frozen=True)
class Product:
    """y = a @ b, where both belong to workers. a [R,…,M,K], b [R,…,K,N] -> y [R,…,M,N].

    >>> jax.eval_shape(Product().compute, jnp.ones((1, 4, 2, 3)), jnp.ones((1, 4, 3, 5))).shape
    (1, 4, 2, 5)
    """

    gradient: ClassVar[Operand | None] = None
    along: ClassVar[tuple[int, ...]] = (-1,)

    def compute(self, a: jax.Array, b: jax.Array) -> jax.Array:
        """y of all workers."""
        return a @ b

    def operands(self, a: jax.Array, b: jax.Array, r: jax.Array | int) -> tuple[jax.Array, jax.Array]:
        """a […,M,K] and b […,K,N] of one worker."""
        return a[r], b[r]

    def product(self, a: jax.Array, b: jax.Array) -> jax.Array:
        """y […,M,N] of one worker."""
        return a @ b

    def added(self, a: jax.Array, b: jax.Array) -> tuple[Operation, jax.Array, jax.Array]:
        """The columns of b added up."""
        return self, a, jnp.sum(b, -1, keepdims=True)

    def terms(self, a: jax.Array, b: jax.Array) -> int:
        """K."""
        return b.shape[-2]


@dataclasses.dataclass(frozen=True)
class ProductOfRows:
    """y = a @ bᵀ, where both belong to workers. a [R,…,M,K], b [R,…,N,K] -> y [R,…,M,N].

    XLA for CPUs folds no transposition into a batched product: `Product` of a transposed b takes twice the time.

    >>> jax.eval_shape(ProductOfRows().compute, jnp.ones((1, 4, 2, 3)), jnp.ones((1, 4, 5, 3))).shape
    (1, 4, 2, 5)
    """

    gradient: ClassVar[Operand | None] = None
    along: ClassVar[tuple[int, ...]] = (-1,)

    def compute(self, a: jax.Array, b: jax.Array) -> jax.Array:
        """y of all workers."""
        batch = tuple(range(a.ndim - 2))
        return lax.dot_general(a, b, (((a.ndim - 1,), (b.ndim - 1,)), (batch, batch)))

    def operands(self, a: jax.Array, b: jax.Array, r: jax.Array | int) -> tuple[jax.Array, jax.Array]:
        """a […,M,K] and the transposed b […,K,N] of one worker."""
        return a[r], b[r].mT

    def product(self, a: jax.Array, transposed: jax.Array) -> jax.Array:
        """y […,M,N] of one worker."""
        return a @ transposed

    def added(self, a: jax.Array, b: jax.Array) -> tuple[Operation, jax.Array, jax.Array]:
        """The rows of b added up."""
        return self, a, jnp.sum(b, -2, keepdims=True)

    def terms(self, a: jax.Array, b: jax.Array) -> int:
        """K."""
        return b.shape[-1]


@dataclasses.dataclass(frozen=True)
class ProductGradIn:
    """da = dy @ bᵀ. dy [R,…,M,N], b [R,…,K,N] -> da [R,…,M,K].

    >>> jax.eval_shape(ProductGradIn().compute, jnp.ones((1, 4, 2, 5)), jnp.ones((1, 4, 3, 5))).shape
    (1, 4, 2, 3)
    """

    gradient: ClassVar[Operand | None] = Operand.INPUT
    along: ClassVar[tuple[int, ...]] = (-1,)

    def compute(self, dy: jax.Array, b: jax.Array) -> jax.Array:
        """da of all workers."""
        return dy @ b.mT

    def operands(self, dy: jax.Array, b: jax.Array, r: jax.Array | int) -> tuple[jax.Array, jax.Array]:
        """dy […,M,N] of one worker; its transposed b […,N,K]."""
        return dy[r], b[r].mT

    def product(self, dy: jax.Array, transposed: jax.Array) -> jax.Array:
        """da […,M,K] of one worker."""
        return dy @ transposed

    def added(self, dy: jax.Array, b: jax.Array) -> tuple[Operation, jax.Array, jax.Array]:
        """The rows of b added up."""
        return self, dy, jnp.sum(b, -2, keepdims=True)

    def terms(self, dy: jax.Array, b: jax.Array) -> int:
        """N."""
        return b.shape[-1]


@dataclasses.dataclass(frozen=True)
class ProductGradWt:
    """db = aᵀ @ dy. a [R,…,M,K], dy [R,…,M,N] -> db [R,…,K,N].

    >>> jax.eval_shape(ProductGradWt().compute, jnp.ones((1, 4, 2, 3)), jnp.ones((1, 4, 2, 5))).shape
    (1, 4, 3, 5)
    """

    gradient: ClassVar[Operand | None] = Operand.WEIGHT
    along: ClassVar[tuple[int, ...]] = (-1,)

    def compute(self, a: jax.Array, dy: jax.Array) -> jax.Array:
        """db of all workers."""
        return a.mT @ dy

    def operands(self, a: jax.Array, dy: jax.Array, r: jax.Array | int) -> tuple[jax.Array, jax.Array]:
        """The transposed a […,K,M] of one worker; its dy […,M,N]."""
        return a[r].mT, dy[r]

    def product(self, transposed: jax.Array, dy: jax.Array) -> jax.Array:
        """db […,K,N] of one worker."""
        return transposed @ dy

    def added(self, a: jax.Array, dy: jax.Array) -> tuple[Operation, jax.Array, jax.Array]:
        """The columns of dy added up."""
        return self, a, jnp.sum(dy, -1, keepdims=True)

    def terms(self, a: jax.Array, dy: jax.Array) -> int:
        """M."""
        return dy.shape[-2]
