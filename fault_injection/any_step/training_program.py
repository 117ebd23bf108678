"""The program of a user's training: its golden runs are made with the reference."""

import dataclasses
import functools
import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from ..machine.errors import InputError, Untrustworthy, did_you_mean
from ..models.fault import Fault, inactive_fault
from ..models.isolation import fence
from ..models.overwrite import struck_of, words_of
from ..seam.leaves import Batch, Role, State
from ..seam.measure import Evaluation
from ..seam.program import Extras, Program
from ..seam.report import StepReport
from ..seam.reporting import report
from ..seam.state_spec import StateSpec
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

    Args:
      initial: the user's initial state.
      program: the user's step, with the sites that are to be supported.
      reductions: what every step reports of gradients (`recovered_gradient.REPORTED`) and products
        (`step_checks.REPORTED`).

    Raises:
      InputError: gradients are to be reported, and cannot be recovered from the optimizer's moments.
    """
    program = program.telling(reductions)
    traced, state, metric = program.traced, _state(training, initial, program), training.metric.name
    structure, given = jax.tree.structure(state.abstract), traced.state.arrays(initial)
    place = _placing(given, program)

    def host() -> State:
        pairs = zip(jax.device_get(given), jax.tree.leaves(state.abstract), strict=True)
        return jax.tree.unflatten(structure, [np.array(leaf, kind.dtype) for leaf, kind in pairs])

    def batch(epoch: int, number: int) -> Batch:
        return traced.batch.arrays(training.batch(epoch, number))

    def plainly(*arrays: Any) -> list[Any]:
        return list(program.flat(None, *arrays, *batch(0, 0))[0][: len(arrays)])

    of_gradients = reductions & recovered_gradient.REPORTED
    rules = recovered(state.leaves, jax.tree.leaves(place(host())), plainly) if of_gradients else []
    reductions_of = functools.partial(reductions_of_gradients, reductions, rules)
    stepped = functools.partial(_stepped, program, metric, state.places(Role.PARAMETER), reductions_of)
    reference = jax.jit(functools.partial(stepped, None), donate_argnums=0)
    struck = _compared(traced.names, reference, jax.jit(stepped))

    def step(old: State, examples: Batch, epoch: int, number: int) -> tuple[State, StepReport]:
        new, told = reference(jax.tree.leaves(old), examples)
        return jax.tree.unflatten(structure, new), told

    def faulty_step(old: State, examples: Batch, epoch: int, number: int, fault: Fault) -> tuple[State, StepReport]:
        new, told = struck(jax.tree.leaves(old), examples, fault)
        return jax.tree.unflatten(structure, new), told

    def evaluate(trained: State) -> Evaluation:
        found = training.evaluate(traced.state.joined(jax.tree.leaves(trained)))
        return Evaluation(*(float(one) for one in loss_and_metric(found, metric, "what evaluate returns")))

    recoverable = recovered_gradient.REPORTED if first_moments(state.leaves) else frozenset()
    return Program(
        state=state,
        steps_per_epoch=training.steps_per_epoch,
        devices=max((mesh.devices.size for mesh in program.meshes if isinstance(mesh, Mesh)), default=1),
        measure=lambda: training.metric,
        data=functools.cache(lambda: _data(training, batch, host)),
        init=host,
        place=place,
        batch=batch,
        step=step,
        faulty_step=faulty_step,
        evaluate=evaluate,
        extras=Extras(
            reports=step_checks.REPORTED | recoverable,
            own_step=functools.cache(  # once, since twins begin alike
                lambda: distance(training, program, lambda: place(host()), reference, batch)
            ),
            lower=lambda old, examples: reference.lower(jax.tree.leaves(old), examples),
        ),
    )


def _state(training: Training, initial: Any, program: Instrumented) -> StateSpec:
    """What the user's state consists of."""
    traced, sites = program.traced, program.all_sites.values()
    read = {site.layer.partition("#")[0] for site in sites if site.parameter is not None}
    given, names = traced.state.arrays(initial), traced.names
    leaves = state_leaves(names, given, initial, read & set(names), training.roles)
    abstract = [jax.ShapeDtypeStruct(kind.shape, kind.dtype) for kind in traced.jaxpr.in_avals[: len(names)]]
    # A user's step does not say its gradients; what it adds to the parameters is looked at in their place.
    added = tuple(f"update/{leaf.name}" for leaf in leaves if leaf.role == Role.PARAMETER)
    return StateSpec(jax.tree.unflatten(jax.tree.structure(traced.arrays), abstract), leaves, added)


def _stepped(
    program: Instrumented,
    metric: str,
    learned: Sequence[int],
    reductions_of: Callable[[Sequence[Any], Sequence[Any]], dict[str, jax.Array]],
    words: jax.Array | None,
    arrays: list[Any],
    batch: list[Any],
) -> tuple[list[Any], StepReport]:
    """The arrays of the new state, and the report.

    Args:
      metric: name of the user's.
      learned: places of the parameters.
      reductions_of: reductions of gradients, from the arrays before and after the step.
      words: of a fault; None without fault support.
    """
    results, told = program.flat(words, *arrays, *batch)
    results = list(fence(*results))
    new = results[: len(arrays)]
    metrics = jax.tree.unflatten(program.traced.metrics, results[len(arrays) :])
    loss, value = loss_and_metric(metrics, metric, "the step's metrics")
    added = [new[place] - arrays[place] for place in learned]
    found = reductions_of(arrays, new) | program.named(told)
    loss, value = jnp.asarray(loss, jnp.float32), jnp.asarray(value, jnp.float32)
    struck = None if told.words is None else struck_of(told.words)
    return new, report(loss, value, added, new, struck, reductions=found)


def _compared(names: Sequence[str], reference: Any, struck: Any) -> Callable[[list[Any], Batch, Fault], Any]:
    """The step with a fault, of arrays: each of its executables is compared with the reference before its first fault.

    It raises Untrustworthy where an inactive fault changes a bit.
    """
    sizes: set[int] = set()  # of faults: each has its executable

    def step(arrays: list[Any], batch: Batch, fault: Fault) -> Any:
        if (size := len(fault.index)) not in sizes:
            clean, _ = reference([jnp.copy(one) for one in arrays], batch)
            silent, _ = struck(words_of(inactive_fault(size)), arrays, batch)
            pairs = zip(names, jax.device_get(clean), jax.device_get(silent), strict=True)
            if odd := [name for name, a, b in pairs if a.tobytes() != b.tobytes()]:
                raise Untrustworthy(
                    f"the step with an inactive fault differs from the reference in {len(odd)} of {len(names)} leaves, "
                    f"{odd[0]!r} the first"
                )
            sizes.add(size)
        return struck(words_of(fault), arrays, batch)

    return step


def _data(training: Training, batch: Callable[[int, int], Batch], host: Callable[[], State]) -> str:
    """Hash of the data.  A batch is the user's to make: its first and last ones stand for the data."""
    epochs, steps = training.epochs, training.steps_per_epoch
    first = [(0, 0), (0, min(1, steps - 1)), (epochs - 1, steps - 1)]
    parts = [np.asarray(leaf).tobytes() for at in first for leaf in batch(*at)]
    return hashlib.sha256(b"".join([*parts, *(leaf.tobytes() for leaf in jax.tree.leaves(host()))])).hexdigest()


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


def _placing(leaves: list[Any], program: Instrumented) -> Callable[[State], State]:
    """Puts a state on devices: as the user's initial state has each leaf, or on all devices of the step's mesh."""
    meshes = [mesh for mesh in program.meshes if isinstance(mesh, Mesh)]
    everywhere = NamedSharding(meshes[0], PartitionSpec()) if meshes else None
    own = [getattr(leaf, "sharding", None) for leaf in leaves]
    shardings = [sharding if isinstance(sharding, NamedSharding) else everywhere for sharding in own]

    def place(state: State) -> State:
        arrays, structure = jax.tree.flatten(state)
        placed = [jax.device_put(*pair) for pair in zip(arrays, shardings, strict=True)]
        return jax.tree.unflatten(structure, placed)

    return place


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
