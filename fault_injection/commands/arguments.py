"""Types of arguments, groups of options that several commands have, and how a command answers."""

import argparse
import json
import pathlib
import re
from collections.abc import Sequence
from typing import Any

from ..machine.environment import MATRIX_PRECISIONS, available_processors, cache_folder
from ..machine.errors import InputError, printable
from ..machine.files import strict_json
from ..machine.processes import leading

COMMANDS = {  # each in a module of its name, in the order of the help
    "replay": "replay one injection, from fault to verdict",
    "results": "list finished replays with their verdicts; draw several in one picture",
    "formats": "replay the same logical fault in several number formats: one picture, one table",
    "places": "follow the fault of an injection file at other places of the same operand and step, some steps each",
    "map": "show how a fault spreads, tensor by tensor and step by step: picture, table, sentences",
    "golden": "make a fault-free run, and its twins",
    "sites": "list what a fault can strike: operations, leaves of the state, gradients and updates; runs nothing",
    "lower": "compile a workload for devices that are only described, such as TPUs: does it fit; runs nothing",
    "scale": "write an injection file for another scale, and say the mapping; runs nothing",
    "detect": "run a detector over a log of losses, norms or largest gradients",
    "campaign": "run a campaign: many injections of one plan, with their statistics; goes on where it stopped",
    "score": "score detectors and recovery on the outcomes of a campaign; goes on where it stopped",
    "pvf": "measure how likely corrupted parameters are to give a wrong answer; goes on where it stopped",
    "alter": "flip bits in a saved checkpoint, or repeat alterations that a log has",
    "diff": "say what differs between two checkpoints: elements, bits, relative error",
    "scan": "is a checkpoint sound: what no training writes, and outliers; needs no clean copy",
    "manifest": "write digests of a checkpoint's arrays, for verify",
    "verify": "say which arrays of a checkpoint changed since its manifest was written",
    "challenge": "test a safeguard: does a command notice a flipped bit in a checkpoint or log; goes on",
    "continue": "restart a training from an altered checkpoint of its golden run",
    "status": "say how far a campaign, a scoreboard or pvf is, in one line: done, rate so far, how to go on",
    "report": "write the pages of a campaign, a scoreboard or pvf, or compare several campaigns; or print their answer",
    "export": "write injection files of a campaign's experiments, or its tables; runs nothing",
    "fetch-checkpoints": "download the published checkpoints, and import them",
    "init": "write a training of your own to begin with: it runs as it is, and the lines to edit are marked",
    "examples": "copy the examples that the documentation names: injections, plans, own steps",
}


def positive(text: str) -> int:
    """A whole number from 1."""
    return _number(text, 1)


def natural(text: str) -> int:
    """A whole number from 0."""
    return _number(text, 0)


def _number(text: str, least: int) -> int:
    if not re.fullmatch(r"0|[1-9]\d{0,7}", text, re.ASCII) or int(text) < least:
        raise argparse.ArgumentTypeError(f"{text[:60]!r}; expected a whole number from {least}")
    return int(text)


def epoch_list(text: str) -> frozenset[int]:
    """Epochs from a list such as 7,19,30-33.

    >>> sorted(epoch_list("7,30-32"))
    [7, 30, 31, 32]
    """
    epochs: set[int] = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        if not re.fullmatch(r"\d{1,6}(-\d{1,6})?", part, re.ASCII) or int(last or first) < int(first):
            raise argparse.ArgumentTypeError(f"{part[:60]!r}; expected epochs such as 7,19,30-33")
        epochs |= set(range(int(first), int(last or first) + 1))
    return frozenset(epochs)


def machine_options(parser: argparse.ArgumentParser) -> None:
    """Where a command computes, and all that `place_options` adds."""
    parser.add_argument(
        "--threads", type=positive, help=f"CPU threads to compute with (default: all, here {available_processors()})"
    )
    several = parser.add_argument_group("several processes, one run (the same command in each)")
    several.add_argument("--coordinator", metavar="HOST:PORT", help="where process 0 listens; `auto` on a cluster")
    several.add_argument("--processes", type=positive, metavar="N", help="how many there are")
    several.add_argument("--process", type=natural, metavar="I", help="number of this one, from 0")
    place_options(parser)


def place_options(parser: argparse.ArgumentParser) -> None:
    """Where things are, and how precisely they are computed."""
    parser.add_argument(
        "--matrix-precision",
        choices=tuple(MATRIX_PRECISIONS),
        default="float32",
        help="to what operands of matrix products and convolutions are rounded (default: %(default)s)",
    )
    parser.add_argument("--cache", type=pathlib.Path, help=f"folder of golden runs (default: {cache_folder()})")
    parser.add_argument(
        "--data-dir",
        type=pathlib.Path,
        help="folder of the dataset (default: $FAULT_INJECTION_DATA, the cache, ~/tensorflow_datasets, a download)",
    )


def json_option(parser: argparse.ArgumentParser) -> None:
    """`--json`: the command's result as one line of JSON."""
    parser.add_argument("--json", action="store_true", help="print the result as one line of JSON, and nothing else")


def setting_pairs(texts: Sequence[str]) -> dict[str, str]:
    """What `--set NAME=VALUE` was given, by name.

    >>> setting_pairs(["deviations=8"])
    {'deviations': '8'}

    Raises:
      InputError: one has no equals sign.
    """
    for text in texts:
        if "=" not in text:
            raise InputError(f"--set {text[:60]!r}; expected SETTING=VALUE")
    return dict(text.split("=", 1) for text in texts)


def flag(name: str) -> str:
    """How an option is written on a command line.

    >>> flag("batch_size")
    '--batch-size'
    """
    return f"--{name.replace('_', '-')}"


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """The rows of a table as lines, their cells in columns.

    >>> aligned([("format", "bits"), ("float32", "32")])
    ['format   bits', 'float32  32']
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def listed(names: Sequence[str], most: int = 5) -> str:
    """Names as text, the first of them if there are many.

    >>> listed(["a", "b", "c"], 2)
    'a, b and 1 more'
    """
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def tell(line: str) -> None:
    """Print one line of a command's result; what a terminal would act on is escaped."""
    if leading():
        print(printable(line), flush=True)


def tell_json(value: Any) -> None:
    """Print a command's result as one line of JSON; non-finite numbers become strings."""
    line = json.dumps(strict_json(value), ensure_ascii=False, allow_nan=False)
    # JSON has escapes of its own.
    tell("".join(c if c.isprintable() else json.dumps(c)[1:-1] for c in line))
