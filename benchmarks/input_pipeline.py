"""Time of a training step outside its compiled program, given that batches are made while the device computes.

There are two contestants.  `Session.steps` trains as a golden run does: it makes, augments, normalises and places
batches, and fetches reports.  The other is the compiled step alone, on batches that are already on the device.
Both take two steps at a time, so that they alternate faster than the machine's speed drifts.  The first of the two
batches is made while nothing computes, which happens once per epoch in a real training run.  Times are per step.  The
claim is the share of the time of `Session.steps` that the compiled step does not explain.

The script also prints the time to make a batch.  With `--data-dir` it uses CIFAR-10 with the published augmentation,
otherwise the embedded digits.
"""

import pathlib
import time

import jax
import numpy as np
import ours
import pairs

from fault_injection.training.session import Session
from fault_injection.training.workloads import embedded, make_workload

BOUND = 0.05
STEPS = 2  # at a time


def options_of(parser):
    parser.add_argument("--data-dir", type=pathlib.Path, help="folder that contains CIFAR-10")


def end_to_end(session):
    """A function that trains the first steps of the next epoch through `Session.steps`."""
    state, epoch = session.start(), 0

    def run():
        nonlocal state, epoch
        for _, state, _ in session.steps(state, epoch, 0, STEPS):
            pass
        epoch += 1
        return state

    return run


def compiled_only(session):
    """A function that trains the same number of steps on batches of epoch 0 that are already on the device."""
    batches = [session.program.place(session.batches.train(0, step)) for step in range(STEPS)]
    state = session.start()

    def run():
        nonlocal state
        for step, batch in enumerate(batches):
            state, report = session.program.step(state, batch, ours.address(session, step))
            jax.block_until_ready(report)
        return state

    return run


def main():
    options = pairs.parse(__doc__, options_of)
    found = pairs.start(options)
    pairs.show_machine(found)
    width = options.width or 64
    given = {"width": width, "batch_size": options.batch_size}
    workload = make_workload("resnet18", **(given if options.data_dir else embedded("resnet18") | given))
    session = Session(workload, devices=1, data_dir=options.data_dir)

    making = []
    for step in range(50):
        started = time.perf_counter()
        session.batches.train(0, step)
        making.append(time.perf_counter() - started)
    contestants = {"end to end": end_to_end(session), "compiled step": compiled_only(session)}
    seconds = {name: times / STEPS for name, times in pairs.alternate(contestants, options.pairs).items()}
    seconds["making a batch"] = np.array(making)
    pairs.show_times(seconds)
    outside = 1 - seconds["compiled step"] / seconds["end to end"]
    what = f"time outside the compiled step / step, {workload.dataset}, width {width}, batch {options.batch_size}"
    claims = [pairs.claim(what, outside, BOUND)]
    pairs.write(options, found, claims, seconds=seconds)


if __name__ == "__main__":
    main()
