"""`lower`: compile a workload for devices that are only described, and say what the compiler makes of it."""

import argparse
import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..machine.environment import MATRIX_PRECISIONS, prepare
from ..machine.errors import InputError
from ..machine.reading import matches
from ..runs.lowered import Compiled, compile_all
from ..seam.workload import Workload
from .arguments import aligned, json_option, tell, tell_json
from .workload_arguments import chosen_workload, workload_options

PARTS = {
    "step": "the fault-free step, of a program without fault support",
    "supporting": "the fault-free step of a program that can strike",
    "one": "the step with a fault, of a program that can strike one site, as in a replay",
    "all": "the same, of a program that can strike all sites, as in a campaign",
    "evaluate": "an evaluation, of one batch",
}


def add(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("workload", help="name of a workload, or FILE.py:FUNCTION")
    sub.add_argument(
        "--topology", required=True, help="the devices: cpu, or such as tpu:v2:2x2 (a v2-8), tpu:v5e:2x4, tpu:v6e:2x4"
    )
    sub.add_argument(
        "--parts",
        type=_parts,
        default=",".join(PARTS),
        metavar="NAME,…",
        help=f"what is compiled: {'; '.join(f'{name}: {what}' for name, what in PARTS.items())} (default: %(default)s)",
    )
    sub.add_argument(
        "--sites", default="*", metavar="PATTERN", help="of which sites `one` and `all` are (default: %(default)s)"
    )
    sub.add_argument(
        "--matrix-precision",
        choices=tuple(MATRIX_PRECISIONS),
        default="float32",
        help="to what operands of matrix products and convolutions are rounded (default: %(default)s)",
    )
    sub.add_argument(
        "--effort",
        type=_effort,
        default=0.0,
        metavar="NUMBER",
        help="how much the compiler optimizes for time and memory, from -1 (little: for TPUs a tenth of the time to "
        "compile) to 0 (as when it runs) and 1 (default: %(default)g)",
    )
    json_option(sub)
    workload_options(sub, lambda workload: workload)


def _effort(text: str) -> float:
    try:
        found = float(text)
    except ValueError:
        found = math.nan
    if not -1 <= found <= 1:
        raise argparse.ArgumentTypeError(f"{text[:60]!r}; expected a number from -1 to 1")
    return found


def _parts(text: str) -> tuple[str, ...]:
    names = tuple(text.split(","))
    for name in names:
        if name not in PARTS:
            raise argparse.ArgumentTypeError(f"{name[:60]!r}; expected some of {', '.join(PARTS)}")
    return names


def run(options: argparse.Namespace) -> int:
    from ..machine.devices import described  # which imports JAX

    prepare(None, options.matrix_precision)
    with described(options.topology, options.effort) as devices:
        workload = chosen_workload(options)
        sites = [name for name in workload.sites() if matches(name, [options.sites])]
        if not sites:
            raise InputError(f"--sites {options.sites[:60]!r} names no site of {workload.label} (list them: sites)")
        found: dict[str, Compiled] = {}
        for one in compile_all(_functions(workload, options.parts, sites), devices[0]):
            found[one.name] = one
            if not options.json:
                tell(f"{one.name}: {one.wrong or 'compiles'} ({one.seconds:.0f} s)")
    strikes = _strikes(found, {"one": 1, "all": len(sites)})
    wrong, left_out = _wrong(found, strikes), [part for part in options.parts if part not in found]
    if options.json:
        rows = [{**dataclasses.asdict(one), "strikes": strikes.get(name)} for name, one in found.items()]
        known = {"workload": workload.label, "topology": options.topology, "effort": options.effort, "programs": rows}
        tell_json({**known, "left_out": left_out, "wrong": wrong})
        return bool(wrong)
    tell(f"{workload.title}, {workload.details}; described: {len(devices)} devices of kind {devices[0].device_kind}")
    for line in _table(found, strikes):
        tell(line)
    for part in left_out:
        tell(f"{part}: left out, because it is a function of Python, which nothing compiles as a whole")
    counted = {"one", "all"} & found.keys() <= strikes.keys()
    there = ", and no strike was compiled away" if strikes else ""
    for line in wrong or [f"All of it compiles, and nothing is too large{there}."]:
        tell(line)
    if not counted:
        tell("Strikes are told from the branches of the fault-free step: --parts has to name `step`, too.")
    return bool(wrong)


def _functions(workload: Workload, parts: Sequence[str], sites: Sequence[str]) -> dict[str, Callable[[], Any]]:
    """What is compiled, by its name among `PARTS`."""

    def lowered(supported: Sequence[str], function: str) -> Callable[[], Any]:
        return lambda: workload.program(frozenset(supported)).extras.lower[function]()

    functions = {
        "step": lowered([], "step"),
        "supporting": lowered(sites, "step"),
        "one": lowered(sites[:1], "faulty_step"),
        "all": lowered(sites, "faulty_step"),
    }
    if "evaluate" in workload.program(frozenset()).extras.lower:  # a user's own is a function of Python
        functions["evaluate"] = lowered([], "evaluate")
    return {part: functions[part] for part in parts if part in functions}


def _strikes(found: Mapping[str, Compiled], expected: Mapping[str, int]) -> dict[str, tuple[int, int]]:
    """By program, how many strikes it has, and how many it has to have: the branches that it has more than the step."""
    if "step" not in found or found["step"].problem:
        return {}
    return {
        name: (one.branches - found["step"].branches, expected[name])
        for name, one in found.items()
        if name in expected and not one.problem
    }


def _wrong(found: Mapping[str, Compiled], strikes: Mapping[str, tuple[int, int]]) -> list[str]:
    wrong = [f"{name} {one.wrong}" for name, one in found.items() if one.wrong]
    for name, (there, expected) in strikes.items():
        if there < expected:
            wrong.append(f"{name} has {there} of {expected} strikes: the others were compiled away")
    if {"step", "supporting"} <= found.keys():
        more = found["supporting"].exchanges - found["step"].exchanges
        if more > 0 and not found["step"].problem:
            wrong.append(f"fault support adds {more} exchange(s) between devices to the fault-free step")
    return wrong


def _table(found: Mapping[str, Compiled], strikes: Mapping[str, tuple[int, int]]) -> list[str]:
    rows = [("", "memory", "of", "code", "estimate", "flops", "strikes", "exchanges")]
    for name, one in found.items():
        if one.problem:
            continue
        available = "" if one.available is None else f"{one.available / 1e9:.1f} GB"
        estimate = "" if one.estimate is None else f"{1e3 * one.estimate:.3g} ms"
        flops = "" if one.flops is None else f"{one.flops:.3g}"
        there = f"{strikes[name][0]} of {strikes[name][1]}" if name in strikes else ""
        sizes = f"{one.memory / 1e6:.1f} MB", available, f"{one.code / 1e6:.1f} MB"
        rows.append((name, *sizes, estimate, flops, there, str(one.exchanges)))
    return aligned(rows)
