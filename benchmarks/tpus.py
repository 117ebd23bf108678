"""Compile every workload, at its published size, for TPUs that are only described; no device is needed.

    python benchmarks/tpus.py --jobs 2      # writes results/tpus/, a file for each workload and machine
    python benchmarks/tpus.py --table       # the table of docs/accelerators.md, from what is there

What is there is not compiled again, so the same command goes on where it was stopped.  Needs `pip install -e '.[tpu]'`.
"""

import argparse
import concurrent.futures
import json
import pathlib
import subprocess
import sys
from typing import Any, NamedTuple

from fault_injection.machine.files import write_text
from fault_injection.workloads.registry import WORKLOADS

FOLDER = pathlib.Path(__file__).parents[1] / "results" / "tpus"
# What the machines are called, and which of their cores or chips JAX sees; the published one comes first.
MACHINES = {"v2-8": "v2:2x2", "v5e-8": "v5e:2x4", "v6e-8": "v6e:2x4", "v3-8": "v3:2x2", "v4-8": "v4:2x2x1"}
REPLAY = "step,supporting,one,evaluate"
EFFORT = {"v2-8": 0}  # of the compiler; the newer a machine is, the longer compiling for it takes at full effort
LITTLE = -1
CAMPAIGN = ("resnet18", "transformer", "dlrm")  # whose step with faults at all sites is compiled too


class Case(NamedTuple):
    machine: str
    workload: str

    @property
    def file(self) -> pathlib.Path:
        return FOLDER / self.machine / f"{self.workload}.json"

    @property
    def parts(self) -> str:
        return REPLAY + (",all" if self.workload in CAMPAIGN else "")

    def read(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.file.read_text(encoding="utf-8"))
        return found


def cases() -> list[Case]:
    return [Case(machine, workload) for machine in MACHINES for workload in WORKLOADS]


def compiled(case: Case) -> str:
    """Compile one workload for one machine, in a process of its own; gives a line that says what came of it."""
    topology = f"tpu:{MACHINES[case.machine]}"
    command = [sys.executable, "-m", "fault_injection", "lower", case.workload, "--topology", topology]
    how = ["--parts", case.parts, "--effort", str(EFFORT.get(case.machine, LITTLE)), "--json"]
    found = subprocess.run([*command, *how], capture_output=True, text=True, check=False)
    if found.returncode not in (0, 1):  # 1: something is wrong, which the file says
        return f"{case.machine} {case.workload}: {found.stderr.strip().splitlines()[-1]}"
    case.file.parent.mkdir(parents=True, exist_ok=True)
    write_text(case.file, found.stdout)
    return f"{case.machine} {case.workload}: {'; '.join(case.read()['wrong']) or 'compiles, and fits'}"


def row(case: Case) -> list[str]:
    """A row of the table: what the compiler says of one workload for one machine."""
    found = case.read()
    programs = {one["name"]: one for one in found["programs"]}
    largest = max(programs.values(), key=lambda one: one["memory"])
    of = f" of {largest['available'] / 2**30:.0f}" if largest["available"] else ""
    plain, supporting, one = (programs[name]["estimate"] for name in ("step", "supporting", "one"))
    return [
        case.workload,
        case.machine,
        "full" if found["effort"] == 0 else "little",
        "; ".join(found["wrong"]) or "yes",
        f"{largest['memory'] / 2**30:.2g}{of}",
        f"{1e3 * plain:.3g}" if plain else "",
        f"{supporting / plain:.2f}" if plain and supporting else "",
        f"{one / plain:.2f}" if plain and one else "",
        f"{sum(each['seconds'] for each in programs.values()) / 60:.0f}",
    ]


TITLES = [
    *("workload", "machine", "effort", "compiles, fits, keeps its strikes", "GiB of a device", "step, estimated, ms"),
    *("with support", "with a fault", "minutes to compile"),
]


def table() -> str:
    """The table as Markdown, of what has been compiled."""
    made = [case for name in WORKLOADS for case in cases() if case.workload == name and case.file.exists()]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (TITLES, ["---"] * len(TITLES), *map(row, made)))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=1, help="how many to compile at a time (default: %(default)s)")
    parser.add_argument("--table", action="store_true", help="compile nothing; print the table of what there is")
    options = parser.parse_args()
    if options.table:
        print(table())
        return 0
    missing = [case for case in cases() if not case.file.exists()]
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as jobs:
        for said in jobs.map(compiled, missing):
            print(said, flush=True)
    return int(any(not case.file.exists() for case in missing))


if __name__ == "__main__":
    sys.exit(main())
