"""Our contestant: the whole explicit training step of a workload on its embedded data."""

import argparse
import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
import pairs  # noqa: F401  (puts this checkout on the path)

from fault_injection.data import DATASETS
from fault_injection.data.batches import Batches
from fault_injection.data.texts import TEXTS
from fault_injection.data.tokens import TokenBatches
from fault_injection.explicit.passes import forward_and_backward
from fault_injection.machine.errors import did_you_mean
from fault_injection.models.arrays import Params
from fault_injection.models.layer import Context, Layer
from fault_injection.seam.program import Program
from fault_injection.workloads.image import ImageWorkload
from fault_injection.workloads.registry import WORKLOADS, make_workload
from fault_injection.workloads.text import TextWorkload

Found = tuple[float, dict[str, dict[str, np.ndarray]]]  # loss, gradients by layer and name


class Ours(NamedTuple):
    """Our contestant: a workload, its program, its network and its batches."""

    workload: ImageWorkload | TextWorkload
    program: Program
    network: Layer
    batches: Batches | TokenBatches


def make(options: argparse.Namespace, supported: frozenset[str] | None = None) -> Ours:
    """An image workload with 8 workers, dropout 0 and the embedded digits, or a text workload; on one device.

    Args:
      supported: sites that its faulty step can strike; None for all.
    """
    if options.workload not in WORKLOADS:
        raise SystemExit(f"--workload {options.workload} is unknown{did_you_mean(options.workload, WORKLOADS)}")
    width = {} if options.width is None else {"width": options.width}
    more = {name: vars(options)[name] for name in ("blocks", "context", "strategy") if name in options}
    if isinstance(WORKLOADS[options.workload], ImageWorkload):
        more |= {"dataset": "digits"}
    return of(make_workload(options.workload, batch_size=options.batch_size, **width, **more), supported)


def of(workload: ImageWorkload | TextWorkload, supported: frozenset[str] | None = None, data_dir: Any = None) -> Ours:
    """The contestant of a workload."""
    w = workload
    if isinstance(w, TextWorkload):
        tokens = TEXTS[w.dataset].load(data_dir, w.vocabulary, w.context)
        text = TokenBatches(tokens, w.seed, w.workers, w.batch_size, w.context)
        return Ours(w, w.program(supported, devices=1, data_dir=data_dir), w.recipe().network, text)
    images = DATASETS[w.dataset].load(data_dir)
    batches = Batches(images, w.seed, w.workers, w.batch_size, w.augmentation)
    return Ours(w, w.program(supported, devices=1, data_dir=data_dir), w.recipe().network, batches)


def size(contestant: Ours) -> str:
    """The workload, width and batch size, for the text of a claim."""
    w = contestant.workload
    return f"{w.name}, width {w.width}, batch {w.batch_size}"


def start(contestant: Ours) -> Any:
    """The state before the first step, on the device."""
    return contestant.program.place(contestant.program.init())


def whole_batches(contestant: Ours) -> list[tuple[np.ndarray, np.ndarray]]:
    """The batches of epoch 0 without workers: images [N,H,W,C], labels [N]."""
    found = [contestant.batches.train(0, step) for step in range(contestant.program.steps_per_epoch)]
    return [(b["input"].reshape(-1, 32, 32, 3), b["target"].reshape(-1)) for b in found]


def training(contestant: Ours) -> Callable[[], object]:
    """A function that does the next fault-free training step; it repeats the batches of epoch 0."""
    program = contestant.program
    batches = [program.batch(0, step) for step in range(program.steps_per_epoch)]
    state = start(contestant)
    steps = itertools.cycle(range(len(batches)))

    def step():
        nonlocal state
        number = next(steps)
        state, report = program.step(state, batches[number], 0, number)
        return state, report

    return step


def lowered(contestant: Ours) -> Any:
    """The fault-free step before compilation."""
    return contestant.program.extras.lower["step"]()


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
    contestant: Ours, params: Params, image: np.ndarray, label: np.ndarray, dtype: type[np.floating] = np.float64
) -> Found:
    """Loss and gradients of the explicit passes, with one worker that holds the whole batch.

    Args:
      params: the parameters at which to differentiate.
      image: [N,H,W,C], or tokens [N,T].
      label: int [N], or the next tokens [N,T].
      dtype: the type in which everything is computed: float64, or float32 as in training.
    """
    network, stats = contestant.network, start(contestant).stats

    @jax.jit
    def passes(params, stats, batch):
        ctx = Context(key=jax.random.key(0), workers=jax.numpy.arange(1))
        found = forward_and_backward(network, params, stats, batch, ctx, label.size)
        return found.loss, found.grads

    with jax.enable_x64(dtype == np.float64):
        params, stats, image = as_dtype((params, stats, image), dtype)
        loss, grads = passes(params, stats, {"input": image[None], "target": label[None]})
    return float(loss), jax.device_get(grads)


def as_dtype(tree: Any, dtype: type[np.floating]) -> Any:
    """The floating-point arrays of a pytree as NumPy arrays of `dtype`."""
    return jax.tree.map(lambda leaf: np.asarray(leaf, dtype if np.asarray(leaf).dtype.kind == "f" else None), tree)


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
