"""`score`: detectors and recovery, scored on the outcomes of a campaign."""

import argparse
import pathlib

from ..campaign.driver import campaign
from ..campaign.executors import on_a_scheduler, on_this_machine
from ..machine import environment
from ..machine.errors import InputError
from ..scoreboard.driver import plan_tasks, watch_campaign
from ..scoreboard.settings import read_settings
from ..scoreboard.tasks import ScoreTask
from .arguments import CommandLine, json_option, place_options, positive, tell, tell_json


def add(commands: CommandLine) -> None:
    """Add the command."""
    sub = commands.add(
        "score", run, "score detectors and recovery on the outcomes of a campaign; goes on where it stopped"
    )
    sub.add_argument("plan", type=pathlib.Path, metavar="PLAN", help="TOML file, with a table [score]")
    sub.add_argument("--out", type=pathlib.Path, metavar="DIR", help="folder of the campaign and its scoreboard")
    sub.add_argument("--check", action="store_true", help="validate the plan, say what would be done, and run nothing")
    sub.add_argument("--jobs", type=positive, metavar="N", help="processes (default: one per processor or accelerator)")
    sub.add_argument("--scheduler", metavar="tcp://…", help="run on the workers of a Dask scheduler instead")
    json_option(sub)
    place_options(sub)


def run(options: argparse.Namespace) -> None:
    """Carry out the command."""
    if options.check:  # as a campaign's
        environment.prepare(1, options.matrix_precision, bind=False)
    plan, settings = read_settings(options.plan)
    task = ScoreTask(
        plan,
        cache=options.cache,
        data_dir=options.data_dir,
        matrix_precision=options.matrix_precision,
        settings=settings,
    )
    lines = [plan.sentence(), *plan_tasks(task)]
    if not options.json:
        for line in lines:
            tell(line)
    if options.check:
        if options.json:
            tell_json({"plan": lines})
        return
    if options.out is None:
        raise InputError("--out DIR is missing: the folder of the campaign")
    if options.out.exists() and not options.out.is_dir():
        raise InputError("--out is a file, expected a folder", options.out)
    if options.scheduler and options.jobs:
        raise InputError("--jobs counts processes of this machine, --scheduler has its own; give one of them")
    import jax

    jax.config.update("jax_platforms", "cpu")  # of this process alone: accelerators are the jobs'
    for work in (
        lambda e: campaign(task, options.out, e, str(options.plan)),
        lambda e: watch_campaign(task, options.out, e),
    ):
        work(on_a_scheduler(options.scheduler) if options.scheduler else on_this_machine(options.jobs))
    from ..scoreboard.board import read_board
    from ..scoreboard.page import write_page  # Matplotlib is slow to import

    page = write_page(options.out)
    if options.json:
        tell_json({"score": str(page), **read_board(options.out).as_dict()})
        return
    tell(f"written to {page}")
