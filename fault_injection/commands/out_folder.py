"""Where the results of replays go: to `out/`, a folder for each file.  In `results/` are those that we ship."""

import json
import os
import pathlib

from ..faults.injection import Injection
from ..faults.injection_file import format_injection
from ..machine.errors import InputError
from ..machine.files import read_bounded
from ..machine.processes import from_leader
from ..runs.finished import LARGEST

OUT = pathlib.Path("out")
DEFAULT = f"{OUT}/NAME of the file in the current folder or in one named injections, else {OUT}/FOLDER_NAME"


def default_out(file: pathlib.Path, suffix: str = "") -> pathlib.Path:
    """The folder for a file, always the same; files of one name in two folders have two.

    >>> print(default_out(pathlib.Path("my.csv")), default_out(pathlib.Path("injections/quick_start.csv")))
    out/my out/quick_start
    >>> print(default_out(pathlib.Path("examples/llama/fault.csv")))
    out/llama_fault
    """
    folder = pathlib.Path(os.path.abspath(file)).parent  # noqa: PTH100  a link keeps its own name
    plain = folder == pathlib.Path.cwd() or folder.name in ("injections", "")
    return OUT / f"{'' if plain else f'{folder.name}_'}{file.stem}{suffix}"


def check_out(out: pathlib.Path, injection: Injection | None = None) -> None:
    """Raise InputError where `out` is a file, or has the result of another injection: nothing is overwritten then."""
    from_leader(lambda: _check(out, injection))


def _check(out: pathlib.Path, injection: Injection | None) -> None:
    if out.exists() and not out.is_dir():
        raise InputError("--out is a file, expected a folder", out)
    if injection is None or not (path := out / "provenance.json").exists():
        return
    try:
        same = json.loads(read_bounded(path, LARGEST))["injection"] == format_injection(injection).splitlines()
    except (OSError, ValueError, RecursionError, LookupError, TypeError):
        same = False
    if not same:
        raise InputError("has the result of another injection; --out DIR says where this one's goes", out)
