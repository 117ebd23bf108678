"""Checksums of the products of a user's step: what its equations stand for (`models.observe.checksum`)."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, Self

import jax
import jax.numpy as jnp
from jax import lax

from ..models.fault import Operand
from ..models.observe.checksum import Performed
from ..models.observe.reductions import OF_PRODUCTS
from ..models.operations.operation import Checkable
from .jax_internals import contracted, convolved, gathered


@dataclasses.dataclass(frozen=True)
class CheckedProduct(Checkable):
    """C = A·B of a `dot_general`: C's axes are those of a batch, A's others, B's others.

    >>> CheckedProduct.of(2, (((1,), (0,)), ((), ()))).compute(jnp.ones((2, 3)), jnp.ones((3, 4))).shape
    (2, 4)

    Attributes:
      dimension_numbers: as `lax.dot_general` takes them: axes that are contracted, and those of a batch.
    """

    dimension_numbers: tuple[tuple[tuple[int, ...], tuple[int, ...]], tuple[tuple[int, ...], tuple[int, ...]]]
    along: tuple[int, ...]
    columns: tuple[int, ...]

    @classmethod
    def of(cls, rank: int, dimension_numbers: Any) -> Self:
        """That of a B of this rank: the axes of C that come from B alone are its last."""
        (_, summed), (_, batch) = dimension_numbers
        columns = tuple(axis for axis in range(rank) if axis not in (*summed, *batch))
        return cls(dimension_numbers, tuple(range(-len(columns), 0)), columns)

    def compute(self, a: jax.Array, b: jax.Array) -> jax.Array:
        return lax.dot_general(a, b, self.dimension_numbers)

    def terms(self, a: jax.Array, b: jax.Array) -> int:
        return math.prod(a.shape[axis] for axis in self.dimension_numbers[0][0])


@dataclasses.dataclass(frozen=True)
class CheckedConvolution(Checkable):
    """y = x * kernel of a `conv_general_dilated` without groups.

    Attributes:
      options: keyword arguments of `lax.conv_general_dilated`.
    """

    options: tuple[tuple[str, Any], ...]
    along: tuple[int, ...]
    columns: tuple[int, ...]

    def compute(self, x: jax.Array, kernel: jax.Array) -> jax.Array:
        return lax.conv_general_dilated(x, kernel, **dict(self.options))


def operation(equation: Any) -> Checkable | None:
    """The operation that an equation stands for; None where it has no checksum.

    >>> equation = jax.make_jaxpr(lambda a, b: a @ b)(jnp.ones((2, 3)), jnp.ones((3, 4))).eqns[0]
    >>> operation(equation)
    CheckedProduct(dimension_numbers=(((1,), (0,)), ((), ())), along=(-1,), columns=(1,))
    """
    name, params = equation.primitive.name, equation.params
    tensors = [atom.aval for atom in (*equation.invars[:2], equation.outvars[0])]
    if not all(jnp.issubdtype(one.dtype, jnp.floating) and one.dtype.itemsize <= 4 for one in tensors):
        return None
    if name == "dot_general":
        return CheckedProduct.of(tensors[Operand.WEIGHT].ndim, contracted(params))
    if name == "conv_general_dilated" and (options := convolved(params)) is not None:
        numbers = params["dimension_numbers"]
        return CheckedConvolution(options, (numbers.out_spec[1],), (numbers.rhs_spec[0],))
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
