"""`status`: how far a campaign is."""

import argparse
import pathlib

from ..questions.outcomes.standing import Standing, answer_lines, outcome_lines, standing
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
        left = f"{found.answer.standing}" if found.answer else f"{found.left} are left"
        tell(f"{found.done} experiments are done, {left}.")
    if found.unstruck:
        tell(f"  in {found.unstruck} of them nothing was struck: no element fitted the profile, or a step left it out")
    for line in outcome_lines(found.outcomes, found.not_masked) if found.answer is None else _answer(found):
        tell(line)
    if found.last_event:
        tell(f"Last event: {found.last_event[1]} ({found.last_event[0]})")
    if found.running:
        tell("It is running.")
    elif found.resumable:
        plan = found.plan_file or "PLAN"
        tell(f"It is not running. To go on: python -m fault_injection campaign {plan} --out {found.folder}")
    else:
        if found.left:
            most = f"{found.experiments} experiments are the most that its plan allows, and none of a block is left out"
            tell(f"{most}; raise faults.experiments to go on.")
        tell(f"It is complete. Its report: python -m fault_injection report {found.folder}")


def _answer(found: Standing) -> list[str]:
    """The rates of a campaign that wants a width, as of its last whole block."""
    assert found.answer is not None
    lines = answer_lines(found.answer.rates()) if found.answer.experiments else []
    begun = found.done - found.answer.experiments
    told = f"  {begun} experiments of a block that is not done yet are not in these rates"
    return [*lines, told] if begun else lines
