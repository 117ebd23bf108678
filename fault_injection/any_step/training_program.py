"""The program of a user's training: its golden runs are made with the reference."""

import dataclasses
import functools
import hashlib
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from ..machine.errors import InputError, Untrustworthy, did_you_mean
from ..models.fault import Fault, inactive_fault, struck_of, words_of
from ..models.isolation import fence
from ..seam.leaves import Role
from ..seam.measure import Evaluation
from ..seam.program import Program
from ..seam.report import StepReport, report
from ..seam.trees import Batch, State
from . import recovered_gradient, step_checks
from .instrument import Instrumented, instrument
from .recovered_gradient import first_moments, recovered, reductions_of_gradients
from .state_roles import state_leaves
from .training import Training

COMPARED = 3  # steps over which the reference is compared with the user's own


def training_program(
    training: Training, initial: Any, program: Instrumented, reductions: frozenset[str] = frozenset()
) -> Program:
    """What runs of a user's training need.

    Before the first fault strikes, the executable with fault support is compared with the reference over that step,
    bit by bit.

    Args:
      initial: the user's initial state.
      program: the user's step, with the sites that are to be supported.
      reductions: what every step reports of gradients (`recovered_gradient.REPORTED`) and products
        (`step_checks.REPORTED`).

    Raises:
      InputError: gradients are to be reported, and cannot be recovered from the optimizer's moments.
    """
    program = program.telling(reductions)
    traced, measure = program.traced, training.metric
    count = len(traced.names)
    structure = jax.tree.structure(traced.arrays)
    kinds = traced.jaxpr.in_avals[:count]
    given = traced.state.arrays(initial)
    read = {site.layer.partition("#")[0] for site in program.all_sites.values() if site.parameter is not None}
    leaves = state_leaves(traced.names, given, initial, read & set(traced.names), training.roles)
    learned = [place for place, leaf in enumerate(leaves) if leaf.role == Role.PARAMETER]
    shardings = _shardings(given, program)

    def measured(metrics: Any, of: str) -> tuple[Any, Any]:
        return loss_and_metric(metrics, measure.name, of)

    def stepped(words: jax.Array | None, arrays: list[Any], batch: list[Any]) -> tuple[list[Any], StepReport]:
        results, told = program.flat(words, *arrays, *batch)
        results = list(fence(*results))
        new = results[:count]
        loss, metric = measured(jax.tree.unflatten(traced.metrics, results[count:]), "the step's metrics")
        # A user's step does not say its gradients; what it adds to the parameters is looked at in their place.
        added = [new[place] - arrays[place] for place in learned]
        found = reductions_of_gradients(reductions, rules, arrays, new) | program.named(told)
        loss, metric = jnp.asarray(loss, jnp.float32), jnp.asarray(metric, jnp.float32)
        struck = None if told.words is None else struck_of(told.words)
        return new, report(loss, metric, added, new, struck, reductions=found)

    reference = jax.jit(functools.partial(stepped, None), donate_argnums=0)
    struck = jax.jit(stepped)
    checked: list[int] = []  # sizes of faults whose executable has been compared

    def step(state: State, batch: Batch, epoch: int, number: int) -> tuple[State, StepReport]:
        new, told = reference(jax.tree.leaves(state), batch)
        return jax.tree.unflatten(structure, new), told

    def faulty_step(state: State, batch: Batch, epoch: int, number: int, fault: Fault) -> tuple[State, StepReport]:
        arrays, size = jax.tree.leaves(state), len(fault.index)
        if size not in checked:
            clean, _ = reference([jnp.copy(one) for one in arrays], batch)
            silent, _ = struck(words_of(inactive_fault(size)), arrays, batch)
            pairs = zip(traced.names, jax.device_get(clean), jax.device_get(silent), strict=True)
            if odd := [name for name, a, b in pairs if a.tobytes() != b.tobytes()]:
                raise Untrustworthy(
                    f"the step with an inactive fault differs from the reference in {len(odd)} of {count} leaves, "
                    f"{odd[0]!r} the first"
                )
            checked.append(size)
        new, told = struck(words_of(fault), arrays, batch)
        return jax.tree.unflatten(structure, new), told

    def place(state: State) -> State:
        placed = [
            jax.device_put(leaf) if sharding is None else jax.device_put(leaf, sharding)
            for leaf, sharding in zip(jax.tree.leaves(state), shardings, strict=True)
        ]
        return jax.tree.unflatten(structure, placed)

    def host() -> State:
        return jax.tree.unflatten(
            structure, [np.array(leaf, kind.dtype) for leaf, kind in zip(jax.device_get(given), kinds, strict=True)]
        )

    def batch(epoch: int, number: int) -> Batch:
        return traced.batch.arrays(training.batch(epoch, number))

    def plainly(*arrays: Any) -> list[Any]:
        return list(program.flat(None, *arrays, *batch(0, 0))[0][:count])

    of_gradients = reductions & recovered_gradient.REPORTED
    rules = recovered(leaves, jax.tree.leaves(place(host())), plainly) if of_gradients else []

    @functools.cache  # twins begin alike
    def own_step() -> Mapping[str, Any]:
        return distance(training, program, lambda: place(host()), reference, batch)

    def evaluate(state: State) -> Evaluation:
        found = training.evaluate(traced.state.joined(jax.tree.leaves(state)))
        return Evaluation(*(float(one) for one in measured(found, "what evaluate returns")))

    @functools.cache
    def data() -> str:
        # A batch is the user's to make: its first and last ones stand for the data.
        first = [(0, 0), (0, min(1, training.steps_per_epoch - 1)), (training.epochs - 1, training.steps_per_epoch - 1)]
        parts = [np.asarray(leaf).tobytes() for at in first for leaf in batch(*at)]
        return hashlib.sha256(b"".join([*parts, *(leaf.tobytes() for leaf in jax.tree.leaves(host()))])).hexdigest()

    devices = max((mesh.devices.size for mesh in program.meshes if isinstance(mesh, Mesh)), default=1)
    return Program(
        steps_per_epoch=training.steps_per_epoch,
        abstract=jax.tree.unflatten(structure, [jax.ShapeDtypeStruct(kind.shape, kind.dtype) for kind in kinds]),
        leaves=leaves,
        gradients=tuple(f"update/{leaves[place].name}" for place in learned),
        measure=lambda: measure,
        data=data,
        devices=devices,
        init=host,
        place=place,
        batch=batch,
        step=step,
        faulty_step=faulty_step,
        evaluate=evaluate,
        own_step=own_step,
        reports=step_checks.REPORTED | (recovered_gradient.REPORTED if first_moments(leaves) else frozenset()),
        lower=lambda state, examples: reference.lower(jax.tree.leaves(state), examples),
    )


def loss_and_metric(metrics: Any, name: str, of: str) -> tuple[Any, Any]:
    """The loss and the metric by which runs are compared.

    >>> loss_and_metric({"loss": 0.5, "accuracy": 0.75}, "accuracy", "the metrics")
    (0.5, 0.75)

    Raises:
      InputError: they are not there.
    """
    if isinstance(metrics, Mapping):
        for wanted in ("loss", name):
            if wanted not in metrics:
                raise InputError(f"{of} have no {wanted!r}{did_you_mean(wanted, map(str, metrics))}")
        return metrics["loss"], metrics[name]
    if name == "loss" and len(jax.tree.leaves(metrics)) == 1:
        return jax.tree.leaves(metrics)[0], jax.tree.leaves(metrics)[0]
    raise InputError(f"{of} are a {type(metrics).__name__}; expected a mapping with 'loss' and {name!r}")


def check_metrics(program: Instrumented, name: str) -> None:
    """See that the step's metrics have a loss and the metric by which runs are compared; raises InputError."""
    shapes = jax.tree.unflatten(program.traced.metrics, program.traced.jaxpr.out_avals[len(program.traced.names) :])
    for one in loss_and_metric(shapes, name, "the step's metrics"):
        if one.shape != ():
            found = f"the step's metrics have a loss or {name} of shape {list(one.shape)}"
            raise InputError(f"{found}; expected numbers")


def distance(training: Training, program: Instrumented, start: Any, reference: Any, batch: Any) -> dict[str, Any]:
    """How far the reference, and a step with an inactive fault, are from the user's own step after a few steps.

    Both have the same bits, which is seen to before a fault strikes: one distance describes both.
    """
    traced, steps = program.traced, min(COMPARED, training.steps_per_epoch)
    ours = jax.tree.leaves(start())
    own = traced.state.joined(jax.tree.leaves(start()))
    own_step = jax.jit(training.step) if _plain(own) else training.step
    for number in range(steps):
        ours, _ = reference(ours, batch(0, number))
        own, _ = own_step(own, training.batch(0, number))
    pairs = list(zip(jax.device_get(ours), jax.device_get(traced.state.arrays(own)), strict=True))
    differing = [(a, b) for a, b in pairs if np.asarray(a).tobytes() != np.asarray(b).tobytes()]
    worst = max((_relative(a, b) for a, b in differing), default=0.0)
    if differing:
        sentence = (
            f"golden runs are made with barriers in the step, which change its rounding: after {steps} steps, "
            f"{len(differing)} of {len(pairs)} leaves differ by at most {worst:.1e} of their largest value"
        )
    else:
        sentence = f"golden runs are made with barriers in the step: over {steps} steps, they change no bit of it"
    return {
        "sentence": sentence,
        "steps": steps,
        "leaves": len(pairs),
        "leaves_that_differ": len(differing),
        "largest_relative_difference": worst,
    }


def _plain(state: Any) -> bool:
    """Whether all leaves are arrays, so that `jax.jit` takes them."""
    return all(isinstance(leaf, (jax.Array, np.ndarray)) for leaf in jax.tree.leaves(state))


def _relative(one: Any, other: Any) -> float:
    a, b = (np.asarray(each, np.float64) for each in (one, other))
    return float(np.max(np.abs(a - b)) / max(np.max(np.abs(b)), np.finfo(np.float32).tiny))


def _shardings(leaves: list[Any], program: Instrumented) -> list[Any]:
    """Where each leaf of the state is: as the user's initial state has it, or on all devices of the step's mesh."""
    meshes = [mesh for mesh in program.meshes if isinstance(mesh, Mesh)]
    everywhere = NamedSharding(meshes[0], PartitionSpec()) if meshes else None

    def of(leaf: Any) -> Any:
        sharding = getattr(leaf, "sharding", None)
        return sharding if isinstance(sharding, NamedSharding) else everywhere

    return [of(leaf) for leaf in leaves]


@dataclasses.dataclass(frozen=True)
class Started:
    """A training with its initial state, traced.

    Attributes:
      training: what the user's function returned.
      state: its initial state.
      program: its step.
    """

    training: Training
    state: Any
    program: Instrumented


def started(training: Training) -> Started:
    """A training with its initial state, traced; raises InputError where the step cannot be used."""
    for name, value in (("steps_per_epoch", training.steps_per_epoch), ("epochs", training.epochs)):
        if value < 1:
            raise InputError(f"{name} is {value}; expected 1 at least")
    state = _called("init()", training.init)
    batch = _called("batch(0, 0)", lambda: training.batch(0, 0))
    program = instrument(training.step, state, batch, training.sites, training.primitives, training.turns)
    check_metrics(program, training.metric.name)
    return Started(training, state, program)


def _called(what: str, call: Callable[[], Any]) -> Any:
    try:
        return call()
    except Exception as error:
        reason = str(error).partition("\n")[0][:300]
        raise InputError(f"{what} raises {type(error).__name__}: {reason}") from error
