"""Products of matrices and their gradients: of an activation with parameters, and of two activations."""

import dataclasses
import math

import jax
import jax.numpy as jnp  # noqa: F401  in the examples
from jax import lax

from ..fault import Operand
from .operation import Checkable, Operation, Summed


@dataclasses.dataclass(frozen=True)
class MatrixProduct(Operation, Checkable):
    """A product whose published form is `a @ b`."""

    def compute(self, a: jax.Array, b: jax.Array) -> jax.Array:
        return a @ b

    def product(self, a: jax.Array, b: jax.Array) -> jax.Array:
        return a @ b


class Dense(MatrixProduct):
    """y = x @ kernel. x [R,b,…,I], kernel [I,O] -> y [R,b,…,O], before the bias.

    >>> jax.eval_shape(Dense().compute, jnp.ones((1, 4, 3)), jnp.ones((3, 5))).shape
    (1, 4, 5)
    """

    def operands(self, x: jax.Array, kernel: jax.Array, r: jax.Array | int) -> tuple[jax.Array, jax.Array]:
        """x [b,…,I] of one worker; kernel [I,O]."""
        return x[r], kernel


class DenseGradIn(MatrixProduct):
    """dx = dy @ kernelᵀ. dy [R,b,…,O], kernel [I,O] -> dx [R,b,…,I].

    >>> jax.eval_shape(DenseGradIn().compute, jnp.ones((1, 4, 5)), jnp.ones((3, 5))).shape
    (1, 4, 3)
    """

    gradient = Operand.INPUT
    columns = (0,)

    def compute(self, dy: jax.Array, kernel: jax.Array) -> jax.Array:
        return dy @ kernel.T

    def operands(self, dy: jax.Array, kernel: jax.Array, r: jax.Array | int) -> tuple[jax.Array, jax.Array]:
        """dy [b,…,O] of one worker; the transposed kernel [O,I]."""
        return dy[r], kernel.T


class DenseGradWt(MatrixProduct, Summed):
    """dkernel = xᵀ @ dy, summed over the workers. x [R,b,…,I], dy [R,b,…,O] -> [I,O].

    The axes … are folded into b, which becomes n = b·….

    >>> jax.eval_shape(DenseGradWt().compute, jnp.ones((1, 4, 3)), jnp.ones((1, 4, 5))).shape
    (3, 5)
    """

    gradient = Operand.WEIGHT

    def compute(self, x: jax.Array, dy: jax.Array) -> jax.Array:
        return x.reshape(-1, x.shape[-1]).T @ dy.reshape(-1, dy.shape[-1])

    def operands(self, x: jax.Array, dy: jax.Array, r: jax.Array | int) -> tuple[jax.Array, jax.Array]:
        """The transposed x [I,n] of one worker; its dy [n,O]."""
        return x[r].reshape(-1, x.shape[-1]).T, dy[r].reshape(-1, dy.shape[-1])


class Product(MatrixProduct):
    """y = a @ b, where both belong to workers. a [R,…,M,K], b [R,…,K,N] -> y [R,…,M,N].

    >>> jax.eval_shape(Product().compute, jnp.ones((1, 4, 2, 3)), jnp.ones((1, 4, 3, 5))).shape
    (1, 4, 2, 5)
    """

    def operands(self, a: jax.Array, b: jax.Array, r: jax.Array | int) -> tuple[jax.Array, jax.Array]:
        """a […,M,K] and b […,K,N] of one worker."""
        return a[r], b[r]

    def terms(self, a: jax.Array, b: jax.Array) -> int:
        return math.prod(b.shape[-2:]) // b.shape[self.columns[0]]


class ProductOfRows(Product):
    """y = a @ bᵀ, where both belong to workers. a [R,…,M,K], b [R,…,N,K] -> y [R,…,M,N].

    XLA for CPUs folds no transposition into a batched product: `Product` of a transposed b takes twice the time.

    >>> jax.eval_shape(ProductOfRows().compute, jnp.ones((1, 4, 2, 3)), jnp.ones((1, 4, 5, 3))).shape
    (1, 4, 2, 5)
    """

    columns = (-2,)

    def compute(self, a: jax.Array, b: jax.Array) -> jax.Array:
        batch = tuple(range(a.ndim - 2))
        return lax.dot_general(a, b, (((a.ndim - 1,), (b.ndim - 1,)), (batch, batch)))

    def operands(self, a: jax.Array, b: jax.Array, r: jax.Array | int) -> tuple[jax.Array, jax.Array]:
        """a […,M,K] and the transposed b […,K,N] of one worker."""
        return a[r], b[r].mT


class ProductGradIn(Product):
    """da = dy @ bᵀ. dy [R,…,M,N], b [R,…,K,N] -> da [R,…,M,K].

    >>> jax.eval_shape(ProductGradIn().compute, jnp.ones((1, 4, 2, 5)), jnp.ones((1, 4, 3, 5))).shape
    (1, 4, 2, 3)
    """

    gradient = Operand.INPUT
    columns = (-2,)

    def compute(self, dy: jax.Array, b: jax.Array) -> jax.Array:
        return dy @ b.mT

    def operands(self, dy: jax.Array, b: jax.Array, r: jax.Array | int) -> tuple[jax.Array, jax.Array]:
        """dy […,M,N] of one worker; its transposed b […,N,K]."""
        return dy[r], b[r].mT


class ProductGradWt(Product):
    """db = aᵀ @ dy. a [R,…,M,K], dy [R,…,M,N] -> db [R,…,K,N].

    >>> jax.eval_shape(ProductGradWt().compute, jnp.ones((1, 4, 2, 3)), jnp.ones((1, 4, 2, 5))).shape
    (1, 4, 3, 5)
    """

    gradient = Operand.WEIGHT

    def compute(self, a: jax.Array, dy: jax.Array) -> jax.Array:
        return a.mT @ dy

    def operands(self, a: jax.Array, dy: jax.Array, r: jax.Array | int) -> tuple[jax.Array, jax.Array]:
        """The transposed a […,K,M] of one worker; its dy […,M,N]."""
        return a[r].mT, dy[r]
