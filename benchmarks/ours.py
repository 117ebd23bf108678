"""Our contestant: the whole explicit training step of a workload on the embedded digits."""

import argparse
import itertools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pairs  # noqa: F401  (puts this checkout on the path)

from fault_injection.machine.errors import did_you_mean
from fault_injection.training.explicit import gradients
from fault_injection.training.session import Session
from fault_injection.training.workloads import WORKLOADS, make_workload
from models.layer import Context, Params

Found = tuple[float, dict[str, dict[str, np.ndarray]]]  # loss, gradients by layer and name


def make_session(options: argparse.Namespace) -> Session:
    """The workload with 8 workers, dropout 0 and the embedded digits, on one device."""
    if options.workload not in WORKLOADS:
        raise SystemExit(f"--workload {options.workload} is unknown{did_you_mean(options.workload, WORKLOADS)}")
    width = {} if options.width is None else {"width": options.width}
    workload = make_workload(options.workload, dataset="digits", batch_size=options.batch_size, **width)
    return Session(workload, devices=1)


def size(session: Session) -> str:
    """The workload, width and batch size, for the text of a claim."""
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
    return [(b["image"].reshape(-1, 32, 32, 3), b["label"].reshape(-1)) for b in host_batches(session)]


def training(session: Session) -> Callable[[], object]:
    """A function that does the next fault-free training step; it repeats the batches of epoch 0."""
    batches = [session.program.place(batch) for batch in host_batches(session)]
    state = session.start()
    steps = itertools.cycle(range(len(batches)))

    def step():
        nonlocal state
        number = next(steps)
        state, report = session.program.step(state, batches[number], address(session, number))
        return state, report

    return step


def batch_to_compare() -> tuple[np.ndarray, np.ndarray]:
    """A batch on which two networks are compared: 16 random images [N,H,W,C] and labels [N].

    The digits do not do: their background is constant.  A standardised kernel sums to zero, so it maps a constant
    to rounding noise, and the sign of the noise decides which ReLUs are open.
    """
    random = np.random.default_rng(0)
    return random.standard_normal((16, 32, 32, 3), np.float32), random.integers(0, 10, 16, np.int32)


def opened(params: Params) -> Params:
    """The parameters with every skip gain set to 1: a skip gain of 0, the initial value, stops all gradients."""
    return {
        layer: {name: jax.numpy.ones_like(value) if name == "skip_gain" else value for name, value in named.items()}
        for layer, named in params.items()
    }


def reference_gradients(
    session: Session, params: Params, image: np.ndarray, label: np.ndarray, dtype: type[np.floating] = np.float64
) -> Found:
    """Loss and gradients of the explicit passes, with one worker that holds the whole batch.

    Args:
      params: the parameters at which to differentiate.
      image: [N,H,W,C].
      label: int [N].
      dtype: the type in which everything is computed: float64, or float32 as in training.
    """
    network, stats = session.program.network, session.start().stats

    @jax.jit
    def passes(params, stats, batch):
        ctx = Context(key=jax.random.key(0), workers=jax.numpy.arange(1))
        loss, _, _, grads, _, _ = gradients(network, params, stats, batch, ctx, len(label))
        return loss, grads

    with jax.enable_x64(dtype == np.float64):
        params, stats, image = as_dtype((params, stats, image), dtype)
        loss, grads = passes(params, stats, {"image": image[None], "label": label[None]})
    return float(loss), jax.device_get(grads)


def as_dtype(tree: Any, dtype: type[np.floating]) -> Any:
    """The arrays of a pytree as NumPy arrays of `dtype`."""
    return jax.tree.map(lambda leaf: np.asarray(leaf, dtype), tree)


def difference(reference: Found, found: Found) -> tuple[float, str]:
    """The largest relative difference of loss and gradients, and a text that says where it is.

    A gradient's difference is relative to the largest gradient of its layer.  The gradient of a bias
    before a normalisation is rounding noise around zero, so its own size is no measure.
    """
    loss_error = abs(reference[0] - found[0]) / abs(reference[0])
    errors = {}
    for layer, named in reference[1].items():
        scale = max(np.abs(gradient).max() for gradient in named.values())
        errors[layer] = max(np.abs(gradient - found[1][layer][name]).max() for name, gradient in named.items()) / scale
    worst = max(errors, key=lambda layer: np.nan_to_num(errors[layer], nan=np.inf))
    text = f"loss differs by {loss_error:.1e}, gradients by at most {errors[worst]:.1e} ({worst}), relative"
    return float(np.max([loss_error, *errors.values()])), text  # NaN if any difference is


def require_same(what: str, ours: Found, theirs: Found, tolerance: float = 1e-6) -> None:
    """Stop unless loss and gradients agree; both must have been computed in float64.

    float32 does not do.  Of millions of ReLUs, one whose input is almost exactly zero may be open in one
    contestant and closed in the other.  This moves the gradients of a layer by several percent, or more.

    Args:
      what: the contestant, as in "Linen's".
      ours: loss and gradients from `reference_gradients`.
      theirs: loss and gradients of the contestant, under our names.
      tolerance: the largest relative difference that is accepted.
    """
    error, text = difference(ours, theirs)
    if not error <= tolerance:  # a NaN is an error too
        raise SystemExit(f"{what} network computes something else: in float64, {text}; the bound is {tolerance:.0e}")
    print(f"{what} network computes the same as ours: in float64, {text}")
