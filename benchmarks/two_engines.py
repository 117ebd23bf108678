"""The explicit step under the engine for any step, in place of its own: what one mechanism for both would cost.

The explicit step without a fault is given to `instrument` as it is.  Its products are then found in its jaxpr, and the
interpreter strikes.  Beside it stand the explicit step and the same step with a fault at one site.
"""

import os
import time
import unittest.mock

os.environ["JAX_ENABLE_COMPILATION_CACHE"] = "false"  # a first call is to compile

import numpy as np
import ours
import pairs

STEP, FIRST = 1.02, 1.3  # bounds: of a step without a fault, and of a first call with one site
SITES = {"resnet18": "fc_grad_in", "transformer": "logits_grad_in"}


def measure(options):
    """The claims about one workload, and the times behind them."""
    import jax
    import jax.numpy as jnp

    from fault_injection import instrument
    from fault_injection.explicit import mesh
    from fault_injection.models.fault import inactive_fault
    from fault_injection.models.overwrite import words_of

    site = SITES[options.workload]
    contestant = ours.make(options, frozenset({site}))
    program, fault = contestant.program, inactive_fault()
    state, batch = ours.start(contestant), program.batch(0, 0)
    with unittest.mock.patch.object(mesh, "compiler_options", lambda: None):  # which a nested function cannot have
        plain = ours.make(options, frozenset({site})).program
    found = instrument(lambda now, examples: plain.step(now, examples, 0, 0), state, batch)

    def given():
        return jax.tree.map(jnp.copy, state)

    def any_step(fault, sites):
        """The step under the other engine, compiled with the options of the explicit one."""
        chosen = found.supporting(frozenset(list(found.all_sites)[:sites]))
        words = None if fault is None else words_of(fault)
        step = mesh.jitted(lambda words, *leaves: chosen.flat(words, *leaves)[0])
        return lambda: step(words, *jax.tree.leaves(given()), *jax.tree.leaves(batch))

    steps = {
        "explicit": lambda: program.step(given(), batch, 0, 0),
        "explicit, one site": lambda: program.faulty_step(given(), batch, 0, 0, fault),
        "any step": any_step(None, 0),
        "any step, one site": any_step(fault, 1),
        "any step, all sites": any_step(fault, len(found.all_sites)),
    }
    compared = [what for what in steps if what.endswith("one site")]
    first = {what: [] for what in compared}
    for number in range(options.first_calls):
        for what in compared[:: -1 if number % 2 else 1]:
            jax.clear_caches()
            begun = time.perf_counter()
            jax.block_until_ready(steps[what]())
            first[what].append(time.perf_counter() - begun)
    print(f"{options.workload}: {len(found.all_sites)} products found in the step")
    pairs.show_times({what: np.array(seconds) for what, seconds in first.items()}, " of first calls")
    seconds = pairs.alternate(steps, options.pairs)
    pairs.show_times(seconds)
    claims = [
        pairs.claim(f"step: {what} / explicit", seconds[what] / seconds["explicit"], STEP) for what in list(steps)[1:]
    ]
    ratios = np.divide(first["any step, one site"], first["explicit, one site"])
    claims.append(pairs.claim("first call, one site: any step / explicit", ratios, FIRST))
    return claims, {"products": len(found.all_sites), "first_calls": first, "seconds": seconds}


def main():
    def more(parser):
        parser.add_argument("--first-calls", type=int, default=6, help="rounds of first calls (default %(default)s)")

    options = pairs.parse(__doc__, more, workloads=tuple(SITES))
    machine = pairs.start(options)
    pairs.show_machine(machine)
    claims, more = measure(options)
    pairs.write(options, machine, claims, **more)


if __name__ == "__main__":
    main()
