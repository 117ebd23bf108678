"""The one function through which a fault enters a tensor, and faults and reports as what a compiled step takes."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from .bits import NewBits, rewritten, width_of
from .fault import LARGEST_OPERAND, Fault, Struck, inactive_fault, nothing_struck
from .ruled import has_rules, struck_by

Integers = jax.Array | np.ndarray
Integer = jax.Array | np.ndarray | np.integer

BITS = ("index", "source", "keep", "flip")
LEAVES = ("site", "operand", "worker", *BITS, "rule")  # of a fault, in the order of its words
jax.tree_util.register_dataclass(NewBits, BITS, ())
jax.tree_util.register_dataclass(Fault, LEAVES, ())
jax.tree_util.register_dataclass(Struck, [field.name for field in dataclasses.fields(Struck)], ())


def words_of(fault: Fault, struck: Struck | None = None) -> Any:
    """A fault and what it did, as one vector [6 + 6K], or [25] with a rule: each array that a step takes costs time.

    The vector has the type of the fault's masks: uint32, or uint64.

    Args:
      struck: what the fault did; nothing by default.

    >>> fault = inactive_fault(2)
    >>> fault_of(words_of(fault)).index, len(words_of(fault))
    (array([-1, -1], dtype=int32), 18)
    """
    here, mask = [leaf for name in LEAVES if (leaf := getattr(fault, name)) is not None], fault.keep.dtype
    if struck is None and all(isinstance(leaf, np.ndarray | np.generic) for leaf in here):
        if mask == np.uint64:
            here = [leaf.view(f"u{leaf.itemsize}").astype(mask) for leaf in here]
        none = bytes(mask.itemsize * (3 + 2 * fault.index.size + (0 if fault.rule is None else 2)))
        # NumPy's own calls are slower, and a loop asks at each step.
        return np.frombuffer(b"".join([leaf.tobytes() for leaf in here]) + none, mask)
    leaves = jax.tree.leaves((fault, nothing_struck(fault) if struck is None else struck))
    return jnp.concatenate([bits(jnp.asarray(leaf)).reshape(-1).astype(mask) for leaf in leaves])


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
    ruled = words.size % 6 != 0
    fault = inactive_fault(1 if ruled else words.size // 6 - 1, mask=words.dtype, ruled=ruled)
    leaves, tree = jax.tree.flatten((fault, nothing_struck(fault)))
    here = isinstance(words, np.ndarray)
    parts = (np if here else jnp).split(words, np.cumsum([leaf.size for leaf in leaves])[:-1])
    typed: Any = np.ndarray.view if here else lax.bitcast_convert_type
    each = [
        typed(part.reshape(leaf.shape).astype(f"u{leaf.itemsize}"), leaf.dtype)
        for part, leaf in zip(parts, leaves, strict=True)
    ]
    return jax.tree.unflatten(tree, each)


def bits(tensor: jax.Array) -> jax.Array:
    """The bits of a tensor of integers or floating-point numbers, as unsigned integers of its own width, 8 at least.

    >>> [hex(word) for word in bits(jnp.array([1.0, -2.0], jnp.bfloat16)).tolist()]
    ['0x3f80', '0xc000']
    """
    if (width := width_of(tensor.dtype)) >= 8:
        return lax.bitcast_convert_type(tensor, jnp.dtype(f"uint{width}"))
    return (tensor if width == 1 else lax.bitcast_convert_type(tensor, jnp.dtype(f"uint{width}"))).astype(jnp.uint8)


def of_bits(words: jax.Array, dtype: Any) -> jax.Array:
    """The tensor of such bits; the inverse of `bits`.

    >>> of_bits(bits(jnp.array([True, False])), jnp.bool_).tolist(), of_bits(jnp.uint8([15, 1]), jnp.int4).tolist()
    ([True, False], [-1, 1])
    """
    if (width := width_of(dtype)) == 1:
        return words != 0
    return lax.bitcast_convert_type(words if width >= 8 else words.astype(f"uint{width}"), dtype)


def overwrite(tensors: tuple[jax.Array, ...], fault: Fault) -> tuple[tuple[jax.Array, ...], Struck]:
    """Overwrite the fault's elements in the one tensor that its operand names.  No old value survives, not even a NaN.

    Args:
      tensors: the operands, in the order of `Operand`; any shapes.  Each is read and written in its
        own dtype: truth values, integers or floating-point numbers of at most as many bits as the fault's
        masks (wider ones can only stay as they are).

    Returns:
      The tensors with the fault in them, and what was done to the listed elements (all counts are 0).

    >>> from fault_injection.models.fault import Operand
    >>> new = NewBits.inverted(np.int32([1]), 2)
    >>> where = {"site": np.int32(0), "operand": np.int32(Operand.WEIGHT), "worker": np.int32(0)}
    >>> fault = Fault(**vars(new), **where)
    >>> (x, w), struck = overwrite((jnp.array([1, 2]), jnp.array([5, 6, 7], "uint8")), fault)
    >>> x.tolist(), w.tolist(), struck.old.tolist(), struck.new.tolist()
    ([1, 2], [5, 4, 7], [6], [4])
    """
    if fault.rule is not None:
        return _ruled(tensors, fault)
    before, mask = [bits(tensor).reshape(-1) for tensor in tensors], fault.keep.dtype
    named = [lax.eq(fault.operand, np.int32(number)) for number in range(len(tensors))]
    size = _element(np.array([min(words.size, LARGEST_OPERAND) for words in before], np.int32), fault.operand)

    def of_named(each: list[jax.Array]) -> jax.Array:
        """The scalar of the tensor that is named."""
        found, *others = (scalar.astype(mask) for scalar in each)
        for here, scalar in zip(named[1:], others, strict=True):
            found = lax.select(here, scalar, found)
        return found

    def write(k: Integer, done: tuple[list[jax.Array], jax.Array, jax.Array]) -> tuple[list[Any], jax.Array, jax.Array]:
        after, old, new = done
        at, source, keep, flip = (_element(vector, k) for vector in (fault.index, fault.source, fault.keep, fault.flip))
        listed = (at >= 0) & (at < size) & (source >= 0) & (source < size)
        present = [_element(words, at) for words in after]  # as before the fault: positions are distinct
        # Each tensor from its own elements alone: code that reads all of them takes longer to compile.
        struck = [rewritten(_element(words, source), keep, flip) for words in before]
        values = [lax.select(listed & here, *pair) for here, *pair in zip(named, struck, present, strict=True)]
        after = [_put(words, at, word) for words, word in zip(after, values, strict=True)]
        found, made = (lax.select(listed, of_named(each), mask.type(0)) for each in (present, values))
        return after, _put(old, k, found), _put(new, k, made)

    # One loop for all of them: a gather and a scatter, or a loop for each, take longer to compile.  It ends behind
    # the last listed element: most of a large fault may be padding.
    none = jnp.zeros_like(fault.index, mask)
    start = (before, none, none)
    if none.size == 1:
        after, old, new = write(np.int32(0), start)
    else:
        count = jnp.max(jnp.where(fault.index >= 0, jnp.arange(1, none.size + 1), 0))
        after, old, new = lax.fori_loop(0, count, write, start)
    written = (of_bits(words.reshape(tensor.shape), tensor.dtype) for words, tensor in zip(after, tensors, strict=True))
    return tuple(written), dataclasses.replace(nothing_struck(fault), old=old, new=new)


def _ruled(tensors: tuple[jax.Array, ...], fault: Fault) -> tuple[tuple[jax.Array, ...], Struck]:
    """As `overwrite`, of a fault with a rule, which looks at every element of the tensor that it names."""
    # A strike may be a loop of one turn, of which the compiler would compute beforehand, and each time, what depends on
    # the tensors alone.  So they wait for the rule, which the loop carries.
    tensors, rule = lax.optimization_barrier((tensors, fault.rule))
    told, after = nothing_struck(fault), [bits(tensor).reshape(-1) for tensor in tensors]
    old, new, matched = told.old, told.new, told.matched
    active = fault.index[0] >= 0
    for dtype in dict.fromkeys(tensor.dtype for tensor in tensors if tensor.size and has_rules(tensor.dtype)):
        # The named one is looked at, in as many elements as the largest of its type has: code for each of them would be
        # longer, and a step that is not struck carries it too.
        alike = [number for number, tensor in enumerate(tensors) if tensor.dtype == dtype]
        most = max(after[number].size for number in alike)
        words, size = jnp.zeros(most, after[alike[0]].dtype), jnp.int32(0)
        for number in alike:
            here = fault.operand == number
            words = jnp.where(here, jnp.pad(after[number], (0, most - after[number].size)), words)
            size = jnp.where(here, np.int32(after[number].size), size)
        fits, become = struck_by(words, size, dtype, rule)
        fits &= active
        written = jnp.where(fits, become, words)
        for number in alike:
            after[number] = jnp.where(fault.operand == number, written[: after[number].size], after[number])
        count, first = jnp.sum(fits, dtype=jnp.int32), jnp.argmax(fits).astype(jnp.int32)
        old, new = (
            jnp.where(count > 0, part[first].astype(fault.keep.dtype), known)
            for part, known in ((words, old), (written, new))
        )
        matched = jnp.where(count > 0, jnp.stack([count, first]), matched)
    results = (of_bits(words.reshape(tensor.shape), tensor.dtype) for words, tensor in zip(after, tensors, strict=True))
    return tuple(results), dataclasses.replace(told, old=old, new=new, matched=matched)


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
