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
from ..models.fault import Fault, inactive_fault, struck_of, words_of
from ..models.isolation import fence
from ..seam.leaves import Leaf, Role
from ..seam.measure import Evaluation
from ..seam.program import Extras, Program
from ..seam.report import StepReport
from ..seam.reporting import report
from ..seam.state_spec import StateSpec
from ..seam.trees import Batch, State
from . import recovered_gradient, step_checks
from .instrument import Instrumented, instrument
from .recovered_gradient import Recovered, first_moments, recovered, reductions_of_gradients
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
    steps = Steps(training, initial, program.telling(reductions), reductions)
    meshes = [mesh for mesh in program.meshes if isinstance(mesh, Mesh)]
    of_gradients = recovered_gradient.REPORTED if first_moments(steps.leaves) else frozenset()
    steps.rules  # noqa: B018  # raises where they are asked for and there are none
    return Program(
        state=steps.state(),
        steps_per_epoch=training.steps_per_epoch,
        devices=max((mesh.devices.size for mesh in meshes), default=1),
        measure=lambda: training.metric,
        data=lambda: steps.data,
        init=steps.host,
        place=steps.place,
        batch=steps.batch,
        step=steps.step,
        faulty_step=steps.faulty_step,
        evaluate=steps.evaluate,
        extras=Extras(
            reports=step_checks.REPORTED | of_gradients,
            own_step=lambda: steps.own_step,
            lower=lambda state, examples: steps.reference.lower(jax.tree.leaves(state), examples),
        ),
    )


@dataclasses.dataclass(frozen=True, eq=False)
class Steps:
    """The steps of a user's training.

    Attributes:
      training: the user's.
      initial: its initial state.
      program: its step, with the sites that are to be supported, telling what is to be reported.
      reductions: what every step reports.
    """

    training: Training
    initial: Any
    program: Instrumented
    reductions: frozenset[str]

    @functools.cached_property
    def given(self) -> list[Any]:
        """The arrays of the initial state."""
        return self.program.traced.state.arrays(self.initial)

    @property
    def kinds(self) -> list[Any]:
        """Shapes and dtypes of the arrays of the state."""
        return self.program.traced.jaxpr.in_avals[: len(self.program.traced.names)]

    def tree(self, arrays: Sequence[Any]) -> State:
        """The state of arrays in their order."""
        return jax.tree.unflatten(jax.tree.structure(self.program.traced.arrays), arrays)

    @functools.cached_property
    def leaves(self) -> tuple[Leaf, ...]:
        """Names and roles of the arrays."""
        names, sites = self.program.traced.names, self.program.all_sites.values()
        read = {site.layer.partition("#")[0] for site in sites if site.parameter is not None}
        return state_leaves(names, self.given, self.initial, read & set(names), self.training.roles)

    @functools.cached_property
    def learned(self) -> list[int]:
        """Places of the parameters."""
        return [place for place, leaf in enumerate(self.leaves) if leaf.role == Role.PARAMETER]

    def state(self) -> StateSpec:
        """What the state consists of."""
        return StateSpec(
            self.tree([jax.ShapeDtypeStruct(kind.shape, kind.dtype) for kind in self.kinds]),
            self.leaves,
            gradients=tuple(f"update/{self.leaves[place].name}" for place in self.learned),
        )

    @functools.cached_property
    def rules(self) -> list[Recovered]:
        """How gradients follow from the optimizer's moments, where they are to be reported."""
        if not self.reductions & recovered_gradient.REPORTED:
            return []

        def plainly(*arrays: Any) -> list[Any]:
            return list(self.program.flat(None, *arrays, *self.batch(0, 0))[0][: len(self.leaves)])

        return recovered(self.leaves, jax.tree.leaves(self.place(self.host())), plainly)

    def _stepped(self, words: jax.Array | None, arrays: list[Any], batch: list[Any]) -> tuple[list[Any], StepReport]:
        traced, count = self.program.traced, len(self.leaves)
        results, told = self.program.flat(words, *arrays, *batch)
        results = list(fence(*results))
        new = results[:count]
        metrics = jax.tree.unflatten(traced.metrics, results[count:])
        loss, metric = loss_and_metric(metrics, self.training.metric.name, "the step's metrics")
        # A user's step does not say its gradients; what it adds to the parameters is looked at in their place.
        added = [new[place] - arrays[place] for place in self.learned]
        found = reductions_of_gradients(self.reductions, self.rules, arrays, new) | self.program.named(told)
        loss, metric = jnp.asarray(loss, jnp.float32), jnp.asarray(metric, jnp.float32)
        struck = None if told.words is None else struck_of(told.words)
        return new, report(loss, metric, added, new, struck, reductions=found)

    @functools.cached_property
    def reference(self) -> Any:
        """The compiled step without support of faults, of the arrays of a state, which it consumes, and a batch."""
        return jax.jit(functools.partial(self._stepped, None), donate_argnums=0)

    @functools.cached_property
    def _struck(self) -> Any:
        return jax.jit(self._stepped)

    @functools.cached_property
    def _checked(self) -> set[int]:
        """Sizes of faults whose executable has been compared with the reference."""
        return set()

    def step(self, state: State, batch: Batch, epoch: int, number: int) -> tuple[State, StepReport]:
        """See `Program`."""
        new, told = self.reference(jax.tree.leaves(state), batch)
        return self.tree(new), told

    def faulty_step(
        self, state: State, batch: Batch, epoch: int, number: int, fault: Fault
    ) -> tuple[State, StepReport]:
        """See `Program`; raises Untrustworthy where the step with an inactive fault has other bits."""
        arrays, size = jax.tree.leaves(state), len(fault.index)
        if size not in self._checked:
            clean, _ = self.reference([jnp.copy(one) for one in arrays], batch)
            silent, _ = self._struck(words_of(inactive_fault(size)), arrays, batch)
            pairs = zip(self.program.traced.names, jax.device_get(clean), jax.device_get(silent), strict=True)
            if odd := [name for name, a, b in pairs if a.tobytes() != b.tobytes()]:
                raise Untrustworthy(
                    f"the step with an inactive fault differs from the reference in {len(odd)} of "
                    f"{len(arrays)} leaves, {odd[0]!r} the first"
                )
            self._checked.add(size)
        new, told = self._struck(words_of(fault), arrays, batch)
        return self.tree(new), told

    def place(self, state: State) -> State:
        """See `Program`."""
        pairs = zip(jax.tree.leaves(state), _shardings(self.given, self.program), strict=True)
        return self.tree([jax.device_put(leaf, sharding) for leaf, sharding in pairs])

    def host(self) -> State:
        """The initial state on the host."""
        pairs = zip(jax.device_get(self.given), self.kinds, strict=True)
        return self.tree([np.array(leaf, kind.dtype) for leaf, kind in pairs])

    def batch(self, epoch: int, number: int) -> Batch:
        """The arrays of a batch."""
        return self.program.traced.batch.arrays(self.training.batch(epoch, number))

    @functools.cached_property  # twins begin alike
    def own_step(self) -> Mapping[str, Any]:
        """See `Extras`."""
        return distance(self.training, self.program, lambda: self.place(self.host()), self.reference, self.batch)

    def evaluate(self, state: State) -> Evaluation:
        """See `Program`."""
        found = self.training.evaluate(self.program.traced.state.joined(jax.tree.leaves(state)))
        metrics = loss_and_metric(found, self.training.metric.name, "what evaluate returns")
        return Evaluation(*(float(one) for one in metrics))

    @functools.cached_property
    def data(self) -> str:
        """See `Program`.  A batch is the user's to make: its first and last ones stand for the data."""
        epochs, steps = self.training.epochs, self.training.steps_per_epoch
        first = [(0, 0), (0, min(1, steps - 1)), (epochs - 1, steps - 1)]
        parts = [np.asarray(leaf).tobytes() for at in first for leaf in self.batch(*at)]
        parts += [leaf.tobytes() for leaf in jax.tree.leaves(self.host())]
        return hashlib.sha256(b"".join(parts)).hexdigest()


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
