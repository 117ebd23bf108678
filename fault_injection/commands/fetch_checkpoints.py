"""`fetch-checkpoints`: download the published checkpoints, and import them."""

import argparse
import pathlib

from ..machine.environment import cache_folder
from ..published.checkpoints import DRIVE, fetch
from ..workloads.registry import find_workload
from .arguments import natural, tell


def add(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("workload", nargs="?", help="only this workload's (default: each checkpoint's own)")
    sub.add_argument(
        "--drive", choices=tuple(DRIVE), default="examples", help="which published folder (default: %(default)s)"
    )
    sub.add_argument(
        "--only",
        default="*",
        metavar="PATTERN",
        help="files of it whose path fits, such as '*epoch_19*' (default: %(default)s)",
    )
    sub.add_argument(
        "--from",
        dest="place",
        type=pathlib.Path,
        metavar="PATH",
        help="download nothing: a folder of TensorFlow checkpoints, or one of them without its .index",
    )
    sub.add_argument("--epoch", type=natural, help="before which epoch the one found was taken, if it does not say")
    sub.add_argument("--cache", type=pathlib.Path, help=f"folder that keeps them (default: {cache_folder()})")


def run(options: argparse.Namespace) -> None:
    if options.workload is not None:
        find_workload(options.workload)
    chosen = {"drive": options.drive, "only": options.only, "place": options.place, "epoch": options.epoch}
    for path in fetch(options.workload, **chosen, cache=options.cache):
        tell(str(path))
