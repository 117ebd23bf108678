"""Time of a training step outside its compiled program, given that batches are made while the device computes.

There are two contestants.  `follow` trains as a golden run does: it makes, augments, normalises and places
batches, and fetches reports.  The other is the compiled step alone, on batches that are already on the device.
Both take two steps at a time, so that they alternate faster than the machine's speed drifts.  The first of the two
batches is made while nothing computes, which happens once per epoch in a real training run.  Times are per step.  The
claim is the share of the time of `follow` that the compiled step does not explain.

The script also prints the time to make a batch.  With `--data-dir` it uses CIFAR-10 with the published augmentation,
otherwise the embedded digits.
"""

import pathlib
import time

import jax
import numpy as np
import ours
import pairs

from fault_injection.runs.follow import follow
from fault_injection.runs.steps import Address, addresses
from fault_injection.workloads.registry import make_workload

BOUND = 0.05
STEPS = 2  # at a time


def options_of(parser):
    parser.add_argument("--data-dir", type=pathlib.Path, help="folder that contains CIFAR-10")


def end_to_end(contestant):
    """A function that trains the first steps of the next epoch through `follow`."""
    state, epoch = ours.start(contestant), 0

    def run():
        nonlocal state, epoch
        steps = addresses(Address(epoch, 0), Address(epoch, STEPS - 1), contestant.program.steps_per_epoch)
        state = follow(contestant.program, state, steps).state
        epoch += 1
        return state

    return run


def compiled_only(contestant):
    """A function that trains the same number of steps on batches of epoch 0 that are already on the device."""
    batches = [contestant.program.batch(0, step) for step in range(STEPS)]
    state = ours.start(contestant)

    def run():
        nonlocal state
        for step, batch in enumerate(batches):
            state, report = contestant.program.step(state, batch, 0, step)
            jax.block_until_ready(report)
        return state

    return run


def main():
    options = pairs.parse(__doc__, options_of)
    found = pairs.start(options)
    pairs.show_machine(found)
    width = options.width or 64
    given = {"width": width, "batch_size": options.batch_size}
    published = make_workload("resnet18")
    workload = (published if options.data_dir else published.embedded()).changed(**given)
    contestant = ours.of(workload, data_dir=options.data_dir)

    making = []
    for step in range(50):
        started = time.perf_counter()
        contestant.batches.train(0, step)
        making.append(time.perf_counter() - started)
    contestants = {"end to end": end_to_end(contestant), "compiled step": compiled_only(contestant)}
    seconds = {name: times / STEPS for name, times in pairs.alternate(contestants, options.pairs).items()}
    seconds["making a batch"] = np.array(making)
    pairs.show_times(seconds)
    outside = 1 - seconds["compiled step"] / seconds["end to end"]
    what = f"time outside the compiled step / step, {workload.dataset}, width {width}, batch {options.batch_size}"
    claims = [pairs.claim(what, outside, BOUND)]
    pairs.write(options, found, claims, seconds=seconds)


if __name__ == "__main__":
    main()
