"""Keeping a piece of a program the same, whatever is compiled around it.

A golden run and a replay are compared bit by bit, though one is compiled with conditionals at its
operations and the other without.  So the compiler must treat alike what they share.
"""

import contextlib
import contextvars
from collections.abc import Iterator
from typing import overload

import jax
from jax import lax
from jax.experimental.layout import Layout, with_layout_constraint
from jax.experimental.xla_metadata import set_xla_metadata

from ..machine.devices import platform

_abstract = contextvars.ContextVar("_abstract", default=False)


@contextlib.contextmanager
def only_shapes() -> Iterator[None]:
    """Trace for shapes alone, which are the same on all devices: no backend is started to ask which it is.

    >>> with only_shapes():
    ...     on_cpus(), jax.eval_shape(jax.numpy.sin, jax.numpy.ones(2)).shape
    (False, (2,))
    """
    before = _abstract.set(True)
    try:
        with set_xla_metadata(only="shapes"):  # what JAX keeps of this trace serves no other
            yield
    finally:
        _abstract.reset(before)


def on_cpus() -> bool:
    """Whether what is traced now runs on CPUs.  Asked then: asking for the backend earlier would choose it."""
    return _runs_on("cpu")


def _runs_on(backend: str) -> bool:
    return not _abstract.get() and platform() == backend


@contextlib.contextmanager
def isolated(inlineable: str) -> Iterator[None]:
    """On CPUs, compile the calls made inside as functions of their own (`false`), or allow inlining (`true`).

    Fusion changes the rounding of what it fuses, and what is fused depends on who else reads it.  So
    conditionals at the operations would change bits elsewhere.  Nothing is fused across a call that
    is not inlined: executables with and without fault support compute the same bits.

    >>> with isolated("false"):
    ...     jax.jit(lambda x: x + 1)(1)
    Array(2, dtype=int32, weak_type=True)
    """
    with set_xla_metadata(inlineable=inlineable) if on_cpus() else contextlib.nullcontext():
        yield


@contextlib.contextmanager
def nonfinite_allowed() -> Iterator[None]:
    """JAX's debug flags are off inside: a fault may make a NaN or an infinity, and that is a finding, no error.

    >>> with jax.debug_nans(True), nonfinite_allowed():
    ...     jax.jit(jax.numpy.log)(-1.0)
    Array(nan, dtype=float32, weak_type=True)
    """
    with jax.debug_nans(False), jax.debug_infs(False):
        yield


@overload
def fence(tensor: jax.Array, /) -> jax.Array: ...
@overload
def fence(*tensors: jax.Array) -> tuple[jax.Array, ...]: ...
def fence(*tensors: jax.Array) -> jax.Array | tuple[jax.Array, ...]:
    """Keep the compiler from simplifying across this point, so that equal operations stay equal.

    On GPUs, tensors also lie row by row here.  A conditional that takes one would otherwise have a say in how it lies,
    and a tensor that lies otherwise is read by other kernels, which sum in another order.

    >>> fence(jax.numpy.ones(2)).tolist()
    [1.0, 1.0]
    """
    if _runs_on("gpu"):
        tensors = tuple(map(_row_by_row, tensors))
    fenced = lax.optimization_barrier(tensors)
    return fenced[0] if len(tensors) == 1 else fenced


def disguised(tensor: jax.Array) -> jax.Array:
    """The same tensor, which the compiler takes for another one: what is computed from both is computed twice.

    On CPUs a fence alone is taken away before the compiler looks for equal operations a last time.

    >>> disguised(jax.numpy.ones(2)).tolist()
    [1.0, 1.0]
    """
    with isolated("false"):
        return jax.jit(fence)(tensor)


def _row_by_row(tensor: jax.Array) -> jax.Array:
    if tensor.ndim < 2 or jax.numpy.issubdtype(tensor.dtype, jax.dtypes.extended):
        return tensor
    return with_layout_constraint(tensor, Layout(tuple(range(tensor.ndim))))
