"""A function in a user's own file, by its name `FILE.py:FUNCTION`."""

import pathlib
from collections.abc import Callable
from typing import Any

from ..machine.errors import InputError
from ..machine.reading import SHOWN
from ..machine.user_files import user_module


def own_function(name: str) -> tuple[Callable[..., Any], pathlib.Path]:
    """The user's function `FILE.py:FUNCTION`, and its file; raises InputError where there is none."""
    file, _, function = name.rpartition(":")
    path, shown = pathlib.Path(file), name[:SHOWN]
    try:
        there = path.is_file()
    except (OSError, ValueError):  # no file can have this name
        there = False
    if not there:
        raise InputError(f"workload {shown!r}: there is no such file")
    try:
        module = user_module(path)
    except (Exception, SystemExit) as error:  # a script may end itself
        raise InputError(f"workload {shown!r}: {type(error).__name__} on import: {error}", path) from None
    make = getattr(module, function, None)
    if not callable(make):
        raise InputError(f"workload {shown!r}: no function {function!r} here", path)
    return make, path
