"""`init`: write a training, or a detector, that runs as it is, with the lines to edit marked."""

import argparse
import pathlib

from ..machine.errors import InputError
from ..machine.files import write_text
from .arguments import tell
from .examples import SHIPPED

STARTERS = {
    "jax": "plain JAX and Optax",
    "flax": "Flax Linen",
    "nnx": "Flax NNX, with modules that the step changes in place",
    "equinox": "Equinox, which has to be installed",
}


def add(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("file", type=pathlib.Path, metavar="FILE.py", help="the file to write")
    said = "; ".join(f"{name}: {what}" for name, what in STARTERS.items())
    sub.add_argument("--library", choices=STARTERS, default="jax", help=f"{said} (default: %(default)s)")
    sub.add_argument("--detector", action="store_true", help="write a detector in place of a training")


def run(options: argparse.Namespace) -> None:
    name = "detector" if options.detector else options.library
    file, source = options.file, SHIPPED / "examples" / "starters" / f"{name}.py"
    if file.suffix != ".py":
        raise InputError("expected a name that ends in .py", file)
    if file.exists() or file.is_symlink():
        raise InputError("is there already; nothing was written", file)
    if not file.parent.is_dir():
        raise InputError("there is no such folder", file.parent)
    if not source.is_file():
        raise InputError("this installation lacks it; install the package again", source)
    write_text(file, source.read_text(encoding="utf-8").replace("NAME:", f"{file}:"))
    if options.detector:
        tell(f"{file} is a detector; the lines marked EDIT are yours")
        tell(f"  fault-injection score PLAN.toml --detector {file}:detector --out DIR")
        return
    tell(f"{file} is a training of {STARTERS[options.library].partition(',')[0]}; the lines marked EDIT are yours")
    for what in ("sites", "golden"):
        tell(f"  fault-injection {what} {file}:training")
