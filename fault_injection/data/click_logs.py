"""Tables of labelled examples by name."""

import pathlib
from collections.abc import Callable
from typing import NamedTuple

from . import adult, criteo, criteo_text
from .clicks import Clicks


class ClickLogInfo(NamedTuple):
    """What is known of a table of examples before it is read, and how to read it.

    Attributes:
      numbers: columns of numbers.
      sizes: rows of the table of each category.
      load: reads it, from the folder given or from where it looks by default, for tables of the sizes
        given; raises InputError or OSError.
      find: whether `load` would find it; raises InputError.
    """

    numbers: int
    sizes: tuple[int, ...]
    load: Callable[[pathlib.Path | None, tuple[int, ...]], Clicks]
    find: Callable[[pathlib.Path | None], object] = lambda folder: True


CLICK_LOGS = {
    "adult": ClickLogInfo(len(adult.NUMBERS), adult.SIZES, adult.load_adult),
    "criteo": ClickLogInfo(criteo_text.NUMBERS, criteo.SIZES, criteo.load_criteo, criteo.find_criteo),
}
