"""Performing an operation, and striking it: the one place through which every corruptible tensor passes.

A fault acts on the published form of an operation (`models.operations`); what it changes there is
carried over into the fast result.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from .fault import AllStruck, Fault, Operand, Struck, as_one, each_of, nothing_struck, site_id
from .faulty_product import faulty_product
from .isolation import fence, isolated
from .layer import Context, Observations, observed
from .observe.checksum import Performed
from .observe.dr_dna import SAMPLES, watched
from .observe.reductions import RESULTS, reduced
from .operations.lookup import SparseLookupGradWt
from .operations.operation import Checkable, Operation, SparseGradient, Summed
from .precision import as_multiplied, largest_values, narrowed, natively, scale
from .precisions import Precision

Multiply = Callable[[jax.Array, jax.Array], Any]


def perform(
    operation: Operation, site: str, a: jax.Array, b: jax.Array, ctx: Context, used: bool = True
) -> tuple[jax.Array, Observations]:
    """Run one operation for all workers of the device; each fault of the context strikes it that names this site.

    Args:
      operation: which one; its class says what `a` and `b` are.
      site: its name, as in an injection file.
      used: False if nothing reads the result.  It is then computed only if struck or observed, and
        NaN is returned in its place.

    Returns:
      The result, and observations: what the fault did and, on request (`operands`), the three
      operands of every worker in the published layout, stacked along a leading axis [R].  The
      result of a layer of `ctx.profile` is sampled, and clamped if the profile says so.

    >>> ctx = Context(jax.random.key(0), jnp.arange(2), observe=frozenset({"operands"}))
    >>> from fault_injection.models.operations.product import Dense
    >>> x, kernel = jnp.ones((2, 4, 3)), jnp.ones((3, 5))
    >>> y, seen = jax.eval_shape(lambda: perform(Dense(), "fc", x, kernel, ctx))
    >>> y.shape, seen.sites, seen.tensors["operands"]["fc"]["output"].shape
    ((2, 4, 5), ('fc',), (2, 4, 5))
    """
    held, formats, maxima, scales = None, None, {}, None
    if ctx.precision is not None:
        held = ctx.precision.held
        a, b = (t.astype(held) if jnp.issubdtype(t.dtype, jnp.floating) else t for t in (a, b))
        formats = _formats(operation, a, ctx.precision)
    if formats is not None:
        with isolated("false"):
            maxima[site], scales, a, b = _narrow(formats, a, b, None if ctx.maxima is None else ctx.maxima[site])
    faults = each_of(ctx.fault) if ctx.supported is None or site in ctx.supported else ()
    # What depends on the site enters as a traced value: operations of equal shape share one trace.
    strikes = tuple(_strike_here(fault, jnp.int32(site_id(site)), ctx.workers) for fault in faults)
    with isolated("false"):
        result, struck, operands = _perform(
            operation, "operands" in ctx.observe, used, held, a, b, scales, faults, strikes, ctx.workers.shape[0]
        )
    told, tensors = {}, {"operands": {site: operands}} if operands else {}
    if RESULTS in ctx.observe and result is not None:
        tensors[RESULTS] = {site: _by_worker(operation, result)}
    if result is not None and isinstance(operation, Checkable):
        with isolated("false"):
            told = reduced(ctx.reduce, "products", site, Performed(operation, a, b, scales, result))
    if result is None:
        shape = jax.eval_shape(partial(_rounded, operation.compute, held, None), a, b)
        result = jnp.full(shape.shape, jnp.nan, shape.dtype)
    seen = observed(ctx, "activations", site, result) if operation.gradient is None else Observations()
    tensors |= seen.tensors
    if ctx.profile is not None and site in ctx.profile.layers:
        result, samples = watched(ctx.profile, site, result)
        tensors |= {SAMPLES: {site: samples}}
    return result, Observations(struck, tensors, (site,), maxima, seen.reduced | told)


def _by_worker(operation: Operation, result: Any) -> jax.Array:
    """The result with the workers as leading axis: [1,…] where they are summed; of a sparse gradient, the rows read."""
    values: jax.Array = result.values if isinstance(result, SparseGradient) else result
    return values[None] if isinstance(operation, Summed) else values


def _formats(operation: Operation, a: jax.Array, precision: Precision) -> tuple[str, str] | None:
    """What the operands of a product are rounded to, where that is narrower than what is held; None for a lookup."""
    if precision.forward is None or precision.backward is None or not jnp.issubdtype(a.dtype, jnp.floating):
        return None
    of = [precision.backward if operand == operation.gradient else precision.forward for operand in Operand]
    return of[Operand.INPUT], of[Operand.WEIGHT]


@partial(jax.jit, static_argnums=0)
@isolated("true")
def _narrow(
    formats: tuple[str, str], a: jax.Array, b: jax.Array, history: jax.Array | None
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """Largest values of the operands, their scales after those of the last steps, and the operands rounded."""
    now = largest_values(a, b)
    by = jnp.ones_like(now) if history is None else scale(history, formats)
    return now, by, narrowed(a, by[0], formats[0]), narrowed(b, by[1], formats[1])


@jax.jit
def _strike_here(fault: Fault, site: jax.Array, workers: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Whether the fault strikes this site of a worker of this device, and which of its workers."""
    here = workers == fault.worker
    return (fault.site == site) & jnp.any(here), jnp.argmax(here)


@partial(jax.jit, static_argnums=(0, 1, 2, 3, 9))
@isolated("true")  # the many small functions inside are inlined again
def _perform(
    operation: Operation,
    observe: bool,
    used: bool,
    held: str | None,
    a: jax.Array,
    b: jax.Array,
    scales: jax.Array | None,
    faults: tuple[Fault, ...],
    strikes: tuple[tuple[jax.Array, jax.Array], ...],
    workers: int,
) -> tuple[Any, AllStruck | None, dict[str, jax.Array] | None]:
    compute = partial(_rounded, operation.compute, held, scales)
    product = partial(_rounded, operation.product, held, scales)
    result: Any = fence(compute(a, b)) if used else None
    told = []
    for fault, (hit, r) in zip(faults, strikes, strict=True):
        # Only what the fault can change passes the conditional, which copies what passes it.
        whole = isinstance(operation, Summed) or result is None
        part = result if whole else lax.dynamic_index_in_dim(result, r, keepdims=False)
        if isinstance(operation, SparseLookupGradWt):
            part = operation.with_room(part, fault.index.size)
        part, struck = lax.cond(
            hit,
            partial(_strike, operation, compute, product, a, b, fault, r),
            lambda part, fault=fault: (part, nothing_struck(fault)),
            part,
        )
        result = part if whole else lax.dynamic_update_index_in_dim(result, part, r, 0)
        result = result if result is None else fence(result)
        told.append(struck)
    operands = _published_operands(operation, product, a, b, result, workers) if observe else None
    return result, as_one(tuple(told)) if told else None, operands


def _strike(
    operation: Operation,
    compute: Multiply,
    product: Multiply,
    a: jax.Array,
    b: jax.Array,
    fault: Fault,
    r: jax.Array,
    result: Any,
) -> tuple[Any, Struck]:
    """The result (of worker r, or summed over the workers, or None) with the fault in it."""
    # If the result is summed over workers, or not computed, this worker's own is not at hand.
    mine = None if isinstance(operation, Summed) else result
    published_a, published_b = fence(*operation.operands(a, b, r))
    output, differs, struck = faulty_product(product, (published_a, published_b), mine, fault)
    if result is None:
        return None, struck
    if isinstance(operation, Summed):
        # What the other workers contribute is summed afresh: (sum - clean) would round, and
        # would turn an infinite sum into a NaN.
        others: Any = fence(compute(_without(a, r), _without(b, r)))
        at, by = operation.from_published(differs), operation.from_published(output)
        if isinstance(operation, SparseLookupGradWt):
            return operation.replaced(result, at, operation.whole(others) + by), struck
        output = jnp.where(at, others + by, result)
    return output, struck


def _rounded(multiply: Multiply, held: str | None, scales: jax.Array | None, a: jax.Array, b: jax.Array) -> Any:
    """`multiply(a, b)`, summed in float32 at least, of the operands as multipliers read them.

    Args:
      held: format of the result; None is that of the second operand.
      scales: of the operands; the result is multiplied by both.
    """
    if natively(a, b, held):
        return multiply(a, b)
    if held is None and jnp.issubdtype(b.dtype, jnp.floating):
        held = b.dtype.name
    result = multiply(*as_multiplied(a, b, held))
    if scales is not None:
        result = result * (scales[0] * scales[1])
    if held is None:
        return result
    if isinstance(result, SparseGradient):
        return SparseGradient(result.rows, result.values.astype(held))
    return result.astype(held)


def _without(tensor: jax.Array, r: jax.Array) -> jax.Array:
    """`tensor` [R,…] with worker r's part zero."""
    return lax.dynamic_update_index_in_dim(tensor, jnp.zeros_like(tensor[0]), r, 0)


def _published_operands(
    operation: Operation, product: Multiply, a: jax.Array, b: jax.Array, result: jax.Array | None, workers: int
) -> dict[str, jax.Array]:
    each = [operation.operands(a, b, r) for r in range(workers)]
    if result is None or isinstance(operation, Summed):
        outputs = [product(*pair) for pair in each]
    else:
        outputs = [result[r] for r in range(workers)]
    return {
        "input": jnp.stack([pair[0] for pair in each]),
        "weight": jnp.stack([pair[1] for pair in each]),
        "output": jnp.stack(outputs),
    }
