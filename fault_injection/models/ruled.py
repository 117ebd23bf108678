"""What a rule strikes, decided in the step by the bits of each element."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from .bits import rewritten, width_of
from .rule import StrikeRule, chance


def has_rules(dtype: Any) -> bool:
    """Whether a rule can strike elements of a type: floating-point numbers with a sign."""
    return bool(jnp.issubdtype(dtype, jnp.floating)) and bool(jnp.finfo(dtype).min < 0)


def struck_by(words: jax.Array, size: jax.Array, dtype: Any, rule: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Which elements of a tensor a rule strikes, and the bits that each would get.

    Args:
      words: [n], the bits of the tensor; n is at least 1.
      size: int32, how many of them there are: what follows is padding.
      dtype: the type of the tensor, one that `has_rules`.
      rule: [11], see `StrikeRule`.

    Returns:
      Booleans [n], and bits [n].

    >>> from fault_injection.models.rule import EVERY_ELEMENT, NO_RULE
    >>> words = lax.bitcast_convert_type(jnp.float32([0.5, 1.0, 4.0]), jnp.uint32)
    >>> band = NO_RULE._replace(least=0x3F000000, most=0x3FFFFFFF, threshold=EVERY_ELEMENT)
    >>> band = band._replace(flip=0x80000000, keep=0xFFFFFFFF)
    >>> struck, new = struck_by(words, jnp.int32(3), jnp.float32, jnp.asarray(band.words(np.uint32)))
    >>> struck.tolist(), lax.bitcast_convert_type(new, jnp.float32).tolist()
    ([True, True, False], [-0.5, -1.0, -4.0])
    """
    told, width = StrikeRule(*rule), width_of(dtype)
    magnitude = (words & words.dtype.type((1 << (width - 1)) - 1)).astype(rule.dtype)
    position, count = lax.iota(jnp.uint32, words.size), lax.max(size, np.int32(1)).astype(jnp.uint32)
    period, phase, seed, threshold, offset = rule[np.array([2, 3, 4, 5, 6])].astype(jnp.uint32)
    struck = (told.least <= magnitude) & (magnitude <= told.most) & (position < size.astype(jnp.uint32))
    struck &= lax.rem(position, lax.max(period, np.uint32(1))) == phase
    struck &= chance(position, seed) <= threshold
    source = words[lax.rem(position + offset, count)]  # both are below 2³¹
    wide = jnp.float64 if rule.dtype == np.uint64 else jnp.float32
    numbers = lax.bitcast_convert_type(words if width >= 8 else words.astype(f"uint{width}"), dtype)
    multiplied = (numbers.astype(wide) * lax.bitcast_convert_type(told.factor, wide)).astype(dtype)
    as_words = lax.bitcast_convert_type(multiplied, jnp.dtype(f"uint{width}")).astype(words.dtype)
    return struck, jnp.where(told.factor != 0, as_words, rewritten(source, told.keep, told.flip))
