"""Time of the first call in a fresh process, with and without a fault, with a cold and a warm cache; peak memory.

Each measurement has a process of its own, either plain or with a fault.  A first process starts with an empty folder of
compiled programs.  A second process starts with what the first one left there.

The claims are about the call: tracing, compilation and the step itself.  The script also prints the time that includes
reading the dataset and making the initial state, and the time of the whole process.  Peak memory is the largest
resident set of the process, including libraries and compilation.
"""

import argparse
import itertools
import json
import os
import pathlib
import resource
import subprocess
import sys
import tempfile
import time

import numpy as np
import pairs
from tqdm import tqdm

KINDS = ("plain", "with a fault")
BOUNDS = {("plain", "cold"): 15, ("with a fault", "cold"): 25, ("plain", "warm"): 4, ("with a fault", "warm"): 4}
LARGER = {(kind, cache): bound for kind in KINDS for cache, bound in (("cold", 90), ("warm", 15))}  # other workloads
MAXRSS_UNIT = 1 if sys.platform == "darwin" else 1024  # bytes


def child(options):
    """Measure in this process and print the numbers as JSON."""
    found = pairs.start(options)
    import jax
    import ours

    from models.fault import Operand, make_fault

    session = ours.make_session(options)
    fault = make_fault("fc_grad_in", Operand.OUTPUT, 3, [5], flip=0x80000000)

    started = time.perf_counter()
    state, batch = session.start(), session.program.place(session.batches.train(0, 0))
    prepared = time.perf_counter()
    if options.child == "plain":
        result = session.program.step(state, batch, ours.address(session, 0))
    else:
        result = session.program.faulty_step(state, batch, ours.address(session, 0), fault)
    jax.block_until_ready(result)
    done = time.perf_counter()

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * MAXRSS_UNIT
    seconds = {"first step": done - started, "call alone": done - prepared}
    print(json.dumps({"machine": found, "peak_bytes": peak, "seconds": seconds}))


def measure(kind, cache, options):
    """Measure in one fresh process.  The parent must stay small, because a child's peak starts at its parent's size."""
    environment = os.environ | {"FAULT_INJECTION_CACHE": str(cache)}
    environment.pop("JAX_COMPILATION_CACHE_DIR", None)
    command = [sys.executable, __file__, "--child", kind, "--workload", options.workload]
    given = {"--width": options.width, "--batch-size": options.batch_size, "--threads": options.threads}
    command += [word for name, value in given.items() if value for word in (name, str(value))]
    started = time.perf_counter()
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    numbers = json.loads(done.stdout.splitlines()[-1])
    numbers["seconds"]["whole process"] = time.perf_counter() - started
    return numbers


def main():
    options = pairs.parse(__doc__, lambda p: p.add_argument("--child", choices=KINDS, help=argparse.SUPPRESS), None)
    if options.child:
        child(options)
        return
    cases = list(itertools.product(KINDS, ("cold", "warm")))
    measured = {case: [] for case in cases}
    for i in tqdm(range(options.pairs), desc="rounds"):
        for kind in KINDS[:: -1 if i % 2 else 1]:
            with tempfile.TemporaryDirectory() as cache:
                for temperature in ("cold", "warm"):
                    measured[kind, temperature].append(measure(kind, pathlib.Path(cache), options))

    found = measured[cases[0]][0]["machine"]
    pairs.show_machine(found)
    claims, everything = [], {}
    for part in ("first step", "call alone", "whole process"):
        everything[part] = {", ".join(c): np.array([run["seconds"][part] for run in measured[c]]) for c in cases}
        pairs.show_times(everything[part], f", {part}")
    peaks = {", ".join(c): [run["peak_bytes"] for run in measured[c]] for c in cases}
    print("peak memory of the process, MiB, median (smallest to largest):")
    for name, values in peaks.items():
        low, middle, high = (value / 2**20 for value in (min(values), np.median(values), max(values)))
        print(f"  {name:20} {middle:.0f} ({low:.0f} to {high:.0f})")
    for case, bound in (BOUNDS if options.workload == "resnet18" else LARGER).items():
        what = f"first call, {', '.join(case)}, {options.workload}, width {options.width or 'as published'}"
        what += f", batch {options.batch_size}"
        claims.append(pairs.claim(what, everything["call alone"][", ".join(case)], bound, unit=" s"))
    pairs.write(options, found, claims, seconds=everything, peak_bytes=peaks)


if __name__ == "__main__":
    main()
