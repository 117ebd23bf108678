"""`diff`: what differs between two checkpoints."""

import argparse
import dataclasses
import pathlib
from math import isfinite

from ..checkpoints.difference import ArrayDifference, Difference, difference
from ..checkpoints.formats import FORMATS, open_checkpoint
from ..machine.errors import InputError
from .arguments import aligned, json_option, listed, tell, tell_json


def add(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("first", type=pathlib.Path, metavar="A", help=FORMATS)
    sub.add_argument("second", type=pathlib.Path, metavar="B", help="of the same format or another, with equal names")
    sub.add_argument("--picture", type=pathlib.Path, metavar="FILE.png", help="draw the errors and the bits")
    json_option(sub)


def run(options: argparse.Namespace) -> int:
    """Say what differs; the exit code is 1 where not all was compared."""
    if options.picture is not None and options.picture.suffix not in (".png", ".svg", ".pdf"):
        raise InputError("--picture: expected a file .png, .svg or .pdf", options.picture)
    found = difference(open_checkpoint(options.first), open_checkpoint(options.second))
    if options.picture is not None:
        from ..checkpoints.picture import draw_difference

        draw_difference(found, options.picture, f"{options.first.name} and {options.second.name}")
    if options.json:
        tell_json(dataclasses.asdict(found))
        return int(not found.complete)
    for line in _sentences(found):
        tell(line)
    if options.picture is not None:
        tell(f"drawn in {options.picture}")
    return int(not found.complete)


def _sentences(found: Difference) -> list[str]:
    """What differs, as text."""
    changed = found.changed
    elements, bits = sum(one.changed for one in found.arrays), sum(sum(one.bits) for one in found.arrays)
    lines = []
    if changed:
        head = ("array", "type", "elements", "changed", "bits", "relative error", "largest", "not finite")
        rows = [
            (
                one.name,
                one.dtype,
                f"{one.elements}",
                f"{one.changed}",
                f"{sum(one.bits)}",
                *(_sizes(one) if one.numbers else ("bits alone", "", "")),
            )
            for one in changed
        ]
        lines += aligned([head, *rows])
    total = len(found.arrays)
    if changed or found.complete:
        lines.append(f"{elements:,} elements differ, in {bits:,} bits, in {len(changed)} of {total} arrays")
    else:
        lines.append(f"nothing differs in the {total} arrays that were compared; not all were")
    lines += [f"not compared: {line}" for line in (*found.unlike, *found.left_out)]
    for names, where in ((found.only_first, "first"), (found.only_second, "second")):
        if names:
            lines.append(f"only the {where} has {listed(names)}")
    return lines


def _sizes(one: ArrayDifference) -> tuple[str, str, str]:
    """How large a difference of numbers is."""
    error = f"{one.error:.3g}" if one.error is not None else "of zeros" if isfinite(one.largest) else "not finite"
    return error, f"{one.largest:.3g}", f"{one.nonfinite}"
