"""Checksums of the products of a user's step: what its equations stand for (`models.observe.checksum`)."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from ..models.fault import Operand
from ..models.observe.checksum import Performed
from ..models.observe.reductions import OF_PRODUCTS
from .jax_internals import contracted, convolved, gathered

REPORTED = frozenset(f"{reduction}/products" for reduction in OF_PRODUCTS)


@dataclasses.dataclass(frozen=True)
class CheckedProduct:
    """C = A·B of a `dot_general`: C's axes are those of a batch, A's others, B's others.

    >>> CheckedProduct(2, (((1,), (0,)), ((), ()))).compute(jnp.ones((2, 3)), jnp.ones((3, 4))).shape
    (2, 4)

    Attributes:
      rank: of B.
      dimension_numbers: as `lax.dot_general` takes them: axes that are contracted, and those of a batch.
    """

    rank: int
    dimension_numbers: tuple[tuple[tuple[int, ...], tuple[int, ...]], tuple[tuple[int, ...], tuple[int, ...]]]

    @property
    def _free(self) -> tuple[int, ...]:
        (_, contracted), (_, batch) = self.dimension_numbers
        return tuple(axis for axis in range(self.rank) if axis not in (*contracted, *batch))

    @property
    def along(self) -> tuple[int, ...]:
        """The axes of C that come from B alone, which are its last."""
        return tuple(range(-len(self._free), 0))

    def compute(self, a: jax.Array, b: jax.Array) -> jax.Array:
        """C."""
        return lax.dot_general(a, b, self.dimension_numbers)

    def added(self, a: jax.Array, b: jax.Array) -> tuple["CheckedProduct", jax.Array, jax.Array]:
        """B's columns added up."""
        return self, a, jnp.sum(b, self._free, keepdims=True)

    def terms(self, a: jax.Array, b: jax.Array) -> int:
        """Products that are added up to one element of C."""
        return math.prod(a.shape[axis] for axis in self.dimension_numbers[0][0])


@dataclasses.dataclass(frozen=True)
class CheckedConvolution:
    """y = x * kernel of a `conv_general_dilated` without groups.

    Attributes:
      options: keyword arguments of `lax.conv_general_dilated`.
    """

    options: tuple[tuple[str, Any], ...]

    @property
    def _numbers(self) -> lax.ConvDimensionNumbers:
        return dict(self.options)["dimension_numbers"]

    @property
    def along(self) -> tuple[int, ...]:
        """The channels of y."""
        return (self._numbers.out_spec[1],)

    def compute(self, x: jax.Array, kernel: jax.Array) -> jax.Array:
        """y."""
        return lax.conv_general_dilated(x, kernel, **dict(self.options))

    def added(self, x: jax.Array, kernel: jax.Array) -> tuple["CheckedConvolution", jax.Array, jax.Array]:
        """The kernel's output channels added up."""
        return self, x, jnp.sum(kernel, self._numbers.rhs_spec[0], keepdims=True)

    def terms(self, x: jax.Array, kernel: jax.Array) -> int:
        """Products that are added up to one element of y."""
        return kernel.size // kernel.shape[self._numbers.rhs_spec[0]]


def operation(equation: Any) -> CheckedProduct | CheckedConvolution | None:
    """The operation that an equation stands for; None where it has no checksum.

    >>> equation = jax.make_jaxpr(lambda a, b: a @ b)(jnp.ones((2, 3)), jnp.ones((3, 4))).eqns[0]
    >>> operation(equation)
    CheckedProduct(rank=2, dimension_numbers=(((1,), (0,)), ((), ())))
    """
    name, params = equation.primitive.name, equation.params
    tensors = [atom.aval for atom in (*equation.invars[:2], equation.outvars[0])]
    if not all(jnp.issubdtype(one.dtype, jnp.floating) and one.dtype.itemsize <= 4 for one in tensors):
        return None
    if name == "dot_general":
        return CheckedProduct(tensors[Operand.WEIGHT].ndim, contracted(params))
    if name == "conv_general_dilated" and (options := convolved(params)) is not None:
        return CheckedConvolution(options)
    return None


def checks(equation: Any, values: Sequence[Any], result: jax.Array, wanted: Sequence[str]) -> jax.Array:
    """The checksums of an equation's result, float32 [1, reductions]; 0 where it has none.

    Args:
      values: its operands, without a fault.
      wanted: names of reductions, of `models.observe.reductions.OF_PRODUCTS`.
    """
    what = operation(equation)
    if what is None:
        return jnp.zeros((1, len(wanted)), jnp.float32)
    done = Performed(what, gathered(values[0]), gathered(values[1]), None, gathered(result))
    return jnp.stack([OF_PRODUCTS[name].of(done) for name in wanted])[None]
