"""`sites`: list what a fault can strike: the operations of a workload with their operands, and the state."""

import argparse
import json

from ..any_step.step_site import StepSite
from ..models.fault import Operand
from ..seam.stages import BESIDE, EXCHANGED
from ..workloads.own import OwnTraining
from .arguments import CommandLine, aligned, tell
from .workload_arguments import chosen_workload, workload_options

LEAVES = (*BESIDE, *EXCHANGED)


def add(commands: CommandLine) -> None:
    """Add the command."""
    text = "list what a fault can strike: operations, leaves of the state, gradients and updates; runs nothing"
    sub = commands.add("sites", run, text)
    sub.add_argument("workload", help="name of a workload")
    text = "only this pass; or what a row `target` names: the state, gradients, updates (default: both passes)"
    sub.add_argument("--stage", choices=("forward", "backward", *LEAVES), help=text)
    sub.add_argument("--json", action="store_true", help="as JSON")
    workload_options(sub, lambda workload: workload)


def run(options: argparse.Namespace) -> None:
    """Carry out the command."""
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
                **(site.details if isinstance(site, StepSite) else {}),
            }
            for site in sites
        ]
        print(json.dumps(listed, indent=2))
        return
    own = any(isinstance(site, StepSite) for site in sites)
    more = ("layout", "turns", "workers", "parameter", "may be left out", "line") if own else ()
    rows: list[tuple[str, ...]] = [("site", "stage", "operand", "shape", "dtype", *more)]
    for site in sites:
        for operand, tensor in site.operands.items():
            shape = "/".join(map(str, tensor.shape))
            row: tuple[str, ...] = (site.name, site.stage, operand.name.lower(), shape, tensor.dtype.name)
            if isinstance(site, StepSite):
                layout, turns = dict(zip(Operand, site.layout, strict=False)), "/".join(map(str, site.iterations))
                parameter, left_out = ("yes" if said else "-" for said in (operand == site.parameter, site.conditional))
                row = (*row, layout.get(operand, "-"), turns or "-", str(site.workers), parameter, left_out, site.line)
            rows.append(row)
    for line in aligned(rows):
        tell(line)
    if isinstance(workload, OwnTraining):
        program = workload.started.program
        if program.meshes and any(not site.axes for site in program.all_sites.values()):
            devices = max(mesh.size for mesh in program.meshes)
            tell(f"{devices} devices share out the operands; without workers, a position is one of the global operand")
        for what in program.not_covered:
            tell(f"not covered: {what}")
