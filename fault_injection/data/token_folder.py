"""A folder of tokens as nanoGPT prepares it: `train.bin` and `val.bin`, each a row of 16-bit numbers."""

import pathlib

import numpy as np

from ..machine.environment import data_folder
from ..machine.errors import InputError
from .tokens import Tokens, checked_tokens

FILES = ("train.bin", "val.bin")
DTYPE = np.dtype("<u2")  # without a header


def load_token_folder(folder: pathlib.Path | None, vocabulary: int, context: int) -> Tokens:
    """The tokens of a folder, memory-mapped, and each looked at once before anything else is done.

    Args:
      folder: has the two files; None looks in `$FAULT_INJECTION_DATA` (by default `data` in the cache).
      vocabulary, context: as in `checked_tokens`.

    Raises:
      InputError: a file is missing, or of an odd number of bytes, or as `checked_tokens`; the message names it.
      OSError: a file cannot be read.

    Reference: Karpathy, nanoGPT, `data/*/prepare.py`.
    """
    found = find_token_folder(folder)
    parts = []
    for path in (found / name for name in FILES):
        size = path.stat().st_size
        if size % DTYPE.itemsize:
            raise InputError(f"{size} bytes; expected an even number, two for each token", path)
        parts.append(np.memmap(path, DTYPE, "r") if size else np.empty(0, DTYPE))
    return checked_tokens(parts[0], parts[1], vocabulary, context, (found / FILES[0], found / FILES[1]))


def find_token_folder(folder: pathlib.Path | None) -> pathlib.Path:
    """The folder given, or else the one where this looks by default; it has both files.

    Raises:
      InputError: it lacks one.
    """
    found = folder or data_folder()
    if missing := [name for name in FILES if not (found / name).is_file()]:
        expected = "expected the two files of a folder that nanoGPT prepares; name it with --data-dir"
        raise InputError(f"has no {' and no '.join(missing)}; {expected}", found)
    return found
