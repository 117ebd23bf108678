"""Number formats of operands: what their bits mean, and which bits a number has.

Floating-point formats of at most 64 bits are those of NumPy and `ml_dtypes`; integers have bits too.
"""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np

from ..models.bits import host_words, mask_type, of_host_words, width_of


@dataclasses.dataclass(frozen=True)
class Format:
    """What the bits of a number mean: a sign, then the exponent, then the mantissa; bit 0 is the lowest.

    Attributes:
      name: as NumPy or `ml_dtypes` names the type.
      width: bits of an element.
      exponent, mantissa: how many bits of each; integers have neither.
      infinite: whether there are infinities.

    >>> bfloat16 = format_of(np.dtype("bfloat16"))
    >>> bfloat16.role(14), bfloat16.bit("mantissa 1"), [hex(bits) for bits in bfloat16.special]
    ('exponent 1', 6, ['0x7fc0', '0x7f80', '0xff80'])
    """

    name: str
    width: int
    exponent: int
    mantissa: int
    infinite: bool

    @property
    def dtype(self) -> np.dtype:
        """The type of its elements."""
        return np.dtype(self.name)

    @property
    def mask(self) -> type[np.uint32] | type[np.uint64]:
        """The type of masks for its elements."""
        return mask_type(self.dtype)

    @property
    def special(self) -> tuple[int, ...]:
        """The bits of a NaN and, where there are any, of both infinities."""
        values = [np.nan, np.inf, -np.inf][: 3 if self.infinite else 1]
        return tuple(self.bits(values).tolist()) if self.exponent else ()

    @property
    def largest(self) -> float:
        """The largest finite number."""
        if self.width == 1:
            return 1.0
        return float(ml_dtypes.finfo(self.name).max) if self.exponent else float(ml_dtypes.iinfo(self.name).max)

    def bits(self, values: Sequence[float] | np.ndarray) -> np.ndarray:
        """Of type `mask`, [K]: the bits of numbers rounded to this format, or of integers as they are.

        >>> [hex(bits) for bits in FLOAT32.bits((1.0, -0.0))]
        ['0x3f800000', '0x80000000']
        """
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            rounded = np.array(values, np.float64).astype(self.dtype)
        return host_words(rounded).astype(self.mask)

    def values(self, bits: Sequence[int] | np.ndarray) -> np.ndarray:
        """The numbers of given bits (integers [K]), in this format's own type."""
        return of_host_words(np.asarray(bits), self.dtype)

    def finite(self, rng: np.random.Generator, count: tuple[int, ...]) -> np.ndarray:
        """Of type `mask`: bits drawn uniformly from those of all finite numbers."""
        below: Any = functools.partial(rng.integers, size=count, dtype=self.mask)
        if not self.exponent:
            return below(1 << self.width)
        if self.name.endswith("fnuz"):  # what would be -0 alone is a NaN
            drawn = below((1 << self.width) - 1)
            return drawn + (drawn >= 1 << (self.width - 1)).astype(self.mask)
        sign = below(2) << (self.width - 1)
        if not self.infinite:  # all ones alone is a NaN
            return sign | below((1 << (self.width - 1)) - 1)
        exponent = below((1 << self.exponent) - 1)  # all ones: NaN and infinity
        return sign | (exponent << self.mantissa) | below(1 << self.mantissa)

    def role(self, bit: int) -> str:
        """What a bit is for: `sign`, or its place in exponent or mantissa, counted from the top.

        >>> [FLOAT32.role(bit) for bit in (31, 30, 23, 22)]
        ['sign', 'exponent 1', 'exponent 8', 'mantissa 1']
        """
        if not self.exponent:
            return f"bit {bit}"
        if bit == self.width - 1:
            return "sign"
        if bit >= self.mantissa:
            return f"exponent {self.mantissa + self.exponent - bit}"
        return f"mantissa {self.mantissa - bit}"

    def bit(self, role: str) -> int | None:
        """The bit of a role; None where this format has none of it.

        >>> FLOAT32.bit("exponent 1"), format_of("float16").bit("mantissa 11")
        (30, None)
        """
        return next((bit for bit in range(self.width) if self.role(bit) == role), None)

    def beyond(self, value: float, zero: bool) -> str | None:
        """What a finite number should have been that rounding makes infinite, NaN or zero; None if it is none.

        Args:
          value: the number, which a float64 has perhaps rounded already.
          zero: whether it is zero.

        >>> print(format_of("float16").beyond(1e9, zero=False))
        a float16, at most 65504 in size (or inf)
        """
        if not self.exponent:
            return None
        rounded = float(self.values(self.bits([value]))[0])
        if not np.isfinite(rounded):
            return f"a {self.name}, at most {_short(self.largest)} in size (or {'inf' if self.infinite else 'nan'})"
        if rounded == 0 and not zero:
            least = float(ml_dtypes.finfo(self.name).smallest_subnormal)
            return f"a {self.name}, at least {least:.2g} in size (or 0)"
        return None


def _short(number: float) -> str:
    """A large number as people write it: 65504, 3.4028235e38."""
    return f"{number:.8g}".replace("e+", "e")


@functools.cache
def format_of(dtype: Any) -> Format:
    """The format of a floating-point type of at most 64 bits, or of integers."""
    found = np.dtype(dtype)
    width = width_of(found)
    if not found.name.startswith(("float", "bfloat")):  # whose kinds NumPy does not tell apart
        return Format(found.name, width, 0, 0, False)
    info = ml_dtypes.finfo(found)
    with np.errstate(over="ignore", invalid="ignore"):
        infinite = bool(np.isinf(np.array(np.inf).astype(found).astype(np.float32)))
    return Format(found.name, width, info.nexp, info.nmant, infinite)


FLOAT32 = format_of("float32")
