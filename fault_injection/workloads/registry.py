"""All workloads by name."""

import dataclasses
from typing import Any

from ..machine.errors import InputError, did_you_mean
from ..machine.reading import SHOWN
from ..seam.workload import Workload
from .click import RECOMMENDERS
from .image import PUBLISHED
from .own_file import own_function
from .text import TRANSFORMERS

WORKLOADS: dict[str, Workload] = {**PUBLISHED, **TRANSFORMERS, **RECOMMENDERS}


def find_workload(name: str) -> Workload:
    """A workload of `WORKLOADS`, or what a user's own `FILE.py:FUNCTION` returns.

    >>> find_workload("resnet18").epochs
    80

    Raises:
      InputError: there is none of this name, or the function returns something else.
    """
    if name in WORKLOADS:
        return WORKLOADS[name]
    file, colon, _ = name.rpartition(":")
    if not colon or not file.endswith(".py"):
        own = " (or FILE.py:FUNCTION, for a workload of your own)"
        raise InputError(f"workload {name[:SHOWN]!r} is unknown{did_you_mean(name, WORKLOADS)}{own}")
    return _load(name)


def _load(name: str) -> Workload:
    from ..any_step.training import Training  # which imports JAX, as the user's file does
    from .own import own_workload

    shown, function = name[:SHOWN], name.rpartition(":")[2]
    make, path = own_function(name)
    try:
        made = make()
    except (Exception, SystemExit) as error:
        raise InputError(f"workload {shown!r}: {function} raises {type(error).__name__}: {error}", path) from None
    if isinstance(made, Workload):
        return dataclasses.replace(made, name=name)  # by which it is found again
    if not isinstance(made, Training):
        found = type(made).__name__
        raise InputError(f"workload {shown!r}: {function} returns {found}, expected a Training or a Workload", path)
    return own_workload(name, make, made)


def make_workload(name: str, **options: Any) -> Workload:
    """The workload `name` with `options` replaced; see `Workload.changed`.

    >>> make_workload("resnet18", dataset="digits").dropout
    0.0
    """
    return find_workload(name).changed(**options)


def restore_workload(kept: dict[str, Any]) -> Workload:
    """The workload whose fields, `dataclasses.asdict` of it, were kept as JSON."""
    fields = {key: tuple(value) if isinstance(value, list) else value for key, value in kept.items()}
    return find_workload(kept["name"]).changed(**fields)
