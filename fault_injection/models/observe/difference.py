"""How one tensor differs from another: numbers that a step makes of both, so that neither leaves its device."""

from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ...machine.environment import number_of_threads
from ..isolation import isolated, on_cpus
from ..largest import largest_along
from ..overwrite import bits

# Elements.  A CPU adds up a piece that its cache holds by several sums at once; of a whole tensor each sum would read
# it again, or, where XLA fuses them, take one element after the other: five times the time (measured, 2 cores).
PIECE = 16_384


class TensorDifference(NamedTuple):
    """What differs between a tensor of the golden run and the same tensor of a faulty one.

    Largest and root-mean-square values count the elements that are finite in both; of integers and truth values, which
    have no magnitude here, they are 0.  They are float32.

    Attributes:
      differs: uint32, elements whose bits differ.  Two NaN of the same bits do not; 0 and −0 do.
      nonfinite, golden_nonfinite: uint32, elements that are not finite.
      largest, rms: of the differences, both halved: a difference of two finite numbers may overflow.
      golden_largest, golden_rms: of the golden tensor.
    """

    differs: jax.Array
    nonfinite: jax.Array
    golden_nonfinite: jax.Array
    largest: jax.Array
    rms: jax.Array
    golden_largest: jax.Array
    golden_rms: jax.Array


def differences(golden: list[jax.Array], faulty: list[jax.Array]) -> tuple[jax.Array, jax.Array]:
    """How each of some tensors differs: uint32 [n,3] and float32 [n,4], the fields of `TensorDifference`.

    >>> one, other = jnp.float32([1, -3, jnp.nan]), jnp.float32([1, 1, jnp.nan])
    >>> counts, magnitudes = differences([one], [other])
    >>> counts.tolist(), [round(x, 3) for x in magnitudes[0].tolist()]
    ([[1, 1, 1]], [2.0, 1.414, 3.0, 2.236])

    Args:
      golden, faulty: tensors of any dtype, in pairs of one shape; at least one.
    """
    # XLA runs the loops of one program one after the other.  Programs of several devices wait for one another.
    alone = on_cpus() and all(len(each.devices()) == 1 for each in (*golden, *faulty))
    hands = _dealt([each.size for each in golden], number_of_threads() if alone else 1)

    def compare(hand: list[int]) -> tuple[jax.Array, jax.Array]:
        return jax.block_until_ready(_differences([golden[n] for n in hand], [faulty[n] for n in hand]))

    with ThreadPoolExecutor(len(hands)) as pool:
        made = list(pool.map(compare, hands))
    order = np.argsort(np.concatenate(hands))
    counts, magnitudes = (jnp.concatenate(each)[order] for each in zip(*made, strict=True))
    return counts, magnitudes


def _dealt(sizes: list[int], count: int) -> list[list[int]]:
    """The places of tensors, dealt to at most so many hands of about the same size, the largest first."""
    hands: list[list[int]] = [[] for _ in range(min(count, len(sizes)))]
    held = [0] * len(hands)
    for place in sorted(range(len(sizes)), key=lambda place: -sizes[place]):
        least = held.index(min(held))
        hands[least].append(place)
        held[least] += sizes[place] + 1
    return hands


@jax.jit
def _differences(golden: list[jax.Array], faulty: list[jax.Array]) -> tuple[jax.Array, jax.Array]:
    found = []
    for one, other in zip(golden, faulty, strict=True):
        with isolated("false"):  # tensors of one shape share one piece of program
            found.append(difference(one, other))
    return jnp.array([each[:3] for each in found]), jnp.array([each[3:] for each in found])


@jax.jit
def difference(golden: jax.Array, faulty: jax.Array) -> TensorDifference:
    """How one tensor differs from another of its shape and dtype, see `TensorDifference`."""
    if jnp.issubdtype(golden.dtype, jax.dtypes.prng_key):
        golden, faulty = jax.random.key_data(golden), jax.random.key_data(faulty)
    golden, faulty = golden.reshape(-1), faulty.reshape(-1)
    size, zero, none = golden.size, jnp.uint32(0), jnp.float32(0)
    if not size:
        return TensorDifference(zero, zero, zero, none, none, none, none)
    length = min(PIECE, size) if on_cpus() else size

    def piece(number: jax.Array) -> tuple[jax.Array, ...]:
        start = jnp.minimum(number * length, size - length)  # the last piece may begin inside the one before it
        own = start + jnp.arange(length) >= number * length
        one, other = (lax.dynamic_slice(each, (start,), (length,)) for each in (golden, faulty))
        return _compared(one, other, own)

    differs, *numbers = lax.map(piece, jnp.arange(-(-size // length)))
    if not numbers:
        return TensorDifference(jnp.sum(differs), zero, zero, none, none, none, none)
    lost, golden_lost, sound, *magnitudes = numbers
    top, squares, golden_top, golden_squares = magnitudes
    counted = jnp.sum(sound)
    return TensorDifference(
        jnp.sum(differs),
        jnp.sum(lost),
        jnp.sum(golden_lost),
        *_together(top, squares, counted),
        *_together(golden_top, golden_squares, counted),
    )


def _compared(golden: jax.Array, faulty: jax.Array, own: jax.Array) -> tuple[jax.Array, ...]:
    """What differs in one piece of two tensors, of its own elements [n]: counts, then largest values and squares."""
    apart = _bits(golden) != _bits(faulty)
    differs = _count((jnp.any(apart, axis=-1) if apart.ndim > 1 else apart) & own)
    if not jnp.issubdtype(golden.dtype, jnp.inexact):
        return (differs,)
    lost, golden_lost = (_count(~jnp.isfinite(each) & own) for each in (faulty, golden))
    a, b = _numbers(golden), _numbers(faulty)
    sound = jnp.isfinite(a) & jnp.isfinite(b) & (own[:, None] if a.ndim > 1 else own)
    # Of what is not finite there is no magnitude, so no NaN can be lost; it is counted.
    halves = _magnitudes(jnp.where(sound, a / 2 - b / 2, 0))
    return (differs, lost, golden_lost, _count(sound), *halves, *_magnitudes(jnp.where(sound, a, 0)))


def _count(which: jax.Array) -> jax.Array:
    return jnp.sum(which, dtype=jnp.uint32)


def _magnitudes(tensor: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The largest value, and the sum of squares in its units, of which none overflows."""
    top = largest_along(jnp.abs(tensor.reshape(-1)))
    shares = tensor / jnp.where(top > 0, top, 1)
    return top, jnp.sum(shares * shares)


def _together(tops: jax.Array, squares: jax.Array, count: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Largest and root-mean-square value of so many elements, of the pieces' [n]."""
    top = largest_along(tops)
    shares = tops / jnp.where(top > 0, top, 1)
    mean = jnp.sum(shares * shares * squares) / jnp.where(count > 0, count, 1).astype(tops.dtype)
    return top.astype(jnp.float32), (top * jnp.sqrt(mean)).astype(jnp.float32)


def _bits(tensor: jax.Array) -> jax.Array:
    """The bits of each element; of a complex one, of its two parts."""
    if jnp.issubdtype(tensor.dtype, jnp.complexfloating):
        return jnp.stack([bits(tensor.real), bits(tensor.imag)], -1)
    return bits(tensor)


def _numbers(tensor: jax.Array) -> jax.Array:
    """In float32 at least; complex numbers as pairs."""
    if jnp.issubdtype(tensor.dtype, jnp.complexfloating):
        tensor = jnp.stack([tensor.real, tensor.imag], -1)
    return tensor if tensor.dtype.itemsize >= 4 else lax.convert_element_type(tensor, jnp.float32)
