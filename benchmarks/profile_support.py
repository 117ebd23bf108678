"""A step that supports a defect profile, in which nothing is struck, compared with the step without a fault.

Four contestants take turns: the step as it is without a fault; the step that lists elements (an inactive fault); the
step that has a rule (an inactive rule); and a rule that looks at every element of one operation and finds none.  The
first three are about support; the last strikes, or would, and says what a struck step costs.
"""

import argparse
import pathlib
import time

import pairs

LOOP = 0.2  # seconds of training that are timed at once
BOUND = 1.03


def contestants_of(name, sites):
    """Steps of a training by what they are, with a state to begin with."""
    import dataclasses

    import jax
    import numpy as np

    from fault_injection import instrument
    from fault_injection.models.bits import mask_type
    from fault_injection.models.fault import Operand, inactive_fault
    from fault_injection.models.rule import NO_RULE
    from fault_injection.models.site import ruled_fault
    from fault_injection.workloads.registry import find_workload

    training = find_workload(name).started.training
    batch = training.batch(0, 0)
    state, _ = training.step(training.init(), batch)
    program = instrument(training.step, state, batch, *([sites] if sites else []))
    site = next(iter(program.sites.values()))
    rule = NO_RULE.words(mask_type(site.operands[Operand.OUTPUT].dtype))
    looking = ruled_fault(site, Operand.OUTPUT, 0, rule)
    none = {"listed": inactive_fault(), "rule": inactive_fault(ruled=True)}
    clean = jax.device_get(program.reference(state, batch)[0])
    for fault in (*none.values(), looking):  # which finds none
        found = jax.device_get(program(fault, state, batch)[0][0])
        for one, other in zip(jax.tree.leaves(clean), jax.tree.leaves(found), strict=True):
            assert np.asarray(one).tobytes() == np.asarray(other).tobytes()
    assert not np.asarray(program(dataclasses.replace(looking), state, batch)[1].matched).any()
    steps = {
        "reference": lambda state: program.reference(state, batch)[0],
        "listed elements, inactive": lambda state: program(none["listed"], state, batch)[0][0],
        "rule, inactive": lambda state: program(none["rule"], state, batch)[0][0],
        "rule, looking at one operation": lambda state: program(looking, state, batch)[0][0],
    }
    return steps, state, len(program.sites)


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    default = f"{pairs.ROOT / 'results' / 'profiles' / 'digits.py'}:float32"
    parser.add_argument("--training", default=default, help="FILE.py:FUNCTION (default %(default)s)")
    parser.add_argument("--sites", nargs="*", help="patterns of sites that can be struck (default: all)")
    parser.add_argument("--pairs", type=int, default=30, help="rounds of alternation (default %(default)s)")
    parser.add_argument("--threads", type=int, help="processors to use (default: all that this process may use)")
    parser.add_argument("--out", type=pathlib.Path, help="JSON file for every number")
    options = parser.parse_args()
    machine = pairs.start(options)
    pairs.show_machine(machine)

    import jax
    import jax.numpy as jnp

    steps, state, sites = contestants_of(options.training, options.sites)

    def loop(step, count):
        def run():
            now = jax.tree.map(lambda leaf: jnp.copy(leaf) if isinstance(leaf, jax.Array) else leaf, state)
            for _ in range(count):
                now = jax.block_until_ready(step(now))
            return now

        return run

    loop(steps["reference"], 1)()
    begun = time.perf_counter()
    loop(steps["reference"], 10)()
    count = max(1, round(LOOP / (time.perf_counter() - begun) * 10))
    seconds = pairs.alternate({what: loop(step, count) for what, step in steps.items()}, options.pairs)
    print(f"{options.training}: {sites} sites")
    pairs.show_times({what: each / count for what, each in seconds.items()}, f" of a step, in loops of {count}")
    name = pathlib.Path(options.training).name
    claims = [
        pairs.claim(
            f"{name}: rule, inactive / listed elements, inactive",
            seconds["rule, inactive"] / seconds["listed elements, inactive"],
            BOUND,
            low_end=True,
        ),
        pairs.claim(
            f"{name}: rule, inactive / reference", seconds["rule, inactive"] / seconds["reference"], BOUND, low_end=True
        ),
    ]
    pairs.write(options, machine, claims, sites=sites, steps=count, seconds=seconds)


if __name__ == "__main__":
    main()
