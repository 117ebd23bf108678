"""In what form the operands of a site are kept: as XLA computes with them on CPUs.

A strike reads the operands of its site, also where nothing strikes.  XLA on CPUs multiplies matrices: it flattens the
axes of a product, transposes the kernel of a convolution, and widens bfloat16 to float32, as a part of what computes
the operand.  Where a strike reads the operand as the user wrote it, XLA computes it twice, once in either form.  So
here the operand is made once, in the form in which it is multiplied, and a strike that is really made turns it back.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ..models.isolation import fence, isolated
from ..models.overwrite import bits
from .jax_internals import contracted, evaluate, is_widened, kernel_axes, wide_product


@dataclasses.dataclass(frozen=True)
class Kept:
    """How one operand is kept: rounded, its axes in this order, and reshaped.

    Attributes:
      order: of its axes.
      shape: as it is kept.
      dtype: as it is kept.
      was: its shape and dtype in the step.
    """

    order: tuple[int, ...]
    shape: tuple[int, ...]
    dtype: Any
    was: jax.ShapeDtypeStruct

    def of(self, tensor: jax.Array) -> jax.Array:
        """The tensor as it is kept."""
        return lax.transpose(rounded(tensor).astype(self.dtype), self.order).reshape(self.shape)

    def back(self, kept: jax.Array) -> jax.Array:
        """The tensor as it is in the step."""
        ordered = kept.reshape([self.was.shape[axis] for axis in self.order])
        tensor = lax.transpose(ordered, np.argsort(self.order).tolist())
        if self.dtype == self.was.dtype:
            return tensor
        words = (bits(tensor) >> 16).astype(jnp.uint16)  # to round would make one NaN of all of them
        return lax.bitcast_convert_type(words, self.was.dtype)


@dataclasses.dataclass(frozen=True)
class Form:
    """How the operands of a site are kept, and what is computed of them.

    Attributes:
      equation: the site's.
      operands: how each of them is kept.
      dimension_numbers: of the product of what is kept; None where the equation is evaluated as it stands.
      apart: whether it is compiled as a function of its own.  XLA on CPUs writes a product whose result is one number,
        or that sums nothing, as multiplications and additions, and fuses these with what is around them, in which the
        choice of the multiplication that is fused with an addition depends on the whole program.
    """

    equation: Any
    operands: tuple[Kept, ...]
    dimension_numbers: Any = None
    apart: bool = False

    def compute(self, operands: Sequence[jax.Array]) -> jax.Array:
        """The result, as it is in the step, of operands as they are kept."""
        if self.apart:
            with isolated("false"):
                return jax.jit(self._compute)(operands)
        return self._compute(operands)

    def _compute(self, operands: Sequence[jax.Array]) -> jax.Array:
        if self.dimension_numbers is None:
            given = [one.back(kept) for one, kept in zip(self.operands, operands, strict=True)]
            return rounded(evaluate(self.equation, given)[0])
        was = self.equation.outvars[0].aval
        a, b = operands
        return rounded(wide_product(self.equation, a, b, self.dimension_numbers).astype(was.dtype).reshape(was.shape))


def form_of(equation: Any, as_written: bool) -> Form:
    """The form of a site's operands.

    Args:
      as_written: whether they are kept as the step has them: where devices share them out, and where this is not a
        CPU, other forms would cost communication or memory.

    >>> x, w = jnp.ones((2, 3, 4), "bfloat16"), jnp.ones((4, 5), "bfloat16")
    >>> form = form_of(jax.make_jaxpr(jnp.matmul)(x, w).eqns[0], as_written=False)
    >>> [(kept.shape, str(jnp.dtype(kept.dtype))) for kept in form.operands]
    [((6, 4), 'float32'), ((4, 5), 'float32')]
    """
    was = [jax.ShapeDtypeStruct(atom.aval.shape, atom.aval.dtype) for atom in equation.invars]
    as_they_are = tuple(Kept(tuple(range(len(one.shape))), one.shape, one.dtype, one) for one in was)
    if as_written or equation.primitive.name not in ("dot_general", "conv_general_dilated"):
        return Form(equation, as_they_are)
    if equation.primitive.name == "conv_general_dilated":
        x, kernel = as_they_are
        inner, outputs = kernel_axes(equation.params)
        size = math.prod(kernel.shape[axis] for axis in inner)
        matrix = dataclasses.replace(kernel, order=(*inner, outputs), shape=(size, kernel.shape[outputs]))
        return Form(equation, (x, matrix))
    wide, (along, batches) = is_widened(equation), contracted(equation.params)
    if along[0]:  # in one order in both operands
        along = tuple(zip(*sorted(zip(*along, strict=True)), strict=True))
    matrices, summed = [], []
    for one, summed_axes, batch, is_first in zip(as_they_are, along, batches, (True, False), strict=True):
        order, sums_last = _as_matrices(len(one.order), summed_axes, batch, is_first)
        shape = tuple(math.prod(one.shape[axis] for axis in group) for group in (order if batch else order[1:]))
        axes = tuple(axis for group in order for axis in group)
        if wide:
            one = Kept(axes, shape, np.dtype(np.float32), one.was)
        elif axes == one.order:  # else XLA transposes float32 faster than a transposition that is made here
            one = dataclasses.replace(one, shape=shape)
        matrices.append(one)
        summed.append((len(shape) - 1 if sums_last else len(shape) - 2,))
    several = (0,) if batches[0] else ()
    sums = math.prod(was[0].shape[axis] for axis in along[0])
    apart = math.prod(equation.outvars[0].aval.shape) == 1 or sums == 1
    return Form(equation, tuple(matrices), (tuple(summed), (several, several)) if wide else None, apart)


def _as_matrices(
    rank: int, summed: Sequence[int], batch: Sequence[int], is_first: bool
) -> tuple[tuple[Sequence[int], ...], bool]:
    """The axes of an operand in three groups, as they follow each other in matrices; and whether summed ones are last.

    They stay in the order in which they lie in memory, where that makes matrices.
    """
    rest = [axis for axis in range(rank) if axis not in batch]
    free = [axis for axis in rest if axis not in summed]
    sums_last = rest == [*free, *summed] or (is_first and rest != [*summed, *free])
    return ((batch, free, summed) if sums_last else (batch, summed, free)), sums_last


def rounded(tensor: jax.Array) -> jax.Array:
    """A tensor of 16-bit numbers, really rounded to them.

    XLA on CPUs computes these in float32, and leaves out a rounding that is followed by a widening, also across a
    barrier; but not across a strike.  So the bits would depend on whether there is one.  It has to round where
    integers of 16 bits are asked for.
    """
    if tensor.dtype not in (jnp.bfloat16, jnp.float16):
        return tensor
    return lax.bitcast_convert_type(fence(bits(tensor)), tensor.dtype)
