"""`sites`: list what a fault can strike: the operations of a workload with their operands, and the state."""

import argparse
import json

from ..training.exchange import EXCHANGED
from ..training.state_faults import STATE
from .arguments import CommandLine, aligned, chosen_workload, tell, workload_options

LEAVES = (STATE, *EXCHANGED)


def add(commands: CommandLine) -> None:
    """Add the command."""
    text = "list what a fault can strike: operations, leaves of the state, gradients and updates; runs nothing"
    sub = commands.add("sites", run, text)
    sub.add_argument("workload", help="name of a workload")
    text = "only this pass; or what a row `target` names: the state, gradients, updates (default: both passes)"
    sub.add_argument("--stage", choices=("forward", "backward", *LEAVES), help=text)
    sub.add_argument("--json", action="store_true", help="as JSON")
    workload_options(sub, "the published set-up")


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
            }
            for site in sites
        ]
        print(json.dumps(listed, indent=2))
        return
    rows = [("site", "stage", "operand", "shape", "dtype")]
    for site in sites:
        for operand, tensor in site.operands.items():
            shape = "/".join(map(str, tensor.shape))
            rows.append((site.name, site.stage, operand.name.lower(), shape, tensor.dtype.name))
    for line in aligned(rows):
        tell(line)
