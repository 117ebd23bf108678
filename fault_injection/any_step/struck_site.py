"""One operation of a user's step: fenced, and struck where the fault is aimed at it."""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ..models.fault import LARGEST_OPERAND, Fault, Operand, Struck
from ..models.faulty_product import faulty_product
from ..models.isolation import fence
from ..models.overwrite import Integer, fault_of, struck_of, words_of
from ..models.rule import StrikeRule
from .jax_internals import gathered, resharded
from .product_form import Form

NOWHERE = -1
RULE_SEED = StrikeRule._fields.index("seed")


class Aim(NamedTuple):
    """Where a fault strikes, as a body is told it.  All of it is traced.

    Attributes:
      site: int32, the number of the struck site, counted from the body's first; outside of its sites, nothing is.
      turn: int32, the turn of the loops around the body, counted through all of them; None outside of loops.
      worker: int32, the number of the device that runs the body, among those that each run it with operands of their
        own; −1 where all share it.
      first, last: int32, the smallest and the largest position that is struck.
      words: of the fault, and of what it did so far, in one array: a loop updates it in place.  The fault's positions
        count through the operands of all turns, one after the other.
    """

    site: jax.Array
    turn: Integer | None
    worker: Integer
    first: jax.Array
    last: jax.Array
    words: jax.Array

    def inside(self, length: int, number: jax.Array) -> "Aim":
        """The same in one turn of a loop of so many."""
        return self._replace(turn=number if self.turn is None else self.turn * length + number)


def aimed(words: jax.Array, site: jax.Array) -> Aim:
    """The aim of a whole step, with the struck site's number."""
    fault = fault_of(words)
    if fault.rule is not None:  # which looks at each turn
        return Aim(site, None, np.int32(-1), jnp.int32(0), jnp.int32(LARGEST_OPERAND), words)
    first = jnp.min(jnp.where(fault.index >= 0, fault.index, LARGEST_OPERAND))
    last = jnp.max(fault.index)  # or below zero, as all that pads
    return Aim(site, None, np.int32(-1), first, last, words)


def words_of_aims(aims: Sequence[Aim]) -> tuple[jax.Array, ...]:
    """The words of each aim."""
    return tuple(aim.words for aim in aims)


def going_on(aims: Sequence[Aim], words: Sequence[jax.Array]) -> tuple[Aim, ...]:
    """The aims, if there are any, with the words as something before has left them."""
    return tuple(aim._replace(words=after) for aim, after in zip(aims, words, strict=True)) if aims else ()


def strike_site(
    form: Form, values: list[Any], aims: tuple[Aim, ...], laid_out: Callable[[int, jax.Array], jax.Array]
) -> tuple[jax.Array, tuple[jax.Array, ...]]:
    """One operation; struck where an aim says so, and its result fenced in any case.

    The strike is the one turn of a while loop whose carry the compiler updates in place.  A conditional would copy
    what passes it.

    Args:
      values: its operands as the form keeps them, fenced.  The strike reads them too: a copy that the compiler makes
        of one serves both.
      aims: of the faults, of which at most one strikes it.
      laid_out: fixes how the first operand, the second, or the result is shared out among devices.

    Returns:
      The result, and each aim's words, with what its fault did here added.
    """
    operands, others = [laid_out(place, one) for place, one in enumerate(values[:2])], values[2:]
    result = laid_out(Operand.OUTPUT, fence(form.compute([*operands, *others])))
    words = []
    for aim in aims:
        result, after = _struck(form, operands, others, result, aim)
        result = laid_out(Operand.OUTPUT, fence(result))
        words.append(after)
    return result, tuple(words)


def _struck(
    form: Form, operands: list[jax.Array], others: list[Any], result: jax.Array, aim: Aim
) -> tuple[jax.Array, jax.Array]:
    """The result with one fault in it, and the aim's words."""
    shapes = [atom.aval.shape for atom in (*form.equation.invars[:2], form.equation.outvars[0])]
    sizes = np.array([min(math.prod(shape), LARGEST_OPERAND) for shape in shapes], np.int32)

    def sized(words: jax.Array) -> tuple[Fault, jax.Array, Integer]:
        """The fault, elements of its operand in one turn, and those of the turns that come first."""
        fault = fault_of(words)
        size = lax.dynamic_index_in_dim(sizes, fault.operand, keepdims=False)
        return fault, size, np.int32(0) if aim.turn is None else aim.turn * size

    fault, size, before = sized(aim.words)
    here = (aim.worker < 0) | (aim.worker == fault.worker)
    hit = here & (aim.site == 0) & (before <= aim.last) & (aim.first < before + size)

    def of_gathered(*tensors: jax.Array) -> jax.Array:
        kept = [one.of(resharded(*pair)) for one, *pair in zip(form.operands[:2], tensors, operands, strict=True)]
        return gathered(form.compute([*kept, *others]))

    def strike(carry: tuple[Any, jax.Array, jax.Array]) -> tuple[Any, jax.Array, jax.Array]:
        _, clean, words = carry
        fault, size, before = sized(words)  # again: each array that a loop reads from outside is copied for it
        of_turn = fault
        if aim.turn is not None:
            # A position of another turn falls outside of this one's operand, and is left alone.  A copy is read in the
            # turn in which it is written.
            index = lax.max(fault.index - before, np.int32(NOWHERE))
            source = lax.rem(fault.source, lax.max(size, np.int32(1)))
            of_turn = dataclasses.replace(fault, index=index, source=source)
        # Positions count through the operands as they are on all devices together.
        a, b = (gathered(one.back(kept)) for one, kept in zip(form.operands[:2], operands, strict=True))
        if fault.rule is not None:  # its positions are those of one turn, and each turn has a chance of its own
            turn = jnp.int32(0) if aim.turn is None else aim.turn
            seed = fault.rule.at[RULE_SEED].add(turn.astype(fault.rule.dtype))
            of_turn = dataclasses.replace(fault, rule=seed)
        y, _, struck = faulty_product(of_gathered, (a, b), gathered(clean), of_turn)
        both = _together(struck_of(words), struck, before)
        return lax.full_like(hit, False), resharded(y, clean), words_of(fault, both)

    _, struck_result, words = lax.while_loop(lambda carry: carry[0], strike, (hit, result, aim.words))
    return struck_result, words


def _together(earlier: Struck, struck: Struck, before: Integer) -> Struck:
    """What a fault did in a turn of a loop and in those before it: a site struck in several turns is one operation.

    Args:
      before: elements of the operand in the turns before.
    """
    both = jax.tree.map(lax.add, earlier, struck)
    if struck.matched is None:
        return dataclasses.replace(both, hits=np.int32(1))
    # The first element is that of the first turn in which there is one.
    known = earlier.matched[0] > 0
    old, new = (jnp.where(known, *pair) for pair in ((earlier.old, struck.old), (earlier.new, struck.new)))
    there = jnp.where(struck.matched[0] > 0, struck.matched[1] + before, 0)
    first = jnp.where(known, earlier.matched[1], there)
    matched = jnp.stack([both.matched[0], first])
    return dataclasses.replace(both, hits=lax.min(both.hits, np.int32(1)), old=old, new=new, matched=matched)
