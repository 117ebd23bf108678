"""Time of a training step outside its compiled program: batches are made while the device computes.

Contestants: `Session.steps`, as a golden run trains (batches made, augmented, normalised and placed, reports
brought back), and the compiled step alone on batches that are on the device already.  Both take two steps at a
time, so that they alternate faster than a machine drifts; the first batch of the two is made while nothing computes,
which in a training happens once an epoch.  A time is that of one step.  The claim is the share of the first that the
second does not explain.
Printed too: the time to make a batch.  With `--data-dir` on CIFAR-10 with its published augmentation, else on
the embedded digits.
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
    parser.add_argument("--data-dir", type=pathlib.Path, help="folder of CIFAR-10")


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
    """A function that trains as many steps on batches of epoch 0 that are on the device."""
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
