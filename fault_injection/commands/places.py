"""`places`: the fault of an injection file, at its own place and at others of the same operand and step."""

import argparse
import collections
import pathlib
from typing import Any

from ..campaign.rates import wilson
from ..faults.element_bits import format_position
from ..faults.injection_file import read_injection
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
    json_option(sub)
    machine_options(sub)


def run(options: argparse.Namespace) -> None:
    own = from_leader(lambda: read_injection(options.file))
    others = other_places(own, options.count, options.seed)
    golden = golden_for(own, options.cache, options.data_dir)
    found = list(at_places([own, *others], golden, options.steps))
    if options.json:
        tell_json({"injection": own.sentence(), "steps": options.steps, "places": list(map(_row, found))})
        return
    tell(own.sentence())
    name = golden.program.measure().name
    header = ("place", "outcome", "steps", f"{name} then", "golden", "changed", "of the result", "parameters reached")
    rows = [(str(row["place"]), *(_shown(row[name]) for name in SHOWN)) for row in map(_row, found)]
    rows[0] = (f"{rows[0][0]} (its own)", *rows[0][1:])
    for line in aligned([header, *rows]):
        tell(line)
    if others:
        for line in _counted(found[1:]):
            tell(line)


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
    return {**row, "died": _died(row) if at_once else None}


def _counted(found: list[AtPlace]) -> list[str]:
    """How often which outcome came of the other places, and where errors died within the faulty step."""
    rows = list(map(_row, found))
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
