"""New bits of some elements of a tensor: one value and one formula, for files, for the host and for a step."""

import dataclasses
from typing import Any, Self

import ml_dtypes  # NumPy knows bfloat16 and its like by it
import numpy as np

ALL_ONES = 0xFFFFFFFF_FFFFFFFF  # of which each element takes the low bits


@dataclasses.dataclass(frozen=True)
class NewBits:
    """What some elements of a tensor become: element `index[k]` gets `(bits of element source[k] & keep[k]) ^ flip[k]`.

    Every source is read before any element is written.  So `keep = 0` sets the element to the bits `flip`.  With
    `keep` all ones, the bits `flip` are inverted (`source = index`), or another element is copied (`flip = 0`).
    Outside of a step these are arrays of NumPy.

    Attributes:
      index: int64 [K], distinct row-major positions; of a fault int32, with negative ones as padding.
      source: as `index`, positions whose bits are read.
      keep, flip: masks [K] of type `mask_type`; narrower elements take their low bits.
    """

    index: Any
    source: Any
    keep: Any
    flip: Any

    @classmethod
    def given(cls, index: np.ndarray, patterns: np.ndarray | np.integer | int) -> Self:
        """The elements get these bits, [K] or one pattern for all: uint64, or else uint32.

        >>> NewBits.given(np.array([5]), 0x7F800000).flip.view(np.float32)
        array([inf], dtype=float32)
        """
        patterns = np.broadcast_to(_masks(patterns), index.shape)
        return cls(index, index, np.zeros_like(patterns), patterns)

    @classmethod
    def inverted(cls, index: np.ndarray, masks: np.ndarray | np.integer | int) -> Self:
        """The bits of the masks, [K] or one for all, are inverted: uint64, or else uint32."""
        masks = np.broadcast_to(_masks(masks), index.shape)
        return cls(index, index, ~np.zeros_like(masks), masks)


def _masks(given: np.ndarray | np.integer | int) -> np.ndarray:
    return np.asarray(given, np.uint64 if getattr(given, "dtype", None) == np.uint64 else np.uint32)


def width_of(dtype: Any) -> int:
    """The bits of an element: 1 of a truth value, and 2 or 4 of the types that have so few.

    >>> [width_of(np.dtype(kind)) for kind in ("bool", "int4", "bfloat16", "float64")]
    [1, 4, 16, 64]
    """
    dtype = np.dtype(dtype)
    if dtype.kind == "b":
        return 1
    if dtype.type.__module__ != "ml_dtypes" or dtype.itemsize > 1:
        return 8 * dtype.itemsize
    return int((ml_dtypes.finfo if "float" in dtype.name else ml_dtypes.iinfo)(dtype).bits)


def mask_type(dtype: Any) -> type[np.uint32] | type[np.uint64]:
    """The type of masks for elements of a type: uint32, and uint64 where that has too few bits.

    >>> [mask_type(kind).__name__ for kind in ("bfloat16", "float32", "int64")]
    ['uint32', 'uint32', 'uint64']
    """
    return np.uint64 if width_of(dtype) > 32 else np.uint32


def low_bits(dtype: Any) -> Any:
    """The mask of the bits that an element of less than a byte has; all ones of others, which leave out high bits.

    >>> hex(low_bits("int4")), hex(low_bits("uint8"))
    ('0xf', '0xffffffff')
    """
    return ~mask_type(dtype)(0) if (width := width_of(dtype)) >= 8 else np.uint32((1 << width) - 1)


def signed(word: Any) -> int:
    """The bits of an element as a number that files and databases keep: those of 64 bits as a signed integer.

    >>> signed(np.uint64(1 << 63)), signed(np.uint32(1 << 31))
    (-9223372036854775808, 2147483648)
    """
    return int(word.astype(np.int64) if word.dtype == np.uint64 else word)


def unstruck(dtype: Any) -> str:
    """Why no fault strikes elements of a type; empty where one can.

    >>> unstruck(np.float64), unstruck(np.complex64), unstruck(np.str_)
    ('', 'consists of complex numbers', 'consists of no numbers')
    """
    dtype = np.dtype(dtype)
    if dtype.kind == "c":
        return "consists of complex numbers"
    if dtype.kind not in "biuf" and dtype.type.__module__ != "ml_dtypes":
        return "consists of no numbers"
    return f"has {width_of(dtype)} bits, more than the 64 of a mask" if width_of(dtype) > 64 else ""


def host_words(elements: np.ndarray) -> np.ndarray:
    """The bits of elements on the host, as unsigned integers of at least 8 bits.

    >>> host_words(np.array([-1, 1]).astype("int4")).tolist()
    [15, 1]
    """
    words = np.ascontiguousarray(elements).view(f"u{elements.dtype.itemsize}").reshape(elements.shape)
    return words & words.dtype.type((1 << width_of(elements.dtype)) - 1)


def of_host_words(words: np.ndarray, dtype: Any) -> np.ndarray:
    """The elements of such bits; the inverse of `host_words`."""
    dtype = np.dtype(dtype)
    if dtype.kind == "b":
        return np.asarray(words) != 0
    return np.asarray(words).astype(f"u{dtype.itemsize}").view(dtype)


def rewritten(words: Any, keep: Any, flip: Any) -> Any:
    """The new bits of elements that have read these words, in the words' own width; arrays of NumPy or of JAX.

    >>> [hex(word) for word in rewritten(np.array([0x3F80, 0x4000], np.uint16), np.uint64([0, ALL_ONES]), np.uint64(1))]
    ['0x1', '0x4001']
    """
    return (words & keep.astype(words.dtype)) ^ flip.astype(words.dtype)
