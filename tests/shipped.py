"""Replay injections; run as its own process, since threads and devices are a process's.

    shipped.py THREADS CACHE SEEDS FILE...

Prints a JSON object: `{seed: {file name: [outcome, exactly masked]}}`.
"""

import dataclasses
import json
import pathlib
import sys
import tempfile

from fault_injection.faults.injection_file import read_injection
from fault_injection.machine.environment import prepare
from fault_injection.runs.replay_run import replay


def main(threads: str, cache: str, seeds: str, *files: str) -> None:
    """Replay every file with every seed, of which there are some with commas between them."""
    prepare(int(threads))
    verdicts: dict[str, dict[str, tuple[str, bool]]] = {seed: {} for seed in seeds.split(",")}
    for path in map(pathlib.Path, files):
        injection = read_injection(path)
        for seed in verdicts:
            workload = dataclasses.replace(injection.workload, seed=int(seed))
            with tempfile.TemporaryDirectory() as out:
                seeded = dataclasses.replace(injection, workload=workload)
                outcome = replay(seeded, path.stem, pathlib.Path(out), cache=pathlib.Path(cache)).outcome
            verdicts[seed][path.stem] = outcome.outcome, outcome.exactly_masked_after is not None
    json.dump(verdicts, sys.stdout)


if __name__ == "__main__":
    main(*sys.argv[1:])
