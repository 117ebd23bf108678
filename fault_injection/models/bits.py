"""New bits of some elements of a tensor: one value and one formula, for files, for the host and for a step."""

import dataclasses
from typing import Any, Self

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


def rewritten(words: Any, keep: Any, flip: Any) -> Any:
    """The new bits of elements that have read these words, in the words' own width; arrays of NumPy or of JAX.

    >>> [hex(word) for word in rewritten(np.array([0x3F80, 0x4000], np.uint16), np.uint32([0, ALL_ONES]), np.uint32(1))]
    ['0x1', '0x4001']
    """
    return (words & keep.astype(words.dtype)) ^ flip.astype(words.dtype)
