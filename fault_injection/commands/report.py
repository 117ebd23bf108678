"""`report`: write the report of a campaign."""

import argparse
import pathlib

from ..machine.errors import InputError
from ..questions.outcomes.standing import standing
from .arguments import json_option, tell, tell_json


def add(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("campaigns", type=pathlib.Path, nargs="+", metavar="DIR", help="folder of a campaign")
    sub.add_argument("--out", type=pathlib.Path, help="folder of the comparison of several (default: comparison)")
    json_option(sub)


def run(options: argparse.Namespace) -> None:
    if len(options.campaigns) == 1 and options.out is not None:
        raise InputError("--out belongs to a comparison; the report of a campaign is written to its folder")
    if len(options.campaigns) > 1:
        from ..questions.outcomes.report.comparison import write_comparison  # Matplotlib is slow to import

        page = write_comparison(options.campaigns, options.out or pathlib.Path("comparison"))
        stated = {"campaigns": [standing(folder).as_dict() for folder in options.campaigns]}
    else:
        from ..questions.outcomes.report.sections import write_report

        page = write_report(options.campaigns[0])
        stated = standing(options.campaigns[0]).as_dict()
    if options.json:
        tell_json({"report": str(page), **stated})
        return
    tell(f"written to {page}")
