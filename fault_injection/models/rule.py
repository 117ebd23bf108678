"""A rule: which elements of an operand a defective device gets wrong, and what they become; data without JAX.

A fault with a rule lists no positions.  The step looks at each element's own bits (`ruled`), so what is struck depends
on the data.  A rule is a vector of integers, like all that a step is told of a fault: another one compiles nothing
anew.
"""

from typing import Any, NamedTuple

import numpy as np

EVERY_ELEMENT = 0xFFFFFFFF  # a threshold that each element is below, or at
GOLDEN = 0x9E3779B9  # 2³² divided by the golden ratio: consecutive positions are far apart after it


class StrikeRule(NamedTuple):
    """What the words of a rule say, in their order; each is an integer of the type of the fault's masks.

    An element is struck if all of this holds: `least ≤ |bits| ≤ most`, where |bits| are its bits without the sign, in
    whose order the magnitudes of numbers lie; its row-major position is `phase` modulo `period`; and
    `chance(position, seed) ≤ threshold`.  It gets `(bits of the element `offset` further on & keep) ^ flip`, or, where
    `factor` is not 0, its own number times the number whose bits `factor` are: of float32, or of float64 where masks
    have 64 bits, rounded to the operand's type.

    Attributes:
      least, most: magnitudes, as bits of the operand's type; a NaN lies above infinity.
      period, phase: positions.
      seed: of chance.
      threshold: 32 bits, the share of elements times 2³², less one.
      offset: elements, counted on from the first after the last.
      keep, flip: masks.
      factor: bits of a number.
      growing: strikes until the threshold is reached, which at strike k is k/growing of it; read by `at_strike` alone.
    """

    least: Any
    most: Any
    period: Any
    phase: Any
    seed: Any
    threshold: Any
    offset: Any
    keep: Any
    flip: Any
    factor: Any
    growing: Any

    def words(self, mask: type) -> np.ndarray:
        """The vector [11] that a fault carries, read-only."""
        found: np.ndarray = np.array([int(word) for word in self], mask)
        found.flags.writeable = False
        return found


NO_RULE = StrikeRule(
    least=1, most=0, period=1, phase=0, seed=0, threshold=0, offset=0, keep=0, flip=0, factor=0, growing=1
)
WORDS = len(NO_RULE)


def at_strike(words: np.ndarray, number: int) -> np.ndarray:
    """The words of a rule at strike `number`, from 0: chance is drawn anew, and what grows has grown.

    >>> rule = NO_RULE._replace(threshold=EVERY_ELEMENT, growing=4).words(np.uint32)
    >>> [hex(StrikeRule(*at_strike(rule, number)).threshold) for number in (0, 1, 3, 9)]
    ['0x3fffffff', '0x7fffffff', '0xffffffff', '0xffffffff']
    """
    rule = StrikeRule(*words.tolist())
    grown = min(number + 1, rule.growing) * (rule.threshold + 1) // rule.growing - 1
    seed = int(chance(np.array([number], np.uint32), np.uint32(rule.seed))[0])
    return rule._replace(threshold=max(grown, 0), seed=seed).words(words.dtype.type)


def chance(position: Any, seed: Any) -> Any:
    """32 bits for each position, uint32: the end of MurmurHash3, of positions spread by the golden ratio.

    Args:
      position: uint32, of NumPy or of JAX; at least one axis.
      seed: uint32.

    Reference: Appleby, MurmurHash3, `fmix32` (public domain).

    >>> found = chance(np.arange(100_000, dtype=np.uint32), np.uint32(7))
    >>> bool(abs(np.mean(found < 2**30) - 0.25) < 0.01)
    True
    """
    h = position * np.uint32(GOLDEN) + seed
    h = (h ^ (h >> 16)) * np.uint32(0x85EBCA6B)
    h = (h ^ (h >> 13)) * np.uint32(0xC2B2AE35)
    return h ^ (h >> 16)
