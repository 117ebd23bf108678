"""`sites`: list what a fault can strike: the operations of a workload with their operands, and the state."""

import argparse
import json

from ..machine.environment import prepare
from ..seam.stages import BESIDE, EXCHANGED
from ..workloads.registry import WORKLOADS
from .arguments import aligned, tell
from .workload_arguments import chosen_workload, workload_options

LEAVES = (*BESIDE, *EXCHANGED)


def add(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("workload", help="name of a workload")
    text = "only this pass; or what a row `target` names: the state, gradients, updates (default: both passes)"
    sub.add_argument("--stage", choices=("forward", "backward", *LEAVES), help=text)
    sub.add_argument("--json", action="store_true", help="as JSON")
    workload_options(sub, lambda workload: workload)


def run(options: argparse.Namespace) -> None:
    if options.workload not in WORKLOADS:  # a step of one's own is traced here
        prepare()
    workload = chosen_workload(options)
    found = workload.leaves() if options.stage in LEAVES else workload.sites()
    sites = [site for site in found.values() if options.stage in (None, site.stage)]
    if options.json:
        listed = [
            {
                "site": site.name,
                "layer": site.layer,
                "stage": site.stage,
                "operands": {operand.name.lower(): list(tensor.shape) for operand, tensor in site.operands.items()},
                "dtypes": {operand.name.lower(): tensor.dtype.name for operand, tensor in site.operands.items()},
                **site.details,
            }
            for site in sites
        ]
        print(json.dumps(listed, indent=2))
        return
    more = (
        ("layout", "turns", "workers", "parameter", "may be left out", "line") if any(s.details for s in sites) else ()
    )
    rows: list[tuple[str, ...]] = [("site", "stage", "operand", "shape", "dtype", *more)]
    for site in sites:
        for operand, tensor in site.operands.items():
            shape = "/".join(map(str, tensor.shape))
            row: tuple[str, ...] = (site.name, site.stage, operand.name.lower(), shape, tensor.dtype.name)
            if told := site.details:
                parameter, left_out = (
                    "yes" if said else "-" for said in (operand.name.lower() == told["parameter"], site.conditional)
                )
                layout, turns = told["layout"].get(operand.name.lower(), "-"), "/".join(map(str, told["iterations"]))
                row = (*row, layout, turns or "-", str(told["workers"]), parameter, left_out, told["line"])
            rows.append(row)
    for line in (*aligned(rows), *workload.remarks()):
        tell(line)
