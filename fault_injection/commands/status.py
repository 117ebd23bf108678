"""`status`: how far a campaign is."""

import argparse
import pathlib

from ..questions.outcomes.standing import outcome_lines, standing
from .arguments import json_option, tell, tell_json


def add(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("campaign", type=pathlib.Path, metavar="DIR", help="folder of the campaign")
    json_option(sub)


def run(options: argparse.Namespace) -> None:
    found = standing(options.campaign)
    if options.json:
        tell_json(found.as_dict())
        return
    if found.plan is None:
        tell("It has not begun: there is no golden run yet.")
    else:
        tell(found.plan.sentence())
        tell(f"{found.done} experiments are done, {found.left} are left.")
    for line in outcome_lines(found.outcomes, found.not_masked):
        tell(line)
    if found.last_event:
        tell(f"Last event: {found.last_event[1]} ({found.last_event[0]})")
    if found.running:
        tell("It is running.")
    elif found.resumable:
        plan = found.plan_file or "PLAN"
        tell(f"It is not running. To go on: python -m fault_injection campaign {plan} --out {found.folder}")
    else:
        tell(f"It is complete. Its report: python -m fault_injection report {found.folder}")
