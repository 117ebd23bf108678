"""`score`: detectors and recovery, scored on the outcomes of a campaign."""

import argparse
import dataclasses

from ..questions.outcomes.driver import campaign
from ..questions.outcomes.standing import finished
from ..questions.outcomes.store import open_plan
from ..questions.scoreboard.board import read_board
from ..questions.scoreboard.driver import plan_lines, watch_campaign
from ..questions.scoreboard.settings import read_settings
from ..questions.scoreboard.tasks import ScoreTask
from .arguments import tell, tell_json
from .plan_options import driving, places, plan_options


def add(sub: argparse.ArgumentParser) -> None:
    plan_options(sub, "folder of the campaign and its scoreboard", "TOML file, with a table [score]")
    text = "a detector that watches too: a name, or one of your own, FILE.py:NAME; may be given several times"
    sub.add_argument("--detector", action="append", default=[], metavar="NAME", help=text)


def run(options: argparse.Namespace) -> None:
    known = places(options)
    plan, settings = read_settings(options.plan, options.detector)
    task = ScoreTask(plan, settings=settings, **known)
    lines = plan_lines(task)
    if not options.json:
        for line in lines:
            tell(line)
    if options.check:
        if options.json:
            tell_json({"plan": lines})
        return
    out, executors = driving(options)
    if not finished(out, plan):  # else what is watched is compared with what was judged
        campaign(task, out, executors(), str(options.plan))
    task = dataclasses.replace(task, plan=plan.grown(open_plan(out)))
    watch_campaign(task, out, executors())
    from ..questions.scoreboard.page import write_scoreboard_page  # Matplotlib is slow to import

    page = write_scoreboard_page(out)
    if options.json:
        tell_json({"score": str(page), **read_board(out).as_dict()})
        return
    tell(f"written to {page}")
