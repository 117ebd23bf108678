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
        what = f"workload {name[:SHOWN]!r}: {name.rpartition(':')[2]!r} is of type {type(make).__name__}"
        raise InputError(f"{what}; expected a function that returns it, def training(): return Training(…)", path)
    return make, path
