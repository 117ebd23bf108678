"""What it costs to make any JAX step one that faults can strike.

Each example is run as its users wrote it, as the reference (a barrier around each product) and with an inactive fault,
with support for all sites and for one.  Steps are alternated, so that what else the machine does meets all alike.  A
first call is timed once each, with no cache of compiled programs.
"""

import argparse
import json
import os
import pathlib
import statistics
import time

os.environ["JAX_ENABLE_COMPILATION_CACHE"] = "false"  # a first call is to compile

import jax

from fault_injection import instrument
from fault_injection.training.traced_step import split
from fault_injection.training.workloads import find_workload
from models.fault import inactive_fault

EXAMPLES = pathlib.Path(__file__).resolve().parent.parent / "examples"


def timed(step, *arguments):
    """Seconds of one call; of the first one, with compiling."""
    begun = time.perf_counter()
    jax.block_until_ready(step(*arguments))
    return time.perf_counter() - begun


def spread(values):
    """Median and quartiles, as text."""
    low, middle, high = statistics.quantiles(values, n=4)
    return f"{middle:.3f} [{low:.3f}, {high:.3f}]"


def measure(name, rounds):
    """Ratios of one example."""
    workload = find_workload(f"{EXAMPLES / name / 'my_run.py'}:training")
    training = workload.started.training
    state, batch = training.init(), training.batch(0, 0)
    everything = instrument(training.step, state, batch)
    first = next(iter(everything.sites))
    one = instrument(training.step, state, batch, [first])
    alike = [jax.numpy.asarray(leaf) for leaf in jax.tree.leaves((split(state)[0], split(batch)[0]))]
    fault = inactive_fault()
    calls = {
        "plain": (training.step, state, batch),
        "reference": (everything.reference_compiled, None, *alike),
        "all sites": (everything.compiled, fault, *alike),
        "one site": (one.compiled, fault, *alike),
    }
    compiling = {what: timed(*call) for what, call in calls.items()}
    seconds = {what: [] for what in calls}
    for _ in range(rounds):
        for what, call in calls.items():
            seconds[what].append(timed(*call))
    plain = seconds["plain"]
    found = {"example": name, "sites": len(everything.sites), "plain_ms": 1e3 * statistics.median(plain)}
    print(f"{name}: {len(everything.sites)} sites, plain step {found['plain_ms']:.1f} ms")
    for what in ("reference", "all sites", "one site"):
        ratios = [a / b for a, b in zip(seconds[what], plain, strict=True)]
        compiled = compiling[what] / compiling["plain"]
        print(f"  {what:10} step / plain {spread(ratios)}   first call / plain {compiled:.2f}")
        found[what] = {"step": statistics.quantiles(ratios, n=4), "first_call": compiled}
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("examples", nargs="*", default=["llama", "flax_linen", "flax_nnx", "shard_map"])
    parser.add_argument("--rounds", type=int, default=30, help="how often each step is timed (default: 30)")
    parser.add_argument("--json", type=pathlib.Path, help="also write the numbers there")
    options = parser.parse_args()
    found = [measure(name, options.rounds) for name in options.examples]
    print(f"load of the machine now: {os.getloadavg()[0]:.1f} on {os.cpu_count()} processors")
    if options.json:
        options.json.write_text(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
