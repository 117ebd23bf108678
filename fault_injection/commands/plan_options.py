"""What the commands share that work through a plan with many processes."""

import argparse
import contextlib
import pathlib
from collections.abc import Callable
from typing import Any

from ..campaign.executors import Slot, on_a_scheduler, on_this_machine
from ..machine import environment
from ..machine.errors import InputError
from .arguments import json_option, place_options, positive

Executors = Callable[[], contextlib.AbstractContextManager[list[Slot]]]


def plan_options(parser: argparse.ArgumentParser, folder: str, plan: str = "TOML file") -> None:
    """A plan, and where and by whom it is worked through.

    Args:
      folder: what `--out` is.
      plan: what the plan is.
    """
    parser.add_argument("plan", type=pathlib.Path, metavar="PLAN", help=plan)
    parser.add_argument("--out", type=pathlib.Path, metavar="DIR", help=folder)
    text = "validate the plan, say what would be done and what it needs, and run nothing"
    parser.add_argument("--check", action="store_true", help=text)
    text = "processes (default: one per processor or accelerator)"
    parser.add_argument("--jobs", type=positive, metavar="N", help=text)
    parser.add_argument("--scheduler", metavar="tcp://…", help="run on the workers of a Dask scheduler instead")
    json_option(parser)
    place_options(parser)


def places(options: argparse.Namespace) -> dict[str, Any]:
    """Where the jobs of a task find things, as `Task` takes it.

    `--check` makes this process such a job, with one thread on CPUs: reading the plan of a user's own step computes.
    """
    if options.check:
        environment.prepare(1, options.matrix_precision, bind=False)
    return {"cache": options.cache, "data_dir": options.data_dir, "matrix_precision": options.matrix_precision}


def driving(options: argparse.Namespace) -> tuple[pathlib.Path, Executors]:
    """Make this process one that only hands out work.

    Returns:
      The folder, and a function that starts the jobs; they end with its context.

    Raises:
      InputError: the folder is missing or a file, or two places are given.
    """
    if options.out is None:
        raise InputError("--out DIR is missing: the folder of the campaign")
    if options.out.exists() and not options.out.is_dir():
        raise InputError("--out is a file, expected a folder", options.out)
    if options.scheduler and options.jobs:
        raise InputError("--jobs counts processes of this machine, --scheduler has its own; give one of them")
    import jax

    jax.config.update("jax_platforms", "cpu")  # of this process alone: accelerators are the jobs'
    where = options.scheduler
    return options.out, lambda: on_a_scheduler(where) if where else on_this_machine(options.jobs)
