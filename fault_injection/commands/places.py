"""`places`: the fault of an injection file, at its own place and at others of the same operand and step."""

import argparse
import collections
import json
import pathlib
from typing import Any

from ..campaign.rates import wilson
from ..faults.element_bits import format_position
from ..faults.injection_file import format_injection, read_injection
from ..machine.errors import InputError
from ..machine.files import read_text, strict_json, write_json
from ..machine.processes import from_leader
from ..runs.places import AtPlace, at_places, other_places
from ..runs.replay_run import golden_for
from .arguments import aligned, json_option, machine_options, natural, positive, tell, tell_json


def add(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("file", type=pathlib.Path, help="injection file")
    sub.add_argument("--count", type=positive, default=20, metavar="N", help="other places (default: %(default)s)")
    sub.add_argument("--seed", type=natural, default=0, help="from which they are drawn (default: %(default)s)")
    sub.add_argument(
        "--steps", type=natural, default=40, help="steps after the fault that each is followed (default: %(default)s)"
    )
    sub.add_argument(
        "--out",
        type=pathlib.Path,
        metavar="FILE",
        help="also write what came of each place to this JSON file as soon as it is known, and go on from such a file",
    )
    json_option(sub)
    machine_options(sub)


def run(options: argparse.Namespace) -> None:
    own = from_leader(lambda: read_injection(options.file))
    faults = [own, *other_places(own, options.count, options.seed)]
    golden = golden_for(own, options.cache, options.data_dir)
    asked = {"injection": format_injection(own).splitlines(), "steps": options.steps, "seed": options.seed}
    about = strict_json({"fault": own.sentence(), **asked, "golden_run": golden.determined_by})
    rows = from_leader(lambda: _kept(options.out, about)) if options.out else []

    def keep() -> None:
        if options.out:
            from_leader(lambda: write_json(options.out, {**about, "places": rows}))

    keep()  # a file that cannot be written is told before the work
    for found in at_places(faults[len(rows) :], golden, options.steps):
        rows.append(_row(found))
        keep()
    rows = rows[: len(faults)]
    if options.json:
        tell_json({**about, "places": rows})
        return
    tell(own.sentence())
    name = golden.program.measure().name
    header = ("place", "outcome", "steps", f"{name} then", "golden", "changed", "of the result", "parameters reached")
    shown = [(str(row["place"]), *(_shown(row[name]) for name in SHOWN)) for row in rows]
    shown[0] = (f"{shown[0][0]} (its own)", *shown[0][1:])
    for line in aligned([header, *shown]):
        tell(line)
    if len(rows) > 1:
        for line in _counted(rows[1:]):
            tell(line)


def _kept(file: pathlib.Path, about: dict[str, Any]) -> list[dict[str, Any]]:
    """What a file of this command says already, its own place first; places are drawn one after the other."""
    if not file.exists():
        return []
    try:
        known = json.loads(read_text(file))
        rows: list[dict[str, Any]] = known.pop("places")
        names = {"place", "outcome", "died", *SHOWN}
        whole = isinstance(rows, list) and all(isinstance(row, dict) and names <= row.keys() for row in rows)
    except (ValueError, RecursionError, LookupError, AttributeError, TypeError):
        whole = False
    if not whole:
        raise InputError("is no file of this command; expected one, or no file; --out FILE says where to write", file)
    if differ := [name for name in about if known.get(name) != about[name]]:
        what = f"has places of another {', '.join(differ).replace('_', ' ')}"
        raise InputError(f"{what}; expected those of this command; --out FILE says where these go", file)
    return rows


SHOWN = ("outcome", "steps", "metric", "golden_metric", "operand_changed", "output_changed", "reached")


def _shown(value: Any) -> str:
    return f"{value:.3f}" if isinstance(value, float) else "-" if value is None else str(value)


def _row(found: AtPlace) -> dict[str, Any]:
    """One place as JSON values."""
    verdict = found.outcome
    exactly = f"{verdict.outcome} (exactly)" if verdict.exactly_masked_after is not None else verdict.outcome
    row = {
        "place": format_position(found.injection.positions[0]),
        "outcome": exactly,
        "exactly_masked_after": verdict.exactly_masked_after,
        "first_nonfinite": verdict.first_nonfinite,
        "rule": verdict.rule,
        "steps": found.steps,
        "metric": found.metric[0],
        "golden_metric": found.metric[1],
        "struck": verdict.struck,
        "operand_changed": int(found.struck.operand_changed),
        "output_changed": None if found.injection.of_leaf else int(found.struck.output_changed),
        "reached": len(found.reached),
        "parameters": list(found.reached),
    }
    at_once = verdict.exactly_masked_after == 0 and not found.injection.of_leaf
    return dict(strict_json({**row, "died": _died(row) if at_once else None}))


def _counted(rows: list[dict[str, Any]]) -> list[str]:
    """How often which outcome came of the other places, and where errors died within the faulty step."""
    counts = collections.Counter(str(row["outcome"]) for row in rows)
    lines = []
    for outcome, count in counts.most_common():
        rate = wilson(count, len(rows))
        lines.append(f"{outcome}: {count} of {len(rows)} other places [{rate.low:.0%}, {rate.high:.0%}]")
    where = collections.Counter(row["died"] for row in rows if row["died"])
    return lines + [f"died within the faulty step: {count}; {why}" for why, count in where.items()]


def _died(row: dict[str, Any]) -> str:
    """Where the error in an operation died whose step left the golden state."""
    if not row["struck"]:
        return "nothing was struck: the step left the operation out"
    if row["operand_changed"] == 0:
        return "the element had that value already"
    if row["output_changed"] == 0:
        return "the operation's result did not change: the other operand is zero there, or rounding took it"
    return "what stands behind the operation let nothing through: a closed ReLU, dropout, a zero, or rounding"
