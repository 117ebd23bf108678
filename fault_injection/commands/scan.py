"""`scan`: is a checkpoint sound, judged by itself alone."""

import argparse
import pathlib

from ..checkpoints.checkpoint import Checkpoint
from ..checkpoints.formats import FORMATS, open_checkpoint
from ..checkpoints.scan import BUDGET, Finding, Scan, scan
from .arguments import json_option, listed, tell, tell_json

FOUND = 3  # exit code
UNSEEN = "cannot be seen in one file: bits of the mantissa, and any bit where the element stays among the others"


def add(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("checkpoint", type=pathlib.Path, metavar="CHECKPOINT", help=FORMATS)
    sub.add_argument(
        "--budget",
        type=_budget,
        default=BUDGET,
        metavar="F",
        help="outliers that a clean checkpoint may have by chance, on average (default: %(default)s)",
    )
    sub.add_argument("--fail", action="store_true", help=f"end with exit code {FOUND} where something is found")
    json_option(sub)


def run(options: argparse.Namespace) -> int:
    """Say what is not sound; with `--fail` the exit code is 3 where something is."""
    checkpoint = open_checkpoint(options.checkpoint)
    found = scan(checkpoint, options.budget)
    if options.json:
        known = {"format": checkpoint.format, "findings": [one._asdict() for one in found.findings]}
        counts = {"arrays": found.arrays, "elements": found.elements, "tests": found.tests, "budget": options.budget}
        tell_json({**known, **counts, "unjudged": dict(found.unjudged), "unseen": UNSEEN})
    else:
        for line in _sentences(checkpoint, found, options.budget):
            tell(line)
    return FOUND if options.fail and found.findings else 0


def _sentences(checkpoint: Checkpoint, found: Scan, budget: float) -> list[str]:
    """What was found, as text."""
    lines = [line_of(one) for one in found.findings]
    count = f"{len(found.findings)} finding(s)" if found.findings else "nothing found"
    lines.append(
        f"{checkpoint.path} ({checkpoint.format}): {count} in {found.elements:,} elements of {found.arrays} arrays"
    )
    if found.tests:
        lines.append(
            f"outliers: by chance at most {budget:g} findings in a clean checkpoint, over {found.tests} tests, if tails"
            " fall off at least as fast as Pareto's"
        )
    if found.unjudged:
        left = listed([f"{name} ({why})" for name, why in found.unjudged.items()])
        lines.append(f"not judged: {len(found.unjudged)}: {left}")
    return [*lines, UNSEEN]


def line_of(one: Finding) -> str:
    """A finding as one line.

    >>> line_of(Finding("fc/bias", "nan", (3,), "7fc00000", float("nan"), "is no number"))
    'fc/bias [3] 7fc00000 = nan: is no number (no chance: no sound training writes it)'
    """
    element = f" [{', '.join(map(str, one.element))}]" if one.element else ""
    chance = "no chance: no sound training writes it"
    if one.chance is not None:
        chance = f"by chance in {one.chance:.1g} of clean checkpoints" if one.chance else "by chance: never"
    return f"{one.array}{element} {one.bits} = {one.value:.6g}: {one.why} ({chance})"


def _budget(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 < value <= 1:
        raise argparse.ArgumentTypeError(f"{text[:60]!r}; expected a number above 0, at most 1 (default {BUDGET:g})")
    return value
