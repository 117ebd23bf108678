"""Time of the first call in a fresh process, with and without a fault, with a cold and a warm cache; peak memory.

Each measurement has a process of its own: plain, with a fault at the only site supported, or with all supported.  A
first process starts with an empty folder of compiled programs.  A second one starts with what the first left there.

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

# A replay supports the site that it strikes, a campaign those of its plan: at most all.
KINDS = ("plain", "with a fault", "with a fault, all sites")
COLD = 1.5  # with a fault / plain, with an empty folder of compiled programs
WARM = {
    "resnet18": 4,
    "densenet": 15,
    "effnet": 15,
    "nfnet": 15,
}  # seconds with a fault, with compiled programs at hand
SITE = "fc_grad_in"  # the one that is struck
MAXRSS_UNIT = 1 if sys.platform == "darwin" else 1024  # bytes


def child(options):
    """Measure in this process and print the numbers as JSON."""
    found = pairs.start(options)
    import jax
    import ours

    from fault_injection.models.fault import Operand
    from fault_injection.models.site import make_fault

    contestant = ours.make(options, None if "all" in options.child else frozenset({SITE}))
    program = contestant.program
    fault = make_fault(contestant.workload.sites()[SITE], Operand.OUTPUT, 3, [5], flip=0x80000000)

    started = time.perf_counter()
    state, batch = ours.start(contestant), program.batch(0, 0)
    prepared = time.perf_counter()
    if options.child == "plain":
        result = program.step(state, batch, 0, 0)
    else:
        result = program.faulty_step(state, batch, 0, 0, fault)
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
    of = f"{options.workload}, width {options.width or 'as published'}, batch {options.batch_size}"
    call = everything["call alone"]
    claims.append(
        pairs.claim(
            f"first call, cold, with a fault / plain, {of}", call["with a fault, cold"] / call["plain, cold"], COLD
        )
    )
    bound = WARM.get(options.workload)
    claims.append(pairs.claim(f"first call, warm, with a fault, {of}", call["with a fault, warm"], bound, unit=" s"))
    pairs.write(options, found, claims, seconds=everything, peak_bytes=peaks)


if __name__ == "__main__":
    main()
