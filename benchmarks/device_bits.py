"""Bits of one workload on the devices of this machine: golden twice, inactive faults, strikes, one device or several.

It takes a few steps of the workload in its own process, and the same again in a fresh one that compiles anew; then
the same with faults that are inactive; then it strikes each operand of many sites.  A claim's value is how many of
these were not as they must be, so that each bound is 0.
"""

import argparse
import itertools
import json
import math
import os
import pathlib
import subprocess
import sys
import tempfile

import numpy as np
import pairs

STEPS = 3
PLACES = 97  # a prime: successive strikes fall on elements that lie apart


def make(options):
    """The workload that is meant."""
    from fault_injection.workloads.registry import make_workload

    given = json.loads(options.options)
    given = {name: tuple(value) if isinstance(value, list) else value for name, value in given.items()}
    return make_workload(options.workload, **given)


def started(workload, options, supported, devices=None):
    """A program, its state before the first step and its first batches."""
    program = workload.program(supported, devices=devices, data_dir=options.data_dir)
    batches = [program.batch(0, step) for step in range(min(STEPS, program.steps_per_epoch))]
    return program, program.place(program.init()), batches


def trained(program, state, batches, fault=None):
    """The state after each step, on the host, with its loss."""
    from fault_injection.seam.trees import fetched

    after = []
    for number, batch in enumerate(batches):
        if fault is None:
            state, report = program.step(state, batch, 0, number)
        else:
            state, report = program.faulty_step(state, batch, 0, number, fault)
        after.append(fetched((state, report.loss)))
    return after


def words(after):
    """What two processes compare: a hash of each leaf of each state."""
    import hashlib

    import jax

    def hashed(leaf):
        if jax.dtypes.issubdtype(getattr(leaf, "dtype", np.dtype(object)), jax.dtypes.prng_key):
            leaf = jax.random.key_data(leaf)
        return hashlib.sha256(np.asarray(leaf).tobytes()).hexdigest()[:16]

    return [[hashed(leaf) for leaf in jax.tree.leaves(each)] for each in after]


def differing(one, other):
    """How many leaves of the states differ."""
    return sum(a != b for x, y in zip(words(one), words(other), strict=True) for a, b in zip(x, y, strict=True))


def alone(options):
    """What a fresh process computes, with no compiled program at hand."""
    with tempfile.TemporaryDirectory() as cache:
        environment = os.environ | {"JAX_COMPILATION_CACHE_DIR": cache}
        done = subprocess.run(
            [sys.executable, *sys.argv, "--alone"], env=environment, stdout=subprocess.PIPE, text=True, check=True
        )
    return json.loads(done.stdout.splitlines()[-1])


def struck(program, workload, state, batches, most):
    """Strikes of `most` sites' operands; returns how many there were, and what was wrong with those that failed."""
    from fault_injection.models.bits import unstruck
    from fault_injection.models.fault import Operand
    from fault_injection.models.site import make_fault
    from fault_injection.runs.witness import FaultNotApplied, check_struck, left_out

    sites = list(workload.sites().values())
    chosen = sites[:: -(-len(sites) // most)]
    failed, done = [], 0
    for number, (site, operand) in enumerate(itertools.product(chosen, Operand)):
        tensor = site.operands.get(operand)
        size = 0 if tensor is None else math.prod(tensor.shape)
        if not size or unstruck(tensor.dtype):
            continue
        bits = 8 * tensor.dtype.itemsize
        flip = 1 << (bits - 1 - number % 2)  # the sign, or the exponent's highest bit
        worker = number % workload.workers
        fault = make_fault(site, operand, worker, [PLACES * number % size], keep=(1 << bits) - 1, flip=flip)
        _, report = program.faulty_step(state, batches[0], 0, 0, fault)
        done += 1
        try:
            check_struck(site.name, fault, report.struck, left_out(site, report.struck))
        except FaultNotApplied as error:
            failed.append(str(error))
    return done, failed


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("workload", help="a workload's name, or FILE.py:FUNCTION")
    parser.add_argument("--options", default="{}", help="its options, as a JSON object")
    parser.add_argument("--data-dir", type=pathlib.Path, help="where the data set is")
    parser.add_argument("--strikes", type=int, default=24, help="sites that are struck (default %(default)s)")
    parser.add_argument("--alone", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--out", type=pathlib.Path, help="JSON file for every number")
    options = parser.parse_args()
    from fault_injection.machine.environment import arithmetic, describe, prepare

    prepare()
    workload = make(options)
    import jax

    from fault_injection.models.fault import inactive_fault

    plain = trained(*started(workload, options, frozenset()))
    if options.alone:
        print(json.dumps(words(plain)))
        return
    leaves = sum(map(len, words(plain)))
    claims = []

    def claim(what, found, of):
        print(f"claim: {what}: {found} of {of}, bound 0: {'not met' if found else 'met'}")
        claims.append({"claim": what, "median": found, "of": of, "bound": 0, "met": not found})

    again = alone(options)
    differ = sum(a != b for x, y in zip(words(plain), again, strict=True) for a, b in zip(x, y, strict=True))
    claim(f"{workload.name}: leaves that differ, {len(plain)} steps in a fresh process", differ, leaves)
    program, state, batches = started(workload, options, None)
    inactive = trained(program, state, batches, inactive_fault())
    claim(f"{workload.name}: leaves that differ, inactive fault", differing(plain, inactive), leaves)
    done, failed = struck(program, workload, state, batches, options.strikes)
    claim(f"{workload.name}: strikes whose bits are not those asked for", len(failed), done)
    losses = {}
    if program.devices > 1:
        one = trained(*started(workload, options, frozenset(), devices=1))
        losses = {"several devices": [float(loss) for _, loss in plain], "one": [float(loss) for _, loss in one]}
        apart = max(abs(a / b - 1) for a, b in zip(*losses.values(), strict=True))
        print(f"one device instead of {program.devices}: losses differ by at most {apart:.1e}, relative")
    machine = arithmetic(program.devices) | describe() | {"device_count": jax.device_count()}
    pairs.write(options, machine, claims, failed=failed, losses=losses)


if __name__ == "__main__":
    main()
