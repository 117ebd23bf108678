"""New bits of some elements of a tensor: one value and one formula, for files, for the host and for a step."""

import dataclasses
from typing import Any, Self

import ml_dtypes  # NumPy knows bfloat16 and its like by it
import numpy as np

ALL_ONES = 0xFFFFFFFF


@dataclasses.dataclass(frozen=True)
class NewBits:
    """What some elements of a tensor become: element `index[k]` gets `(bits of element source[k] & keep[k]) ^ flip[k]`.

    Every source is read before any element is written.  So `keep = 0` sets the element to the bits `flip`.  With
    `keep` all ones, the bits `flip` are inverted (`source = index`), or another element is copied (`flip = 0`).
    Outside of a step these are arrays of NumPy.

    Attributes:
      index: int64 [K], distinct row-major positions; of a fault int32, with negative ones as padding.
      source: as `index`, positions whose bits are read.
      keep, flip: uint32 [K], masks; narrower elements take their low bits.
    """

    index: Any
    source: Any
    keep: Any
    flip: Any

    @classmethod
    def given(cls, index: np.ndarray, patterns: np.ndarray | int) -> Self:
        """The elements get these bits, uint32 [K] or one pattern for all.

        >>> NewBits.given(np.array([5]), 0x7F800000).flip.view(np.float32)
        array([inf], dtype=float32)
        """
        patterns = np.broadcast_to(np.asarray(patterns, np.uint32), index.shape)
        return cls(index, index, np.zeros(index.shape, np.uint32), patterns)

    @classmethod
    def inverted(cls, index: np.ndarray, masks: np.ndarray | int) -> Self:
        """The bits of the masks, uint32 [K] or one for all, are inverted."""
        masks = np.broadcast_to(np.asarray(masks, np.uint32), index.shape)
        return cls(index, index, np.full(index.shape, ALL_ONES, np.uint32), masks)


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


def low_bits(dtype: Any) -> np.uint32:
    """The mask of the bits that an element of less than a byte has; all ones of others, which leave out high bits.

    >>> hex(low_bits("int4")), hex(low_bits("uint8"))
    ('0xf', '0xffffffff')
    """
    return np.uint32(ALL_ONES if (width := width_of(dtype)) >= 8 else (1 << width) - 1)


def unstruck(dtype: Any) -> str:
    """Why no fault strikes elements of a type; empty where one can: masks are uint32.

    >>> unstruck(np.float64), unstruck(np.complex64), unstruck(np.int8)
    ('has 64 bits, more than the 32 of a mask', 'consists of complex numbers', '')
    """
    dtype = np.dtype(dtype)
    if dtype.kind == "c":
        return "consists of complex numbers"
    if dtype.kind not in "biuf" and dtype.type.__module__ != "ml_dtypes":
        return "consists of no numbers"
    return f"has {width_of(dtype)} bits, more than the 32 of a mask" if width_of(dtype) > 32 else ""


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

    >>> [hex(word) for word in rewritten(np.array([0x3F80, 0x4000], np.uint16), np.uint32([0, ALL_ONES]), np.uint32(1))]
    ['0x1', '0x4001']
    """
    return (words & keep.astype(words.dtype)) ^ flip.astype(words.dtype)
