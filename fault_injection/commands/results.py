"""`results`: list finished replays with their verdicts, and draw several in one picture."""

import argparse
import pathlib

from ..machine.errors import InputError
from ..runs.finished import draw_together, find_finished
from .arguments import aligned, json_option, tell, tell_json
from .out_folder import OUT


def add(sub: argparse.ArgumentParser) -> None:
    sub.add_argument(
        "folders",
        nargs="*",
        type=pathlib.Path,
        default=[OUT],
        metavar="DIR",
        help=f"folders to look in, and below (default: {OUT})",
    )
    sub.add_argument("--curves", type=pathlib.Path, metavar="FILE.png", help="draw all that were found in one picture")
    json_option(sub)


def run(options: argparse.Namespace) -> None:
    for folder in options.folders:
        if not folder.is_dir():
            raise InputError("is no folder", folder)
    found = find_finished(options.folders)
    if options.curves is not None:
        draw_together(found, options.curves)
    if options.json:
        tell_json([entry.as_dict() for entry in found])
        return
    if not found:
        tell(f"no finished replay in {', '.join(map(str, options.folders))}")
    for line in aligned([(str(entry.folder), entry.outcome, entry.summary) for entry in found]):
        tell(line)
    if options.curves is not None:
        tell(f"written to {options.curves}")
