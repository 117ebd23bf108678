"""A function in a user's own file, by its name `FILE.py:FUNCTION`."""

import pathlib
from collections.abc import Callable
from typing import Any

from ..machine.errors import InputError
from ..machine.reading import SHOWN
from ..machine.user_files import user_object


def own_function(name: str) -> tuple[Callable[..., Any], pathlib.Path]:
    """The user's function `FILE.py:FUNCTION`, and its file; raises InputError where there is none."""
    make, path = user_object(name, "workload")
    if not callable(make):
        raise InputError(f"workload {name[:SHOWN]!r}: no function {name.rpartition(':')[2]!r} here", path)
    return make, path
