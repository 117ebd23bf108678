"""All workloads by name."""

import dataclasses
import importlib
import importlib.util
import pathlib
import sys
from collections.abc import Callable
from typing import Any

from ..machine.errors import InputError, did_you_mean
from ..machine.reading import SHOWN
from .click_workloads import RECOMMENDERS
from .image_workloads import PUBLISHED
from .text_workloads import TRANSFORMERS
from .workload import Workload

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
    file, colon, function = name.rpartition(":")
    if not colon or not file.endswith(".py"):
        own = " (or FILE.py:FUNCTION, for a workload of your own)"
        raise InputError(f"workload {name[:SHOWN]!r} is unknown{did_you_mean(name, WORKLOADS)}{own}")
    return _load(pathlib.Path(file), function, name)


def _load(path: pathlib.Path, function: str, name: str) -> Workload:
    shown = name[:SHOWN]
    make = _function(path, function, name)
    try:
        made = make()
    except Exception as error:
        raise InputError(f"workload {shown!r}: {function} raises {type(error).__name__}: {error}", path) from None
    if isinstance(made, Workload):
        return dataclasses.replace(made, name=name)  # by which it is found again
    # By a computed name: what interprets a user's step is no part of the code of other workloads.
    own = importlib.import_module(".training", __package__)
    if not isinstance(made, own.Training):
        found = type(made).__name__
        raise InputError(f"workload {shown!r}: {function} returns {found}, expected a Training or a Workload", path)
    return own.own_workload(name, make, made)


def own_function(name: str) -> tuple[Callable[..., Any], pathlib.Path]:
    """The user's function `FILE.py:FUNCTION`, and its file; raises InputError where there is none."""
    file, _, function = name.rpartition(":")
    return _function(pathlib.Path(file), function, name), pathlib.Path(file)


def _function(path: pathlib.Path, function: str, name: str) -> Callable[..., Any]:
    shown = name[:SHOWN]
    try:
        there = path.is_file()
    except (OSError, ValueError):  # no file can have this name
        there = False
    if not there:
        raise InputError(f"workload {shown!r}: there is no such file")
    # By its path, so that classes defined there can be pickled and found again.
    module_name = f"fault_injection_workload_{path.resolve().as_posix()}"
    if module_name not in sys.modules:
        spec = importlib.util.spec_from_file_location(module_name, path)
        assert spec is not None and spec.loader is not None  # it is a .py file
        module = importlib.util.module_from_spec(spec)
        sys.modules[module_name] = module
        try:
            spec.loader.exec_module(module)
        except Exception as error:
            del sys.modules[module_name]
            raise InputError(f"workload {shown!r}: {type(error).__name__} on import: {error}", path) from None
    make = getattr(sys.modules[module_name], function, None)
    if not callable(make):
        raise InputError(f"workload {shown!r}: no function {function!r} here", path)
    return make


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
