"""Keeping a piece of a program the same, whatever is compiled around it.

A golden run and a replay are held against each other bit by bit, though one is compiled with
conditionals at its operations and the other without.  The compiler must then treat what they
share alike.
"""

import contextlib

import jax
from jax import lax
from jax.experimental.xla_metadata import set_xla_metadata


@contextlib.contextmanager
def isolated(inlineable: str):
    """Compile the calls made inside as functions of their own (`false`), or not (`true`), on CPUs.

    Fusion changes the rounding of what it fuses, and what is fused depends on who else reads
    it: conditionals at the operations would change bits elsewhere.  Nothing is fused across
    a call that is not inlined, so that executables with fault support and without compute
    the same bits.
    """
    # Asked when something is traced: asking for the backend earlier would choose it.
    with set_xla_metadata(inlineable=inlineable) if jax.default_backend() == "cpu" else contextlib.nullcontext():
        yield


def fence(*tensors: jax.Array):
    """Keep the compiler from simplifying across this point, so that equal operations stay equal."""
    fenced = lax.optimization_barrier(tensors)
    return fenced[0] if len(tensors) == 1 else fenced
