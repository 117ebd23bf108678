"""What a fault is, and the one function through which it enters a tensor.

A fault is data, not code: an executable compiled once serves every site, operand,
worker, position and value, because all of them are traced integers.  Only the number
of elements K is a shape.
"""

import enum
import zlib
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jax import lax

Integers = jax.Array | np.ndarray
Integer = jax.Array | np.ndarray | np.integer

INACTIVE = -1
ALL_ONES = 0xFFFFFFFF


class Operand(enum.IntEnum):
    """The three tensors of an operation that a fault can strike."""

    INPUT = 0
    WEIGHT = 1
    OUTPUT = 2


@struct.dataclass
class Fault:
    """Concrete positions and bits at one operand of one site of one worker.

    The new bits of element `index[k]` are `(bits of element source[k] & keep[k]) ^ flip[k]`,
    all elements being read before any is written.  So `keep = 0` sets the value whose bits
    are `flip`; `keep` all ones flips the bits of `flip` (with `source = index`) or copies
    another element (`flip = 0`).

    Attributes:
      site: int32 scalar, `site_id` of the operation; `INACTIVE` strikes nowhere.
      operand: int32 scalar, an `Operand`.
      worker: int32 scalar, the global number of the data-parallel worker.
      index: int32 [K], row-major positions in the operand of that one worker, each at
        most once; `INACTIVE` pads.
      source: int32 [K], positions whose bits are read.
      keep, flip: uint32 [K], masks; the low bits count for types narrower than 32 bits.
    """

    site: Integer
    operand: Integer
    worker: Integer
    index: Integers
    source: Integers
    keep: Integers
    flip: Integers


@struct.dataclass
class Struck:
    """What a fault did, returned by the step that it struck.

    Attributes:
      hits: int32, how many operations were struck (1, or 0 for an inactive fault).
      old, new: uint32 [K], bits of the listed elements before and after.
      operand_changed: int32, how many elements of the whole operand differ in their bits.
      output_changed: int32, how many elements of the operation's result (of the one
        worker) differ in their bits from the clean result.
    """

    hits: Integer
    old: Integers
    new: Integers
    operand_changed: Integer
    output_changed: Integer


def site_id(site: str) -> int:
    """The integer by which compiled code knows a site: a hash of its name, so no registry is needed."""
    return zlib.crc32(site.encode()) & 0x7FFFFFFF


def padded_size(count: int) -> int:
    """The K compiled for `count` elements: 1, 64, 4096, 262144, … so that few executables serve all faults."""
    size = 1
    while size < count:
        size *= 64
    return size


def make_fault(
    site: Any,
    operand: Operand,
    worker: int,
    index: Sequence[int] | np.ndarray,
    *,
    source: Sequence[int] | np.ndarray | None = None,
    keep: int | np.ndarray = 0,
    flip: int | np.ndarray = 0,
    size: int | None = None,
) -> Fault:
    """A fault of host integers, padded to `padded_size`.

    Args:
      site: name of the operation, such as `basicblock_2_basic_0_conv2_grad_in`.
      operand: the operand struck.
      worker: global number of the worker struck.
      index: [n] distinct row-major positions.
      source: [n] positions read; the elements themselves if absent.
      keep, flip: masks, scalar or [n].
      size: the K to pad to, if another than `padded_size(n)`.

    Raises:
      ValueError: positions that repeat or are negative.
    """
    index = np.asarray(index, np.int64)
    if index.size and (index.min() < 0 or len(np.unique(index)) != index.size):
        raise ValueError("positions of a fault must be distinct and not negative")
    pad = (size or padded_size(index.size)) - index.size

    def padded(values, fill, dtype):
        values = np.broadcast_to(np.asarray(values, dtype), index.shape)
        return np.pad(values, (0, pad), constant_values=fill)

    return Fault(
        site=np.int32(site_id(getattr(site, "name", site))),
        operand=np.int32(operand),
        worker=np.int32(worker),
        index=padded(index, INACTIVE, np.int32),
        source=padded(index if source is None else source, 0, np.int32),
        keep=padded(keep, 0, np.uint32),
        flip=padded(flip, 0, np.uint32),
    )


def inactive_fault(size: int = 1) -> Fault:
    """A fault of K = `size` elements that strikes nowhere."""
    none = np.full(size, INACTIVE, np.int32)
    zero = np.zeros(size, np.uint32)
    return Fault(np.int32(INACTIVE), np.int32(0), np.int32(INACTIVE), none, none * 0, zero, zero)


def nothing_struck(fault: Fault) -> Struck:
    """The observation of an operation that was not struck."""
    zero = jnp.zeros((), jnp.int32)
    bits = jnp.zeros(fault.index.shape, jnp.uint32)
    return Struck(zero, bits, bits, zero, zero)


def bits(tensor: jax.Array) -> jax.Array:
    """The bits of a floating-point tensor as unsigned integers of its own width."""
    width = jnp.finfo(tensor.dtype).bits
    return lax.bitcast_convert_type(tensor, jnp.dtype(f"uint{width}"))


def overwrite(tensor: jax.Array, fault: Fault, active: jax.Array) -> tuple[jax.Array, Struck]:
    """Overwrite the fault's elements in `tensor` if `active`; no old value survives, not even a NaN.

    Args:
      tensor: any shape, a floating-point type of at most 32 bits (wider ones only inactive).
      active: bool scalar.

    Returns:
      The tensor with the fault in it, and what was done (`hits` and `output_changed` are 0).
    """
    before = bits(tensor).reshape(-1)
    word = before.dtype
    listed = active & (fault.index >= 0)
    old = before[jnp.maximum(fault.index, 0)]
    new = (before[fault.source] & fault.keep.astype(word)) ^ fault.flip.astype(word)
    # JAX wraps negative indices, so padding is sent past the end, where writes are dropped.
    after = before.at[jnp.where(listed, fault.index, before.size)].set(new, mode="drop")
    zero = jnp.zeros((), jnp.int32)
    struck = Struck(
        hits=zero,
        old=jnp.where(listed, old, 0).astype(jnp.uint32),
        new=jnp.where(listed, new, 0).astype(jnp.uint32),
        operand_changed=jnp.sum(before != after, dtype=jnp.int32),
        output_changed=zero,
    )
    return lax.bitcast_convert_type(after.reshape(tensor.shape), tensor.dtype), struck
