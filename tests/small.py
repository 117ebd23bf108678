"""The smallest workload that has everything, and its program, which tests share because compiling takes longest."""

import functools

from fault_injection.workloads.registry import make_workload

# ResNet-18 with two channels and one block per stage: 11 steps per epoch, a step of a few milliseconds.  At this
# learning rate twins part within four epochs.
OPTIONS = {
    "dataset": "digits",
    "width": 2,
    "blocks": (1, 1, 1, 1),
    "batch_size": 128,
    "workers": 4,
    "learning_rate": 0.03,
}
SITE = "basicblock_3_basic_0_conv1_grad_in"  # an operation in the middle of it
UNREAD = "conv1_grad_in"  # an operation whose result nothing reads


def small(**changes):
    """The workload, with other options where they are given."""
    return make_workload("resnet18", **OPTIONS | changes)


@functools.cache
def striking_program():
    """The program that can strike the two sites that most tests strike; the epochs of a workload are no part of it."""
    return small().program(frozenset({SITE, UNREAD}))


def flags(**changes):
    """The workload as options of the command `golden`."""
    options = OPTIONS | changes
    options["blocks"] = "/".join(map(str, options["blocks"]))
    return [word for name, value in options.items() for word in (f"--{name.replace('_', '-')}", str(value))]
