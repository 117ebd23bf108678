"""Cells of the row `inj_values`: how they are read in the format of an operand, and what they have to agree with."""

import functools
import re
from collections.abc import Sequence

import ml_dtypes
import numpy as np

from ..machine.reading import NUMBER, Kind
from ..models.bits import of_host_words
from ..models.fault import Operand
from .element_bits import ElementBits, format_new_bits
from .number_formats import Format, format_of
from .rows import Rows

EXACT = 2**53 - 1  # a float64 has all whole numbers up to there

# What other programs write for numbers that are none, and how an injection file writes it.
OTHER_SPELLINGS = {r"[+-]?nan": "nan", r"\+?inf(inity)?": "inf", r"-inf(inity)?": "-inf"}


def value_of(format: Format) -> Kind[float]:
    """How a cell of `inj_values` is read, for an operand of this format."""

    def parse(text: str) -> float:
        if text in OTHER_SPELLINGS.values() and not _lacks(text, format):
            return float(text)
        if not NUMBER.fullmatch(text) or _beyond(text, format):
            raise ValueError
        return float(text)

    return Kind(parse, functools.partial(_expected_value, format))


def _lacks(text: str, format: Format) -> bool:
    """Whether this is an infinity, and the format of floating-point numbers has none."""
    return text.endswith("inf") and bool(format.exponent) and not format.infinite


def _beyond(text: str, format: Format) -> str | None:
    """What a number should have been that only rounding would make infinite, NaN or zero; None where it is none."""
    return format.beyond(float(text), zero=not re.split("[eE]", text)[0].strip("+-.0"))


def _expected_value(format: Format, text: str) -> str:
    if NUMBER.fullmatch(text):
        return _beyond(text, format) or ""
    if _lacks(text, format):
        return f"nan or a number, because a {format.name} has no infinities"
    meant = [ours for theirs, ours in OTHER_SPELLINGS.items() if re.fullmatch(theirs, text, re.IGNORECASE)]
    return "a number such as -1.5e10, nan or inf" + "".join(f"; did you mean '{ours}'?" for ours in meant)


def check_whole(rows: Rows, values: Sequence[float], layer: str, operand: Operand, dtype: np.dtype) -> None:
    """Refuse values that an operand of integers, such as tokens, cannot have."""
    if format_of(dtype).exponent:
        return
    least, most = (0, 1) if dtype.kind == "b" else (ml_dtypes.iinfo(dtype).min, ml_dtypes.iinfo(dtype).max)
    if dtype.itemsize == 8:  # a cell is read as a float64; `inj_bits` says others
        least, most = max(least, -EXACT), min(most, EXACT)
    wrong = next((value for value in values if not value.is_integer() or not least <= value <= most), None)
    if wrong is not None:
        of = f"the {operand.name.lower()} of {layer}, which is {dtype.name}"
        raise rows.wrong("inj_values", f"inj_values {wrong!r} in {of}; expected whole numbers from {least} to {most}")


def check_agreement(rows: Rows, values: Sequence[float], bits: Sequence[ElementBits], dtype: np.dtype) -> None:
    """Refuse values that are not those of the bits; a NaN is any NaN."""
    if any(new.keep for new in bits):
        why = "what becomes of an element's own or copied bits is only known when it runs"
        raise rows.wrong("inj_values", f"leave out inj_values, because {why}")
    stated = format_of(dtype).bits(values)
    given = np.array([new.flip for new in bits], stated.dtype)
    # As float32: NumPy warns of signalling NaNs of narrower formats.
    nan = [np.isnan(of_host_words(each, dtype).astype(np.result_type(dtype, "f4"))) for each in (stated, given)]
    different = (stated != given) & ~(nan[0] & nan[1])
    if different.any():
        at = int(different.argmax())
        has, says = (format_new_bits(ElementBits(int(each[at])), dtype) for each in (stated, given))
        raise rows.wrong(
            "inj_values", f"inj_values {values[at]!r} has the bits {has}, but inj_bits says {says}; leave out one row"
        )
