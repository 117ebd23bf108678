"""What a fault is, and the one function through which it enters a tensor.

A fault is data, not code.  Site, operand, worker, positions and bits are traced integers, so one
executable serves all of them.  Only the number of elements K is a shape.
"""

from __future__ import annotations

import dataclasses
import enum
import math
import zlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jax import lax

if TYPE_CHECKING:  # a site is found by tracing layers, and layers know faults
    from .site import Site

Integers = jax.Array | np.ndarray
Integer = jax.Array | np.ndarray | np.integer

INACTIVE = -1
ALL_ONES = 0xFFFFFFFF
LARGEST_OPERAND = 2**31 - 1  # elements: positions are int32
WIDTHS = (8, 16, 32)  # bits of an element that can be struck: masks are uint32


class Operand(enum.IntEnum):
    """The three tensors of an operation that a fault can strike.

    >>> Operand.WEIGHT.name.lower()
    'weight'
    """

    INPUT = 0
    WEIGHT = 1
    OUTPUT = 2


@struct.dataclass
class Fault:
    """Concrete positions and bits at one operand of one site of one worker.

    Element `index[k]` becomes `(bits of element source[k] & keep[k]) ^ flip[k]`.  Every source is
    read before any element is written.  So `keep = 0` sets the element to the bits `flip`.  With
    `keep` all ones, the fault flips the bits `flip` (`source = index`) or copies another element
    (`flip = 0`).

    Attributes:
      site: int32 scalar, `site_id` of the operation; `INACTIVE` strikes nowhere.
      operand: int32 scalar, an `Operand`.
      worker: int32 scalar, the global number of the data-parallel worker.
      index: int32 [K], distinct row-major positions in the operand of that worker; `INACTIVE` pads.
      source: int32 [K], positions whose bits are read.
      keep, flip: uint32 [K], masks; an operand of narrower elements takes their low bits.

    An element whose `index` or `source` lies outside the operand is not written.

    >>> fault = inactive_fault(2)
    >>> fault.index.shape, int(fault.site) == INACTIVE
    ((2,), True)
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
    """What a fault did, as the step that it struck reports it.

    Attributes:
      hits: int32, number of operations struck: 1, or 0 for an inactive fault.
      old, new: uint32 [K], bits of the listed elements before and after.
      operand_changed: int32, number of elements of the whole operand whose bits changed.
      output_changed: int32, number of elements of the operation's result (of that worker) whose
        bits differ from the clean result.
    """

    hits: Integer
    old: Integers
    new: Integers
    operand_changed: Integer
    output_changed: Integer


def site_id(site: str) -> int:
    """The integer by which compiled code knows a site: a hash of its name, so no registry is needed.

    >>> site_id("conv1"), site_id("conv1_grad_in")
    (285681077, 1258974021)
    """
    return zlib.crc32(site.encode()) & 0x7FFFFFFF


def padded_size(count: int) -> int:
    """The K compiled for `count` elements: 1, 64, 4096, 262144, …, so that few executables serve all faults.

    >>> padded_size(1), padded_size(2), padded_size(65)
    (1, 64, 4096)
    """
    size = 1
    while size < count:
        size *= 64
    return size


def make_fault(
    site: Site,
    operand: Operand,
    worker: int,
    index: Sequence[int] | np.ndarray,
    *,
    source: Sequence[int] | np.ndarray | None = None,
    keep: int | np.ndarray = 0,
    flip: int | np.ndarray = 0,
    size: int | None = None,
) -> Fault:
    """A fault of host integers, padded to `padded_size`.  Its arrays are read-only.

    Args:
      site: the operation, from `list_sites`.
      operand: the operand struck.
      worker: global number of the worker struck.
      index: [n] distinct row-major positions in the operand of one worker.
      source: [n] positions read; by default `index`.
      keep, flip: masks, scalar or [n].
      size: the K to pad to; by default `padded_size(n)`.

    Raises:
      ValueError: a position that repeats or lies outside the operand, a `size` below n, or an
        operand that cannot be struck (more than 2³¹ − 1 elements, or elements of other than 8, 16
        or 32 bits).

    >>> import jax
    >>> from fault_injection.models.layers.dense import dense
    >>> from fault_injection.models.site import list_sites
    >>> site = list_sites(dense("fc", 10), jax.ShapeDtypeStruct((4, 3), "float32"))["fc"]
    >>> fault = make_fault(site, Operand.OUTPUT, 2, [39], flip=0x7F800000)
    >>> fault.index, fault.flip
    (array([39], dtype=int32), array([2139095040], dtype=uint32))
    >>> make_fault(site, Operand.OUTPUT, 2, [40])
    Traceback (most recent call last):
    ValueError: position 40 lies outside the output of fc, which is [4, 10]; expected 0 to 39
    """
    struck = site.operands[operand]
    elements, width = math.prod(struck.shape), jnp.dtype(struck.dtype).itemsize * 8
    name = site.named(operand)
    if elements > LARGEST_OPERAND:
        raise ValueError(f"{name} has {elements} elements; a fault reaches at most {LARGEST_OPERAND}")
    if width not in WIDTHS:
        raise ValueError(f"{name} is {struck.dtype}; a fault strikes elements of 8, 16 or 32 bits")
    index = np.asarray(index, np.int64)
    source = index if source is None else np.asarray(source, np.int64)
    positions = np.concatenate([index, source])
    if (outside := positions[(positions < 0) | (positions >= elements)]).size:
        shape, expected = list(struck.shape), f"expected 0 to {elements - 1}"
        raise ValueError(f"position {outside[0]} lies outside {name}, which is {shape}; {expected}")
    if len(np.unique(index)) != index.size:
        raise ValueError(f"the positions of a fault must be distinct; one in {name} is listed twice")
    size = padded_size(index.size) if size is None else size
    if size < index.size:
        raise ValueError(f"a fault of {index.size} elements does not fit the size {size}")

    def padded(values: int | np.ndarray, fill: int, dtype: type) -> np.ndarray:
        values = np.broadcast_to(np.asarray(values, dtype), index.shape)
        return _fixed(np.pad(values, (0, size - index.size), constant_values=fill))

    return Fault(
        site=np.int32(site_id(site.name)),
        operand=np.int32(operand),
        worker=np.int32(worker),
        index=padded(index, INACTIVE, np.int32),
        source=padded(source, 0, np.int32),
        keep=padded(keep, 0, np.uint32),
        flip=padded(flip, 0, np.uint32),
    )


def inactive_fault(size: int = 1, site: Integer | None = None) -> Fault:
    """A fault of K = `size` elements that strikes nowhere, or no element of the site that it names.

    >>> inactive_fault(2).index
    array([-1, -1], dtype=int32)
    """
    none, zero = _fixed(np.full(size, INACTIVE, np.int32)), _fixed(np.zeros(size, np.uint32))
    site = np.int32(INACTIVE) if site is None else site
    return Fault(site, np.int32(0), np.int32(INACTIVE), none, zero.view(np.int32), zero, zero)


def is_fixed(fault: Fault) -> bool:
    """Whether nobody can change a fault of host integers in place: those of `make_fault` are read-only.

    >>> is_fixed(inactive_fault()), is_fixed(dataclasses.replace(inactive_fault(), flip=np.zeros(1, np.uint32)))
    (True, False)
    """
    return not any(leaf.flags.writeable for leaf in vars(fault).values())


def _fixed(array: np.ndarray) -> np.ndarray:
    array.flags.writeable = False
    return array


def nothing_struck(fault: Fault) -> Struck:
    """The report of an operation that was not struck: all zero, of the fault's K."""
    zero, none = np.int32(0), np.zeros(fault.index.shape, np.uint32)
    return Struck(zero, none, none, zero, zero)


def words_of(fault: Fault, struck: Struck | None = None) -> Any:
    """A fault and what it did, as one vector uint32 [6 + 6K]: each array that a step takes or gives costs time.

    Args:
      struck: what the fault did; nothing by default.

    >>> fault = inactive_fault(2)
    >>> fault_of(words_of(fault)).index, len(words_of(fault))
    (array([-1, -1], dtype=int32), 18)
    """
    here = vars(fault).values()
    if struck is None and all(isinstance(leaf, np.ndarray | np.generic) for leaf in here):
        none = bytes(12 + 8 * fault.index.size)  # NumPy's own calls are slower, and a loop asks at each step
        return np.frombuffer(b"".join([leaf.tobytes() for leaf in here]) + none, np.uint32)
    leaves = jax.tree.leaves((fault, nothing_struck(fault) if struck is None else struck))
    return jnp.concatenate([bits(jnp.asarray(leaf)).reshape(-1) for leaf in leaves])


def fault_of(words: jax.Array | np.ndarray) -> Fault:
    """The fault of which these are the words."""
    return _parted(words)[0]


def struck_of(words: jax.Array | np.ndarray) -> Struck:
    """What the fault did of which these are the words."""
    return _parted(words)[1]


class Fetched(Struck):
    """What a fault did, fetched from its words when it is first looked at.

    A step gives one array for it, and a loop waits only where it looks.

    >>> Fetched.later(jnp.array(words_of(inactive_fault()))).new
    array([0], dtype=uint32)
    """

    @classmethod
    def later(cls, words: jax.Array) -> Struck:
        """That of words on a device; at once where they are only traced."""
        if isinstance(words, jax.core.Tracer):
            return struck_of(words)
        told = object.__new__(cls)
        object.__setattr__(told, "words", words)
        return told

    def __getattr__(self, name: str) -> Any:  # asked for what is not there yet
        if name not in Struck.__dataclass_fields__:
            raise AttributeError(name)
        for field, value in vars(struck_of(np.asarray(self.words))).items():
            object.__setattr__(self, field, value)
        return self.__dict__[name]


jax.tree_util.register_pytree_node(
    Fetched,
    lambda told: ([getattr(told, field) for field in Struck.__dataclass_fields__], None),
    lambda _, fields: Fetched(*fields),
)


def _parted(words: jax.Array | np.ndarray) -> tuple[Fault, Struck]:
    fault = inactive_fault(words.size // 6 - 1)
    leaves, tree = jax.tree.flatten((fault, nothing_struck(fault)))
    here = isinstance(words, np.ndarray)
    parts = (np if here else jnp).split(words, np.cumsum([leaf.size for leaf in leaves])[:-1])
    each = [
        part.reshape(leaf.shape).view(leaf.dtype)
        if here
        else lax.bitcast_convert_type(part.reshape(leaf.shape), leaf.dtype)
        for part, leaf in zip(parts, leaves, strict=True)
    ]
    return jax.tree.unflatten(tree, each)


def bits(tensor: jax.Array) -> jax.Array:
    """The bits of a tensor of integers or floating-point numbers, as unsigned integers of its own width.

    >>> [hex(word) for word in bits(jnp.array([1.0, -2.0], jnp.bfloat16)).tolist()]
    ['0x3f80', '0xc000']
    """
    return lax.bitcast_convert_type(tensor, jnp.dtype(f"uint{tensor.dtype.itemsize * 8}"))


def overwrite(tensors: tuple[jax.Array, ...], fault: Fault) -> tuple[tuple[jax.Array, ...], Struck]:
    """Overwrite the fault's elements in the one tensor that its operand names.  No old value survives, not even a NaN.

    Args:
      tensors: the operands, in the order of `Operand`; any shapes.  Each is read and written in its
        own dtype: integers or floating-point numbers of 8, 16 or 32 bits (wider ones can only stay
        as they are).

    Returns:
      The tensors with the fault in them, and what was done to the listed elements (all counts are 0).

    >>> site, zero = np.int32(0), np.int32([0])
    >>> fault = Fault(site, np.int32(Operand.WEIGHT), site, np.int32([1]), zero, np.uint32([ALL_ONES]), np.uint32([0]))
    >>> (x, w), struck = overwrite((jnp.array([1, 2]), jnp.array([5, 6, 7], "uint8")), fault)
    >>> x.tolist(), w.tolist(), struck.old.tolist(), struck.new.tolist()
    ([1, 2], [5, 5, 7], [6], [5])
    """
    before = [bits(tensor).reshape(-1) for tensor in tensors]
    named = [lax.eq(fault.operand, np.int32(number)) for number in range(len(tensors))]
    size = _element(np.array([min(words.size, LARGEST_OPERAND) for words in before], np.int32), fault.operand)

    def of_named(each: list[jax.Array]) -> jax.Array:
        """The scalar of the tensor that is named."""
        found, *others = (scalar.astype(jnp.uint32) for scalar in each)
        for here, scalar in zip(named[1:], others, strict=True):
            found = lax.select(here, scalar, found)
        return found

    def write(k: Integer, done: tuple[list[jax.Array], jax.Array, jax.Array]) -> tuple[list[Any], jax.Array, jax.Array]:
        after, old, new = done
        at, source, keep, flip = (_element(vector, k) for vector in (fault.index, fault.source, fault.keep, fault.flip))
        listed = (at >= 0) & (at < size) & (source >= 0) & (source < size)
        present = [_element(words, at) for words in after]  # as before the fault: positions are distinct
        # Each tensor from its own elements alone: code that reads all of them takes longer to compile.
        struck = [(_element(words, source) & keep.astype(words.dtype)) ^ flip.astype(words.dtype) for words in before]
        values = [lax.select(listed & here, *pair) for here, *pair in zip(named, struck, present, strict=True)]
        after = [_put(words, at, word) for words, word in zip(after, values, strict=True)]
        found, made = (lax.select(listed, of_named(each), jnp.uint32(0)) for each in (present, values))
        return after, _put(old, k, found), _put(new, k, made)

    # One loop for all of them: a gather and a scatter, or a loop for each, take longer to compile.  It ends behind
    # the last listed element: most of a large fault may be padding.
    none = jnp.zeros_like(fault.index, jnp.uint32)
    start = (before, none, none)
    if none.size == 1:
        after, old, new = write(np.int32(0), start)
    else:
        count = jnp.max(jnp.where(fault.index >= 0, jnp.arange(1, none.size + 1), 0))
        after, old, new = lax.fori_loop(0, count, write, start)
    written = (
        lax.bitcast_convert_type(words.reshape(tensor.shape), tensor.dtype)
        for words, tensor in zip(after, tensors, strict=True)
    )
    return tuple(written), dataclasses.replace(nothing_struck(fault), old=old, new=new)


def overwritten(tensor: jax.Array, fault: Fault) -> tuple[jax.Array, Struck]:
    """One tensor, the only operand, with the fault's elements overwritten; and what was done.

    The whole tensor is compared, so that the report would show an element that was changed by mistake.

    >>> fault = inactive_fault()
    >>> overwritten(jnp.array([1.0]), fault)[1].operand_changed.tolist()
    0
    """
    (written,), struck = overwrite((tensor,), fault)
    return written, dataclasses.replace(struck, operand_changed=jnp.sum(bits(written) != bits(tensor), dtype=jnp.int32))


def _element(vector: Integers, at: Integer) -> jax.Array:
    """One element of a vector; the nearest one if `at` lies outside."""
    return lax.dynamic_index_in_dim(vector, at, keepdims=False, allow_negative_indices=False)


def _put(vector: jax.Array, at: Integer, value: jax.Array) -> jax.Array:
    """The vector with one element replaced; the nearest one if `at` lies outside."""
    return lax.dynamic_update_index_in_dim(vector, value, at, 0, allow_negative_indices=False)
