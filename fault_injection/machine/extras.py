"""Packages that only some formats need: the extras of this package."""

import importlib
import pathlib
import types

from .errors import InputError


def import_extra(module: str, extra: str, what: str, path: pathlib.Path | None = None) -> types.ModuleType:
    """Import a module of an extra.

    Args:
      what: needs it, for the message; `path` of that, if it has one.

    Raises:
      InputError: it is not installed.

    >>> import_extra("json", "upstream", "published checkpoints").loads("[1]")
    [1]
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        how = f"pip install 'fault-injection[{extra}]', in a checkout: pip install -e '.[{extra}]'"
        raise InputError(f"{what} need {module} ({error}): {how}", path) from None
