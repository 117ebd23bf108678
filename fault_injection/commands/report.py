"""`report`: write the report of a campaign."""

import argparse
import pathlib

from ..campaign.standing import standing
from .arguments import CommandLine, json_option, tell, tell_json


def add(commands: CommandLine) -> None:
    """Add the command."""
    sub = commands.add("report", run, "write the report of a campaign")
    sub.add_argument("campaign", type=pathlib.Path, metavar="DIR", help="folder of the campaign")
    json_option(sub)


def run(options: argparse.Namespace) -> None:
    """Carry out the command."""
    from ..campaign.report.sections import write_report  # Matplotlib is slow to import

    page = write_report(options.campaign)
    if options.json:
        tell_json({"report": str(page), **standing(options.campaign).as_dict()})
        return
    tell(f"written to {page}")
