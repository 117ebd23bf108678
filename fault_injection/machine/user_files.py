"""Python files of a user, imported by their path: what they define can be pickled, and found again by other processes.

A user's folder may hold a `models.py` or a `data.py`, so a file is no module of its plain name.
"""

import importlib
import importlib.util
import pathlib
import sys
from types import ModuleType

PREFIX = "fault_injection_workload_"  # of a module's name, before its path


def user_module(path: pathlib.Path) -> ModuleType:
    """The module of a file, imported once; raises whatever its code raises."""
    name = f"{PREFIX}{path.resolve().as_posix()}"
    if name not in sys.modules:
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
