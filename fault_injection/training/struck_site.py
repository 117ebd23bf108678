"""One operation of a user's step: fenced, and struck where the fault is aimed at it."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from models.fault import LARGEST_OPERAND, Fault, Integer, Operand, Struck, bits, nothing_struck
from models.faulty_product import faulty_product
from models.isolation import fence

from .jax_internals import evaluate, gathered, scattered

NOWHERE = -1


class Aim(NamedTuple):
    """Where a fault strikes, as a body is told it.  All of it is traced.

    Attributes:
      site: int32, the number of the struck site, counted from the body's first; outside of its sites, nothing is.
      turn: int32, the turn of the loops around the body, counted through all of them.
      worker: int32, the number of the device that runs the body, among those that each run it with operands of their
        own; −1 where all share it.
      first, last: int32, the smallest and the largest position that is struck.
      fault: positions count through the operands of all turns, one after the other.
      seen: what it has done so far.  Handed from site to site: adding up what each did would cost more than the sites.
    """

    site: jax.Array
    turn: Integer
    worker: Integer
    first: jax.Array
    last: jax.Array
    fault: Fault
    seen: Struck


def aimed(fault: Fault, site: jax.Array) -> Aim:
    """The aim of a whole step, with the struck site's number."""
    index = jnp.asarray(fault.index)
    first = jnp.min(jnp.where(index >= 0, index, LARGEST_OPERAND))
    last = jnp.max(index)  # or below zero, as all that pads
    return Aim(site, np.int32(0), np.int32(-1), first, last, fault, nothing_struck(fault))


def summed(struck: Struck, axes: tuple[str, ...]) -> Struck:
    """What a fault has done on any of the devices of a mesh: one sum of one vector, because each collective waits."""
    leaves, tree = jax.tree.flatten(struck)
    words = lax.psum(jnp.concatenate([bits(leaf).reshape(-1) for leaf in leaves]), axes)
    ends = np.cumsum([leaf.size for leaf in leaves])[:-1]
    parts = zip(jnp.split(words, ends), leaves, strict=True)
    each = [lax.bitcast_convert_type(part.reshape(leaf.shape), leaf.dtype) for part, leaf in parts]
    return jax.tree.unflatten(tree, each)


def strike_site(
    equation: Any, values: list[Any], aim: Aim | None, laid_out: Callable[[int, jax.Array], jax.Array]
) -> tuple[jax.Array, Struck | None]:
    """One operation; struck where the aim says so, and fenced in any case.

    The strike is the one turn of a while loop whose carry the compiler updates in place.  A conditional would copy
    what passes it.

    Args:
      laid_out: fixes how the first operand, the second, or the result is shared out among devices.
    """
    operands = fence(*values)
    operands = (*(laid_out(place, one) for place, one in enumerate(operands[:2])), *operands[2:])

    def operation(a: jax.Array, b: jax.Array) -> jax.Array:
        given = [_rounded(one) for one in (a, b, *operands[2:])]
        return _rounded(evaluate(equation, given)[0])

    result = laid_out(Operand.OUTPUT, fence(operation(*operands[:2])))
    if aim is None:
        return result, None
    fault = aim.fault
    sizes = [min(math.prod(one.shape), LARGEST_OPERAND) for one in (*operands[:2], result)]
    size = lax.dynamic_index_in_dim(np.asarray(sizes, np.int32), fault.operand, keepdims=False)
    before = aim.turn * size  # elements of the turns that come first
    here = (aim.worker < 0) | (aim.worker == fault.worker)
    hit = here & (aim.site == 0) & (before <= aim.last) & (aim.first < before + size)

    def of_gathered(*tensors: jax.Array) -> jax.Array:
        return gathered(operation(*map(scattered, tensors, operands)))

    def strike(carry: tuple[jax.Array, jax.Array, Struck]) -> tuple[jax.Array, jax.Array, Struck]:
        _, clean, seen = carry
        # A position of another turn falls outside of this one's operand, and is left alone.
        index = lax.max(fault.index - before, np.int32(NOWHERE))
        source = lax.rem(fault.source, lax.max(size, np.int32(1)))  # a copy is read in the turn in which it is written
        of_turn = dataclasses.replace(fault, index=index, source=source)
        # Positions count through the operands as they are on all devices together.
        a, b = map(gathered, operands[:2])
        y, _, struck = faulty_product(of_gathered, (a, b), gathered(clean), of_turn)
        told = dataclasses.replace(jax.tree.map(lax.add, seen, struck), hits=struck.hits)  # one, in all turns together
        return lax.full_like(hit, False), scattered(y, clean), told

    _, struck_result, told = lax.while_loop(lambda carry: carry[0], strike, (hit, result, aim.seen))
    return laid_out(Operand.OUTPUT, fence(struck_result)), told


def _rounded(tensor: jax.Array) -> jax.Array:
    """A tensor of 16-bit numbers, really rounded to them.

    XLA on CPUs computes these in float32, and leaves out a rounding that is followed by a widening, also across a
    barrier; but not across a strike.  So the bits would depend on whether there is one.  It has to round where
    integers of 16 bits are asked for.
    """
    if tensor.dtype not in (jnp.bfloat16, jnp.float16):
        return tensor
    return lax.bitcast_convert_type(fence(bits(tensor)), tensor.dtype)
