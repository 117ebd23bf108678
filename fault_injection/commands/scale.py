"""`scale`: write an injection file for another scale, and say the mapping."""

import argparse
import pathlib

from ..faults.injection_file import read_injection, write_injection
from ..faults.scaling import scale, scaled_name
from ..machine.errors import InputError
from .arguments import flag, tell
from .workload_arguments import given, workload_options


def add(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("file", type=pathlib.Path, metavar="FILE", help="injection file")
    workload_options(sub, None, scaling_only=True)
    sub.add_argument("--out", type=pathlib.Path, help="the new file (default: NAME_width8_epochs20.csv or the like)")
    sub.add_argument("--force", action="store_true", help="overwrite the new file, if it exists")


def run(options: argparse.Namespace) -> None:
    injection = read_injection(options.file)
    changes = given(options, injection.workload)
    if not changes:
        raise InputError(f"scale to what? give at least one of {', '.join(map(flag, options.option_names))}")
    scaled, mapping = scale(injection, **changes)
    out = options.out or pathlib.Path(scaled_name(options.file.stem, injection.workload, changes))
    if out.is_dir():
        raise InputError("--out is a folder, expected a file", out)
    if out.exists() and not options.force:
        raise InputError("exists already; choose another file with --out, or overwrite it with --force", out)
    write_injection(out, scaled)
    for line in (*mapping, scaled.sentence(), f"written to {out}"):
        tell(line)
