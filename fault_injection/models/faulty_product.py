"""What an operation gives when a fault strikes one of its operands or its result."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from .fault import Fault, Operand, Struck
from .isolation import fence
from .overwrite import bits, overwrite


def faulty_product(
    product: Callable[[jax.Array, jax.Array], Any],
    operands: tuple[jax.Array, jax.Array],
    result: jax.Array | None,
    fault: Fault,
) -> tuple[jax.Array, jax.Array, Struck]:
    """The result of an operation with the fault in it.

    The operation is computed twice, clean and faulty, and only the elements that differ are taken over.  The two are
    compiled alike and differ by the fault alone, whereas `result` may have been computed in another way, and differ
    in rounding.

    Args:
      operands: its two, clean.
      result: what they gave; None takes what they give here.
      fault: its positions are those of these tensors; whether it is aimed at this operation is not asked.

    Returns:
      The result, which of its elements differ in their bits, and what was done.

    >>> from fault_injection.models.site import make_fault
    >>> from fault_injection.models.site import Site
    >>> x, w = jnp.ones((1, 2)), jnp.ones((2, 3))
    >>> shapes = dict(zip(Operand, map(jax.typeof, (x, w, x @ w)), strict=True))
    >>> fault = make_fault(Site("fc", "fc", "forward", shapes), Operand.WEIGHT, 0, [1], flip=0x40A00000)
    >>> result, differs, struck = faulty_product(jnp.matmul, (x, w), x @ w, fault)
    >>> result.tolist(), struck.old.view("float32").tolist(), int(struck.output_changed)
    ([[2.0, 6.0, 2.0]], [1.0], 1)
    """
    clean = fence(product(*fence(*operands)))
    result = clean if result is None else result
    (a, b, struck_result), struck = overwrite((*operands, result), fault)
    faulty = fence(product(*fence(a, b)))
    # A fault in the result leaves the products alone, which the compiler may nevertheless round differently.
    struck_operand = lax.ne(fault.operand, np.int32(Operand.OUTPUT))
    new = lax.select(struck_operand & (bits(faulty) != bits(clean)), faulty, struck_result)
    differs = bits(new) != bits(result)
    # Whole tensors are compared, so that the report would show an element that was changed by mistake.
    written = [bits(x) != bits(y) for x, y in zip((*operands, result), (a, b, struck_result), strict=True)]
    in_operand, in_result = _counted(written, differs)
    hits = jnp.int32(1) if fault.rule is None else (struck.matched[0] > 0).astype(jnp.int32)
    struck = dataclasses.replace(struck, hits=hits, operand_changed=in_operand, output_changed=in_result)
    return new, differs, struck


def _counted(some: list[jax.Array], other: jax.Array) -> list[jax.Array]:
    """How many are true, in some tensors together and in another.  One reduction compiles faster than a sum of each."""
    flat, last = [one.reshape(-1) for one in some], other.reshape(-1)
    each = ([*flat, jnp.zeros_like(last)], [*map(jnp.zeros_like, flat), last])
    counted = [jnp.concatenate(one).astype(jnp.int32) for one in each]
    return lax.reduce(counted, [np.int32(0)] * 2, lambda x, y: [*map(lax.add, x, y)], (0,))
