"""A user's own step, struck: with an inactive fault / as its users wrote it.

Each example runs as it is, as the reference (a barrier around each product), and with an inactive fault: with support
for all of its sites, and for one.  First calls, which compile, are timed too, with no cache of compiled programs.
"""

import argparse
import functools
import os
import pathlib
import time

os.environ["JAX_ENABLE_COMPILATION_CACHE"] = "false"  # a first call is to compile

import pairs

EXAMPLES = pairs.ROOT / "examples"
STEP, ALL, ONE = 1.06, 3.5, 1.3  # bounds: of a step; of the first call with all sites, and with one
LOOP = 0.1  # seconds of training that are timed at once


def timed(call):
    """Seconds of a call, from nothing compiled."""
    import jax

    jax.clear_caches()
    begun = time.perf_counter()
    jax.block_until_ready(call())
    return time.perf_counter() - begun


@functools.cache
def training_of(name):
    """An example's training."""
    from fault_injection.workloads.registry import find_workload

    return find_workload(f"{EXAMPLES / name / 'my_run.py'}:training").started.training


def measure(name, options):
    """The claims about one example, and the times behind them."""
    import jax
    import jax.numpy as jnp

    from fault_injection import instrument
    from fault_injection.models.fault import inactive_fault

    training = training_of(name)
    batch, fault = training.batch(0, 0), inactive_fault()
    state, _ = training.step(training.init(), batch)  # it lies where steps leave it

    def contestants():
        everything = instrument(training.step, state, batch)
        one = instrument(training.step, state, batch, [next(iter(everything.sites))])
        return everything, {
            "plain": lambda state: training.step(state, batch),
            "reference": lambda state: everything.reference(state, batch),
            "all sites": lambda state: everything(fault, state, batch)[0],
            "one site": lambda state: one(fault, state, batch)[0],
        }

    def given():
        """A copy of the state, because a step may give its buffers away."""
        return jax.tree.map(lambda leaf: jnp.copy(leaf) if isinstance(leaf, jax.Array) else leaf, state)

    def loop(step, steps):
        """Training that waits for each step's metrics, as a loop that prints them does."""

        def run():
            now = given()
            for _ in range(steps):
                now, metrics = jax.block_until_ready(step(now))
            return metrics

        return run

    first = {}
    for _ in range(options.first_calls):
        program, steps = contestants()
        for what, step in steps.items():
            begin = given()
            first.setdefault(what, []).append(timed(lambda step=step, begin=begin: step(begin)))
    loop(steps["plain"], 1)()  # which compiles it
    begun = time.perf_counter()
    loop(steps["plain"], 10)()
    count = max(1, round(LOOP / (time.perf_counter() - begun) * 10))
    seconds = pairs.alternate({what: loop(step, count) for what, step in steps.items()}, options.pairs)
    print(f"{name}: {len(program.all_sites)} sites")
    pairs.show_times({what: each / count for what, each in seconds.items()}, f" of a step, in loops of {count}")
    claims = [
        pairs.claim(f"{name}: step, {what} / plain", seconds[what] / seconds["plain"], STEP, low_end=True)
        for what in ("reference", "all sites", "one site")
    ]
    for what, bound in (("all sites", ALL), ("one site", ONE)):
        ratios = [mine / plain for mine, plain in zip(first[what], first["plain"], strict=True)]
        claims.append(pairs.claim(f"{name}: first call, {what} / plain", ratios, bound))
    more = {"sites": len(program.all_sites), "steps": count, "seconds": seconds, "seconds_of_first_calls": first}
    return claims, more


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    every = sorted(path.parent.name for path in EXAMPLES.glob("*/my_run.py"))
    parser.add_argument("example", choices=every, help="a folder in examples/")
    parser.add_argument("--pairs", type=int, default=30, help="rounds of alternation (default %(default)s)")
    parser.add_argument("--first-calls", type=int, default=3, help="first calls of each (default %(default)s)")
    parser.add_argument("--threads", type=int, help="processors to use (default: all that this process may use)")
    parser.add_argument("--out", type=pathlib.Path, help="JSON file for every number")
    options = parser.parse_args()
    machine = pairs.start(options, lambda: training_of(options.example))
    pairs.show_machine(machine)
    claims, times = measure(options.example, options)
    pairs.write(options, machine, claims, times=times)


if __name__ == "__main__":
    main()
