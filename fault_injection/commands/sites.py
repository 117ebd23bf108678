"""`sites`: list the sites of a workload with their operands."""

import argparse
import json

from .arguments import CommandLine, aligned, chosen_workload, tell, workload_options


def add(commands: CommandLine) -> None:
    """Add the command."""
    sub = commands.add("sites", run, "list the sites of a workload with their operands; runs nothing")
    sub.add_argument("workload", help="name of a workload")
    sub.add_argument("--stage", choices=("forward", "backward"), help="only this pass")
    sub.add_argument("--json", action="store_true", help="as JSON")
    workload_options(sub, "the published set-up")


def run(options: argparse.Namespace) -> None:
    """Carry out the command."""
    workload = chosen_workload(options)
    sites = [site for site in workload.sites().values() if options.stage in (None, site.stage)]
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
