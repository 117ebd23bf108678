"""From which of its arguments each result of a jaxpr is computed."""

import functools
import operator
from collections.abc import Collection, Sequence
from typing import Any

from .jax_internals import COLLECTIVES, RELAID, Body, bodies, is_literal, opened, scan_operands

PAIRED = RELAID | COLLECTIVES  # each of their results is made of one operand


def computed_from(jaxpr: Any, without: Collection[str] = ()) -> list[frozenset[int]]:
    """The numbers of the arguments that each result depends on: of no others, and perhaps not of all of these.

    Calls, loops and branches are followed; of any other operation all results depend on all operands.

    Args:
      jaxpr: closed.
      without: names of primitives whose results count as constants.

    >>> import jax
    >>> step = jax.make_jaxpr(lambda w, m, g: (w - 0.9 * m - g, 0.9 * m + g))
    >>> [sorted(given) for given in computed_from(step(1.0, 2.0, 3.0))]
    [[0, 1, 2], [1, 2]]
    """
    found = _results(opened(jaxpr), [1 << place for place in range(len(jaxpr.in_avals))], without)
    return [frozenset(place for place in range(mask.bit_length()) if mask >> place & 1) for mask in found]


def _results(body: Body, masks: Sequence[int], without: Collection[str]) -> list[int]:
    """A mask for each result of a body: the union of those of its arguments that it depends on."""
    jaxpr = body.jaxpr
    known = dict(zip(jaxpr.invars, masks, strict=True)) | dict.fromkeys(jaxpr.constvars, 0)

    def read(atom: Any) -> int:
        return 0 if is_literal(atom) else known[atom]

    for equation in jaxpr.eqns:
        given = [*map(read, equation.invars)]
        known.update(zip(equation.outvars, _of_equation(equation, given, without), strict=True))
    return [*map(read, jaxpr.outvars)]


def _of_equation(equation: Any, masks: list[int], without: Collection[str]) -> list[int]:
    name, inside = equation.primitive.name, bodies(equation)
    if name in without:
        return [0] * len(equation.outvars)
    if name in PAIRED and len(masks) == len(equation.outvars):
        return masks
    if name == "scan":
        constants, carried = scan_operands(equation.params)
        return _of_scan(inside[0], masks, constants, constants + carried, without)
    if name == "cond" and inside:
        each = [_results(body, masks[1:], without) for body in inside]
        return [masks[0] | _union(some) for some in zip(*each, strict=True)]
    if inside and name != "while":  # whose turns depend on all that it carries on
        return _results(inside[0], masks, without)
    return [_union(masks)] * len(equation.outvars)


def _of_scan(body: Body, masks: list[int], first: int, last: int, without: Collection[str]) -> list[int]:
    """A scan's results: what it carries on gathers what its turns add, until they add nothing."""
    while True:
        found = _results(body, masks, without)
        carry = [before | after for before, after in zip(masks[first:last], found, strict=False)]
        if carry == masks[first:last]:
            return found
        masks = [*masks[:first], *carry, *masks[last:]]


def _union(masks: Sequence[int]) -> int:
    return functools.reduce(operator.or_, masks, 0)
