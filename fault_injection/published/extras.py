"""Packages that only the published checkpoints need: the extra `upstream`."""

import importlib
import types

from ..machine.errors import InputError


def import_extra(module: str) -> types.ModuleType:
    """Import a module of the extra `upstream`; raises InputError where it is not installed.

    >>> import_extra("json").loads("[1]")
    [1]
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise InputError(f"published checkpoints need {module} ({error}): pip install -e '.[upstream]'") from None
