"""Texts by name."""

import pathlib
from collections.abc import Callable
from typing import NamedTuple

from .shakespeare import VOCABULARY, load_shakespeare
from .token_folder import find_token_folder, load_token_folder
from .tokens import Tokens


class TextInfo(NamedTuple):
    """What is known of a text before it is read, and how to read it.

    Attributes:
      vocabulary: the smallest that has all its tokens; 1 where only its files say that.
      load: reads it, from the folder given or from where it looks by default, for a vocabulary and
        a context; raises InputError or OSError.
      find: whether `load` would find it; raises InputError.
    """

    vocabulary: int
    load: Callable[[pathlib.Path | None, int, int], Tokens]
    find: Callable[[pathlib.Path | None], object] = lambda folder: True


TEXTS: dict[str, TextInfo] = {
    "shakespeare": TextInfo(VOCABULARY, load_shakespeare),
    "folder": TextInfo(1, load_token_folder, find_token_folder),
}
