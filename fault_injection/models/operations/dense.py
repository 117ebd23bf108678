"""Products with a matrix of parameters, and their gradients."""

import dataclasses
import math
from typing import ClassVar

import jax
import jax.numpy as jnp

from ..fault import Operand
from .operation import Operation


@dataclasses.dataclass(frozen=True)
class Dense:
    """y = x @ kernel. x [R,b,…,I], kernel [I,O] -> y [R,b,…,O], before the bias.

    >>> jax.eval_shape(Dense().compute, jnp.ones((1, 4, 3)), jnp.ones((3, 5))).shape
    (1, 4, 5)
    """

    gradient: ClassVar[Operand | None] = None
    along: ClassVar[tuple[int, ...]] = (-1,)

    def compute(self, x: jax.Array, kernel: jax.Array) -> jax.Array:
        """y of all workers."""
        return x @ kernel

    def operands(self, x: jax.Array, kernel: jax.Array, r: jax.Array | int) -> tuple[jax.Array, jax.Array]:
        """x [b,…,I] of one worker; kernel [I,O]."""
        return x[r], kernel

    def product(self, x: jax.Array, kernel: jax.Array) -> jax.Array:
        """y [b,…,O] of one worker."""
        return x @ kernel

    def added(self, x: jax.Array, kernel: jax.Array) -> tuple[Operation, jax.Array, jax.Array]:
        """The columns of the kernel added up."""
        return self, x, jnp.sum(kernel, -1, keepdims=True)

    def terms(self, x: jax.Array, kernel: jax.Array) -> int:
        """I."""
        return kernel.shape[0]


@dataclasses.dataclass(frozen=True)
class DenseGradIn:
    """dx = dy @ kernelᵀ. dy [R,b,…,O], kernel [I,O] -> dx [R,b,…,I].

    >>> jax.eval_shape(DenseGradIn().compute, jnp.ones((1, 4, 5)), jnp.ones((3, 5))).shape
    (1, 4, 3)
    """

    gradient: ClassVar[Operand | None] = Operand.INPUT
    along: ClassVar[tuple[int, ...]] = (-1,)

    def compute(self, dy: jax.Array, kernel: jax.Array) -> jax.Array:
        """dx of all workers."""
        return dy @ kernel.T

    def operands(self, dy: jax.Array, kernel: jax.Array, r: jax.Array | int) -> tuple[jax.Array, jax.Array]:
        """dy [b,…,O] of one worker; the transposed kernel [O,I]."""
        return dy[r], kernel.T

    def product(self, dy: jax.Array, transposed: jax.Array) -> jax.Array:
        """dx [b,…,I] of one worker."""
        return dy @ transposed

    def added(self, dy: jax.Array, kernel: jax.Array) -> tuple[Operation, jax.Array, jax.Array]:
        """The rows of the kernel added up."""
        return self, dy, jnp.sum(kernel, 0, keepdims=True)

    def terms(self, dy: jax.Array, kernel: jax.Array) -> int:
        """O."""
        return kernel.shape[1]


@dataclasses.dataclass(frozen=True)
class DenseGradWt:
    """dkernel = xᵀ @ dy, summed over the workers. x [R,b,…,I], dy [R,b,…,O] -> [I,O].

    The axes … are folded into b, which becomes n = b·….

    >>> jax.eval_shape(DenseGradWt().compute, jnp.ones((1, 4, 3)), jnp.ones((1, 4, 5))).shape
    (3, 5)
    """

    gradient: ClassVar[Operand | None] = Operand.WEIGHT
    along: ClassVar[tuple[int, ...]] = (-1,)

    def compute(self, x: jax.Array, dy: jax.Array) -> jax.Array:
        """dkernel, summed over all workers."""
        return x.reshape(-1, x.shape[-1]).T @ dy.reshape(-1, dy.shape[-1])

    def operands(self, x: jax.Array, dy: jax.Array, r: jax.Array | int) -> tuple[jax.Array, jax.Array]:
        """The transposed x [I,n] of one worker; its dy [n,O]."""
        return x[r].reshape(-1, x.shape[-1]).T, dy[r].reshape(-1, dy.shape[-1])

    def product(self, transposed: jax.Array, dy: jax.Array) -> jax.Array:
        """dkernel [I,O] of one worker."""
        return transposed @ dy

    def from_published(self, output: jax.Array) -> jax.Array:
        """[I,O] as it is."""
        return output

    def added(self, x: jax.Array, dy: jax.Array) -> tuple[Operation, jax.Array, jax.Array]:
        """The columns of dy added up."""
        return self, x, jnp.sum(dy, -1, keepdims=True)

    def terms(self, x: jax.Array, dy: jax.Array) -> int:
        """R·b·…."""
        return math.prod(dy.shape[:-1])
