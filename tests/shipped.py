"""Replay injections; run as its own process, since threads and devices are a process's.

    shipped.py THREADS CACHE SEED HORIZON FILE...

HORIZON is how many steps each is followed; 0 stands for what its file says.
Prints a JSON object: `{file name: [outcome, exactly masked]}`.
"""

import dataclasses
import functools
import json
import pathlib
import sys

from fault_injection.faults.injection_file import read_injection
from fault_injection.machine.environment import prepare
from fault_injection.runs.golden_run import Golden
from fault_injection.runs.replay_run import replay


def main(threads: str, cache: str, seed: str, horizon: str, *files: str) -> None:
    """Replay every file; files of one workload share a program that can strike the sites of all of them."""
    prepare(int(threads))
    injections = {}
    for path in map(pathlib.Path, files):
        injection = read_injection(path)
        seeded = dataclasses.replace(injection.workload, seed=int(seed))
        injections[path.stem] = dataclasses.replace(
            injection, workload=seeded, horizon=int(horizon) or injection.horizon
        )

    @functools.cache
    def golden_of(workload):
        sites = frozenset(injection.layer for injection in injections.values() if injection.workload == workload)
        return Golden(workload, workload.program(sites), pathlib.Path(cache), keep=frozenset(range(3, 8)))

    verdicts = {}
    for name, injection in injections.items():
        outcome = replay(injection, golden_of(injection.workload)).outcome
        verdicts[name] = outcome.outcome, outcome.exactly_masked_after is not None
    json.dump(verdicts, sys.stdout)


if __name__ == "__main__":
    main(*sys.argv[1:])
