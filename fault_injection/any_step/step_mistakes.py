"""What is said of a step that cannot be traced: the place in the user's file, and the remedy."""

import collections
import gc
import pathlib
import re
import traceback
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from ..machine.errors import InputError
from .jax_internals import is_tracer_of

# What an error's text has in it, and what to do about it.
REMEDIES = (
    ("Attempted boolean conversion", "Python branches by a value that is traced; use jnp.where or lax.cond there"),
    ("Abstract tracer value", "a number is asked for where it is traced, as by float() or .item(); return the array"),
    ("TracerArrayConversion", "NumPy is given a value that is traced; use jax.numpy there"),
    ("TracerIntegerConversion", "an index or a shape is traced; make it a number that the step does not get"),
    ("pytree structure error", "shardings need the structure of what they are for, or one for all of it"),
    ("is not a valid JAX type", "it is no array; make it one, or keep it outside of state and batch"),
    ("set_mesh", "set the mesh around instrument and the loop, not in the step"),
    (
        "lowered and compiled for",
        "the step is compiled ahead of time; give the function itself, before .lower().compile()",
    ),
)


def check_names(names: Sequence[str]) -> None:
    """Raise InputError where two leaves of a state have one name, as `{"a/b": 1, "a": {"b": 2}}` has."""
    called = collections.Counter(names)
    if len(called) < len(names):
        twice = called.most_common(1)[0][0]
        raise InputError(f"two leaves of the state are called {twice!r}; rename one: names tell leaves apart")


def check_results(results: Any, state: Any) -> None:
    """See that a step returns a new state and metrics of numbers; raises InputError."""
    if not isinstance(results, tuple) or len(results) != 2:
        found = f"a tuple of {len(results)}" if isinstance(results, tuple) else f"a {type(results).__name__}"
        raise InputError(f"the step returns {found}, in which its state is not; expected (state, metrics)")
    for path, leaf in jax.tree_util.tree_flatten_with_path(results[1])[0]:
        words = isinstance(leaf, (np.ndarray, np.generic)) and leaf.dtype.kind in "OSUMm"
        if words or not isinstance(leaf, (jax.Array, np.ndarray, np.generic, int, float, complex)):
            name = jax.tree_util.keystr(path, simple=True, separator="/")
            found = f"{name!r} of the step's metrics is {leaf!r:.60}, which is no number"
            raise InputError(f"{found}: leave it out of what the step returns")


def called(what: str, call: Callable[[], Any]) -> Any:
    """What a function of the user's gives; raises InputError where it raises."""
    try:
        return call()
    except Exception as error:
        raise InputError(f"{what} raises {type(error).__name__}: {first_line(error)}") from error


def first_line(error: Exception) -> str:
    """What an error says first."""
    return str(error).strip().partition("\n")[0][:300]


def cannot_be_traced(error: Exception, what: str = "the step") -> InputError:
    """What is said of an error that is raised while a step, or another function of the user's, is traced."""
    text = str(error)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    reason = lines[0][:300] if lines else ""
    if reason.startswith("Mismatch") or reason.endswith(":"):  # JAX's text begins with the reason elsewhere
        reason = " ".join(lines)[:300]
    frames = [one for one in traceback.extract_tb(error.__traceback__) if _of_user(one.filename)]
    at = f" ({frames[-1].filename.rpartition('/')[2]}:{frames[-1].lineno})" if frames else ""
    whole = f"{type(error).__name__}: {' '.join(lines)}"
    remedy = next((f": {remedy}" for part, remedy in REMEDIES if part in whole), "")
    return InputError(f"{what} cannot be traced{at}: {type(error).__name__}: {reason.rstrip('.')}{remedy}")


def _of_user(file: str) -> bool:
    return not re.search(r"site-packages|fault_injection/(any_step|seam|runs|workloads)|^<|/contextlib\.py$", file)


def keeper(trace: Any) -> str:
    """What keeps a value of a trace, such as `Trainer.w`; empty where nothing of the user's does.

    JAX's own search for it can fail, and looks at one step of the way alone.
    """
    for value in gc.get_objects():
        if is_tracer_of(value, trace) and (found := _named(value, 5, {id(value)})):
            return found
    return ""


def _named(value: Any, steps: int, seen: set[int]) -> str:
    """The name of an attribute or variable through which a value can be reached."""
    if steps == 0:
        return ""
    for holder in gc.get_referrers(value):
        if id(holder) in seen or isinstance(holder, types.FrameType):
            continue
        seen.add(id(holder))
        if isinstance(holder, (list, tuple, set, dict)):
            name = _global(holder, value) or _named(holder, steps - 1, seen)
        elif isinstance(holder, types.CellType):
            name = next(_variables(holder), "")
        else:
            name = _attribute(holder, value)
        if name:
            return name
    return ""


def _global(holder: Any, value: Any) -> str:
    """The name of a module's variable, or of an object's attribute where the object's dictionary is the holder."""
    if not isinstance(holder, dict):
        return ""
    key = next((str(key) for key, one in list(holder.items()) if one is value), "")
    if "__name__" in holder and "__spec__" in holder:
        module = pathlib.Path(holder.get("__file__") or str(holder["__name__"])).stem  # of a user's file, by its name
        return "" if _of_library(str(holder["__name__"])) else f"{module}.{key}"
    owner = next((one for one in gc.get_referrers(holder) if getattr(one, "__dict__", None) is holder), None)
    return "" if owner is None or _of_library(type(owner).__module__) else f"{type(owner).__name__}.{key}"


def _attribute(holder: Any, value: Any) -> str:
    if _of_library(type(holder).__module__):
        return ""
    kept = getattr(holder, "__dict__", {})
    key = next((key for key, one in kept.items() if one is value), "") if isinstance(kept, Mapping) else ""
    return f"{type(holder).__name__}.{key}" if key else ""


def _variables(cell: Any) -> Iterator[str]:
    """The names that functions have for a variable of a function around them."""
    for closure in gc.get_referrers(cell):
        for function in gc.get_referrers(closure) if isinstance(closure, tuple) else ():
            if isinstance(function, types.FunctionType) and not _of_library(function.__module__):
                names: Sequence[str] = function.__code__.co_freevars
                yield names[[one is cell for one in closure].index(True)]


def _of_library(module: str | None) -> bool:
    return (module or "").partition(".")[0] in ("jax", "jaxlib", "equinox", "flax", "builtins", "weakref", "functools")
