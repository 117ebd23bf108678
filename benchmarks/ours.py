"""The contestant that is ours: the whole explicit training step of a workload on the embedded digits."""

import argparse
import itertools
from collections.abc import Callable

import jax
import numpy as np
import pairs  # noqa: F401  (puts this checkout on the path)
from fault_injection.training.session import Session

from fault_injection.machine.errors import did_you_mean
from fault_injection.training.explicit import gradients
from fault_injection.training.workloads import WORKLOADS, make_workload
from models.layer import Context


def make_session(options: argparse.Namespace) -> Session:
    """The workload, 8 workers, dropout 0, images from the embedded digits, one device."""
    if options.workload not in WORKLOADS:
        raise SystemExit(f"--workload {options.workload} is unknown{did_you_mean(options.workload, WORKLOADS)}")
    width = {} if options.width is None else {"width": options.width}
    workload = make_workload(options.workload, dataset="digits", batch_size=options.batch_size, **width)
    return Session(workload, devices=1)


def size(session: Session) -> str:
    """What was measured, for a claim."""
    w = session.workload
    return f"{w.name}, width {w.width}, batch {w.batch_size}"


def address(session: Session, step: int) -> np.ndarray:
    """The address of a step of epoch 0."""
    return np.array([session.workload.seed, 0, step], np.int32)


def host_batches(session: Session) -> list[dict[str, np.ndarray]]:
    """The batches of epoch 0, `image` [R,b,H,W,C] and `label` [R,b]."""
    return [session.batches.train(0, step) for step in range(session.steps_per_epoch)]


def whole_batches(session: Session) -> list[tuple[np.ndarray, np.ndarray]]:
    """The same batches without workers: images [N,H,W,C], labels [N]."""
    return [(b["input"].reshape(-1, 32, 32, 3), b["target"].reshape(-1)) for b in host_batches(session)]


def training(session: Session) -> Callable[[], object]:
    """A function that does the next step of a fault-free training, over and over through epoch 0's batches."""
    batches = [session.program.place(batch) for batch in host_batches(session)]
    state = session.start()
    steps = itertools.cycle(range(len(batches)))

    def step():
        nonlocal state
        number = next(steps)
        state, report = session.program.step(state, batches[number], address(session, number))
        return state, report

    return step


def opened(params):
    """The parameters with every skip gain 1: behind those that start at 0 there is no gradient to compare."""
    return {
        layer: {name: jax.numpy.ones_like(value) if name == "skip_gain" else value for name, value in named.items()}
        for layer, named in params.items()
    }


def reference_gradients(session: Session, params, image: np.ndarray, label: np.ndarray):
    """Loss and gradients of the explicit passes with one worker that holds the whole batch."""
    stats = session.start().stats
    network = session.program.network

    @jax.jit
    def passes(params, stats, batch):
        ctx = Context(key=jax.random.key(0), workers=jax.numpy.arange(1))
        loss, _, _, grads, _, _ = gradients(network, params, stats, batch, ctx, len(label))
        return loss, grads

    loss, grads = passes(params, stats, {"input": image[None], "target": label[None]})
    return float(loss), jax.device_get(grads)


def require_same(what: str, ours, theirs, tolerance: float = 5e-2) -> None:
    """Stop unless loss and gradients agree, a gradient relative to the largest one of its layer.

    (The gradient of a bias before a normalisation is rounding noise around zero, so that it can
    only be held against its layer's kernel.  Of millions of ReLUs one at almost exactly zero may
    open in one and not in the other, which moves gradients by a percent at full width.)

    Args:
      ours, theirs: `(loss, {layer: {name: array}})`.
    """
    loss_error = abs(ours[0] - theirs[0]) / abs(ours[0])
    errors = {}
    for layer, named in ours[1].items():
        scale = max(np.abs(gradient).max() for gradient in named.values())
        errors[layer] = max(np.abs(gradient - theirs[1][layer][name]).max() for name, gradient in named.items()) / scale
    worst = max(errors, key=errors.__getitem__)
    text = f"loss differs by {loss_error:.1e}, gradients by at most {errors[worst]:.1e} ({worst}), relative"
    if not all(error <= tolerance for error in (loss_error, *errors.values())):  # a NaN is an error too
        raise SystemExit(f"{what} computes something else: {text}; the bound is {tolerance:.0e}")
    print(f"same network as {what}: {text}")
