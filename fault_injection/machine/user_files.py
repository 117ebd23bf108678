"""Python files of a user, imported by their path: what they define can be pickled, and found again by other processes.

A user's folder may hold a `models.py` or a `data.py`.  The file finds them, as when Python runs it: its folder is
searched first.  The file itself is no module of its plain name, which may be that of a library.
"""

import importlib
import importlib.util
import pathlib
import sys
from types import ModuleType
from typing import Any

from .errors import InputError
from .reading import SHOWN

PREFIX = "fault_injection_workload_"  # of a module's name, before its path


def user_module(path: pathlib.Path) -> ModuleType:
    """The module of a file, imported once; raises whatever its code raises.

    From then on the file's folder is the first in which imports look, also those that its functions do later.
    """
    name = f"{PREFIX}{path.resolve().as_posix()}"
    if name not in sys.modules:
        folder = str(path.resolve().parent)
        if folder not in sys.path[:1]:
            sys.path.insert(0, folder)
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None and spec.loader is not None  # it is a .py file
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        try:
            spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[name]
            raise
    return sys.modules[name]


def module_named(name: str) -> ModuleType:
    """The module of a name: a user's file as `user_module` names it, or any other."""
    return (
        user_module(pathlib.Path(name.removeprefix(PREFIX)))
        if name.startswith(PREFIX)
        else importlib.import_module(name)
    )


def user_object(name: str, what: str) -> tuple[Any, pathlib.Path]:
    """What a user's file calls by a name, `FILE.py:NAME`, and the file.

    Args:
      what: it is to be, for messages: `workload`.

    Raises:
      InputError: there is no such file, its import fails, or it has no such name.
    """
    file, _, wanted = name.rpartition(":")
    path, shown = pathlib.Path(file), name[:SHOWN]
    try:
        there = path.is_file()
    except (OSError, ValueError):  # no file can have this name
        there = False
    if not there:
        raise InputError(f"{what} {shown!r}: there is no such file")
    try:
        module = user_module(path)
    except (Exception, SystemExit) as error:  # a script may end itself
        raise InputError(f"{what} {shown!r}: {type(error).__name__} on import: {error}", path) from None
    if not hasattr(module, wanted):
        raise InputError(f"{what} {shown!r}: no {wanted!r} here", path)
    return getattr(module, wanted), path
