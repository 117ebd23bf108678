"""A user's training with its initial state, traced, and the steps that are made of it."""

import dataclasses
import functools
import hashlib
import math
import pathlib
from collections.abc import Callable, Collection, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from ..machine.errors import InputError, did_you_mean
from ..models.fault import Operand, as_one
from ..models.isolation import fence
from ..models.observe.dr_dna import FEWEST, NAMES, SAMPLES, Profile
from ..models.observe.reductions import RESULTS
from ..models.overwrite import struck_of
from ..seam.leaves import Batch, Role, State
from ..seam.measure import Evaluation, Measure
from ..seam.report import StepReport
from ..seam.reporting import report
from ..seam.state_spec import StateSpec
from ..seam.trees import leaf_names
from ..seam.watched_activations import returned, scored
from . import recovered_gradient, step_looks, step_updates
from .example_axes import layers_of
from .instrument import Instrumented, instrument
from .jax_internals import BESIDE_THE_TRAINING, PRODUCTS
from .leaf_flow import computed_from
from .own_distance import COMPARED, distance, own_step
from .recovered_gradient import NO_MOMENT, Recovered, reductions_of_gradients
from .state_roles import state_leaves
from .step_forms import Modules, loss_and_metric, one_form, taken_by
from .step_looks import Layers
from .step_mistakes import called, first_line
from .step_updates import ADAM_STEPS, reductions_of_updates
from .traced_step import flattened
from .training import Training


@dataclasses.dataclass(frozen=True, eq=False)
class TracedTraining:
    """A training with its initial state, traced.

    Attributes:
      training: what the user's function returned.
      initial: its initial state.
      program: its step, with the sites that are supported.
      said: what is to be said of how its step is read.
    """

    training: Training
    initial: Any
    program: Instrumented
    said: tuple[str, ...] = ()

    @functools.cached_property
    def given(self) -> list[Any]:
        """The arrays of the initial state."""
        return self.program.traced.state.arrays(self.initial)

    @functools.cached_property
    def state(self) -> StateSpec:
        """What the state consists of."""
        traced, sites = self.program.traced, self.program.all_sites.values()
        read = {site.leaf for site in sites}
        names = traced.names

        def flow(without: Collection[str]) -> dict[str, set[str]]:
            found = zip(names, computed_from(traced.jaxpr, without), strict=False)
            return {name: {names[place] for place in given if place < len(names)} for name, given in found}

        # What an optimizer does is element-wise, and no other network comes between; unless it multiplies matrices.
        flows = flow(PRODUCTS), flow(())
        leaves = state_leaves(names, self.given, self.initial, read & set(names), self.training.roles, flows)
        abstract = [jax.ShapeDtypeStruct(kind.shape, kind.dtype) for kind in traced.jaxpr.in_avals[: len(leaves)]]
        # A user's step does not say its gradients; what it adds to the parameters is looked at in their place.
        added = tuple(f"update/{leaf.name}" for leaf in leaves if leaf.role == Role.PARAMETER)
        return StateSpec(jax.tree.unflatten(jax.tree.structure(traced.arrays), abstract), leaves, added)

    def tree(self, arrays: Sequence[Any]) -> State:
        """A state, of its arrays."""
        return jax.tree.unflatten(jax.tree.structure(self.state.abstract), arrays)

    def init(self) -> State:
        """The initial state on the host."""
        kinds = jax.tree.leaves(self.state.abstract)
        return self.tree(
            [np.array(leaf, kind.dtype) for leaf, kind in zip(jax.device_get(self.given), kinds, strict=True)]
        )

    @functools.cached_property
    def layers(self) -> Layers:
        """The layers whose activations can be sampled; raises InputError where there are none."""
        return layers_of(self.program, self.training.step, [*self.given, *self.batch(0, 0)])

    @functools.cached_property
    def activations(self) -> dict[str, int]:
        """Elements of one example's activation by layer."""
        shapes = {name: self.program.all_sites[name].operands[Operand.OUTPUT].shape for name in self.layers.axes}
        return {name: math.prod(shape) // self.layers.examples for name, shape in shapes.items()}

    @property
    def everywhere(self) -> NamedSharding | None:
        """On all devices of the step's mesh, if it has one."""
        meshes = [mesh for mesh in self.program.meshes if isinstance(mesh, Mesh)]
        return NamedSharding(meshes[0], PartitionSpec()) if meshes else None

    def load(self, path: pathlib.Path) -> State:
        """The state on the host that a checkpoint of the user's has.

        Raises:
          InputError: it cannot be loaded, or has not the leaves, shapes and dtypes of the initial state.
        """
        asked, load = f"load({str(path)!r})", self.training.load
        assert load is not None
        given = called(asked, lambda: load(path))
        try:
            arrays = self.program.traced.state.arrays(given)
        except InputError as error:
            raise InputError(f"{asked}: {error}") from None
        kinds, found = jax.tree.leaves(self.state.abstract), []
        for name, leaf, kind, first in zip(self.program.traced.names, arrays, kinds, self.given, strict=True):
            # Where `init` gives more bits than JAX takes, the loader may do so, too.
            dtype, usual = (getattr(one, "dtype", None) or np.result_type(one) for one in (leaf, first))
            if np.shape(leaf) != kind.shape or dtype not in (kind.dtype, usual):
                what, expected = f"{dtype}{list(np.shape(leaf))}", f"{kind.dtype}{list(kind.shape)}"
                raise InputError(f"{asked}: {name!r} is {what}; init gives {expected}, and load has to give the same")
            found.append(np.array(jax.device_get(leaf), kind.dtype))
        return self.tree(found)

    def place(self, state: State) -> State:
        """A state on devices: as the user's initial state has each leaf, or on all devices of the step's mesh."""
        everywhere = self.everywhere
        own = [getattr(leaf, "sharding", None) for leaf in self.given]
        shardings = [sharding if isinstance(sharding, NamedSharding) else everywhere for sharding in own]
        return self.tree([jax.device_put(*pair) for pair in zip(jax.tree.leaves(state), shardings, strict=True)])

    def batch(self, epoch: int, step: int) -> Batch:
        """The arrays of a batch."""
        asked = f"batch({epoch}, {step})"
        given = called(asked, lambda: self.training.batch(epoch, step))
        try:
            return self.program.traced.batch_of(given)
        except InputError as error:
            raise InputError(f"{asked}: {error}") from None

    def data(self) -> str:
        """Hash of the data.  A batch is the user's to make: its first and last ones stand for the data."""
        epochs, steps = self.training.epochs, self.training.steps_per_epoch
        first = [(0, 0), (0, min(1, steps - 1)), (epochs - 1, steps - 1)]
        leaves = [*(leaf for at in first for leaf in self.batch(*at)), *jax.tree.leaves(self.init())]
        return hashlib.sha256(b"".join(np.asarray(leaf).tobytes() for leaf in leaves)).hexdigest()

    def evaluate(self, trained: State) -> Evaluation:
        """Loss and metric of a state, as the user evaluates it."""
        state = self.program.traced.state.joined(jax.tree.leaves(trained))
        found = called("evaluate(state)", lambda: self.training.evaluate(state))
        return Evaluation(*map(float, loss_and_metric(found, self.training.metric.name, "what evaluate returns")))

    def watchable(self, profile: Profile) -> Profile:
        """A profile, on devices; raises InputError where the step cannot watch activations after it."""
        if profile.mitigate:
            raise InputError("the activations of a step of one's own are watched, not clamped; expected mitigate=False")
        if odd := [layer for layer in profile.layers if layer not in self.layers.axes]:
            raise InputError(f"layer {odd[0]!r} of the profile{did_you_mean(odd[0], self.layers.axes)}")
        return jax.device_put(profile, self.everywhere)

    def _looking(self, reductions: frozenset[str], profile: Profile | None) -> tuple[Instrumented, jax.Array | None]:
        """The step that tells what is asked for, and where it samples activations, int32 [all sites,PLACES]."""
        if profile is None:
            return self.program.telling(reductions), None
        axes = {layer: self.layers.axes[layer] for layer in profile.layers}
        numbers = np.array([list(self.program.all_sites).index(layer) for layer in profile.layers])
        program = self.program.telling(reductions, self.layers._replace(axes=axes))
        positions = jnp.asarray(profile.positions, jnp.int32)
        return program, jnp.zeros((len(program.all_sites), positions.shape[1]), jnp.int32).at[numbers].set(positions)

    def stepped(
        self,
        reductions: frozenset[str],
        rules: Sequence[Recovered],
        words: jax.Array | tuple[jax.Array, ...] | None,
        arrays: list[Any],
        batch: list[Any],
        profile: Profile | None = None,
    ) -> tuple[list[Any], StepReport]:
        """The arrays of the new state, and the report.

        Args:
          reductions: what is reported.
          rules: by which gradients are recovered, where they are asked for.
          words: of a fault, or of several; None without fault support.
          profile: by which activations are watched.
        """
        program, places = self._looking(reductions, profile)
        results, told = program.flat(words, *arrays, *batch, places=places)
        results = list(fence(*results))
        new = results[: len(arrays)]
        metrics = jax.tree.unflatten(self.program.traced.metrics, results[len(arrays) :])
        loss, value = loss_and_metric(metrics, self.training.metric.name, "the step's metrics")
        added = [new[place] - arrays[place] for place in self.state.places(Role.PARAMETER)]
        tensors: dict[str, Any] = (
            {} if profile is None else {SAMPLES: step_looks.samples(told.seen, program.all_sites, profile.layers)}
        )
        if told.results:
            tensors[RESULTS] = dict(zip(program.all_sites, told.results, strict=True))
        found = reductions_of_gradients(reductions, rules, arrays, new) | step_looks.named(told.seen, program.all_sites)
        found |= reductions_of_updates(reductions, self.state.leaves, arrays, new) | scored(profile, tensors, None)
        loss, value = jnp.asarray(loss, jnp.float32), jnp.asarray(value, jnp.float32)
        struck = as_one(tuple(map(struck_of, told.words))) if told.words else None
        return new, report(loss, value, added, new, struck, returned(profile, tensors), found)

    def unreported(self, followed: Callable[[], list[Recovered]], reduction: str) -> str:
        """Why steps cannot report a reduction; empty where they can.

        Args:
          followed: by which rules gradients are recovered.
        """
        try:
            if reduction.endswith("/local_gradients") and self.devices > 1:
                return f"its step runs on {self.devices} devices, and sums up their gradients within it"
            if reduction in recovered_gradient.REPORTED:
                return "" if followed() else NO_MOMENT
            if reduction in NAMES:
                seen = self.layers.examples * self.training.steps_per_epoch
                few = f"an epoch has {seen} example(s), and a profile of activations is made of {FEWEST} at least"
                return few if seen < FEWEST else ""
        except InputError as error:
            return str(error)
        if reduction in step_updates.REPORTED:
            missing = reduction.endswith(ADAM_STEPS) and not step_updates.moments(self.state.leaves)
            return step_updates.NO_MOMENTS if missing else ""
        products = map(step_looks.is_activation, self.program.all_sites.values())
        if reduction == step_looks.ACTIVATIONS and not any(products):
            return "its forward pass has no product of floating-point numbers"
        return "" if reduction in step_looks.REPORTED else "its step is not written layer by layer"

    def remark(self, reduction: str) -> str:
        """What is to be known of a reduction; empty where nothing is."""
        if reduction.endswith(ADAM_STEPS):
            return step_updates.UNKNOWN_RATE
        return recovered_gradient.AS_GIVEN if reduction == "norm/parameter_gradients" else ""

    @property
    def devices(self) -> int:
        """How many the step runs on."""
        return max((mesh.devices.size for mesh in self.program.meshes if isinstance(mesh, Mesh)), default=1)

    def distance(self, reference: Any) -> dict[str, Any]:
        """How far the reference is from the user's own step, see `own_distance.distance`."""
        traced, steps = self.program.traced, min(COMPARED, self.training.steps_per_epoch)

        def start(arrays: Sequence[Any] | None) -> list[Any]:
            return jax.tree.leaves(self.place(self.init() if arrays is None else self.tree(arrays)))

        batches = [self.batch(0, number) for number in range(steps)]
        own = own_step(traced, self.training.step)
        kinds = {one.dtype for site in self.program.all_sites.values() for one in site.operands.values()}
        digits = min(
            int(jnp.finfo(kind).nmant) for kind in {*kinds, jnp.dtype("float32")} if jnp.issubdtype(kind, jnp.floating)
        )
        return distance(traced.names, start, lambda arrays, batch: reference(arrays, batch)[0], own, batches, digits)


def traced_training(training: Training) -> TracedTraining:
    """A training with its initial state, traced; raises InputError where the step cannot be used."""
    _check_settings(training)
    state = called("init()", training.init)
    batch = called("batch(0, 0)", lambda: training.batch(0, 0))
    last = training.epochs - 1, training.steps_per_epoch - 1
    called(f"batch{last}", lambda: training.batch(*last))  # after which the first is still what it was
    _check_asked_again("batch(0, 0)", batch, called("batch(0, 0)", lambda: training.batch(0, 0)))
    training, state, said = in_one_form(training, state, batch)
    _check_asked_again("init()", state, called("init()", training.init))
    program = instrument(training.step, state, batch, training.sites, training.primitives, training.turns)
    traced = program.traced
    shapes = jax.tree.unflatten(traced.metrics, traced.jaxpr.out_avals[len(traced.names) :])
    jax.eval_shape(lambda told: loss_and_metric(told, training.metric.name, "the step's metrics"), shapes)
    return TracedTraining(training, state, program, tuple(said))


def in_one_form(training: Training, state: Any, batch: Any) -> tuple[Training, Any, dict[str, None]]:
    """The training with a step `(state, batch) -> (state, metrics)`, and its initial state as the step takes it.

    Modules of Flax NNX become their variables.  Metrics that a step does not return are those of `evaluate`; what is
    to be said of that is there when the step has been traced.
    """
    said: dict[str, None] = {}
    step, arguments = training.step, training.arguments
    if modules := Modules.among(state):
        init, evaluate, predict, load = training.init, training.evaluate, training.predict, training.load
        training = dataclasses.replace(
            training,
            init=lambda: modules.arrays(init()),
            evaluate=lambda arrays: evaluate(modules.joined(arrays)),
            predict=predict and (lambda arrays, batch: predict(modules.joined(arrays), batch)),
            load=load and (lambda path: modules.arrays(load(path))),
        )
        step, arguments = modules.changed_by(step, arguments or taken_by(step, state, batch)), None
        state = modules.arrays(state)
    paired = one_form(step, state, batch, arguments)

    def standard(state: Any, batch: Any) -> tuple[Any, Any]:
        results = paired(state, batch)
        if not isinstance(results, tuple) or len(results) != 2 or results[1] is not None:
            return results
        said["the step returns no metrics: those of evaluate, of the new state, stand for them"] = None
        try:
            return results[0], _evaluated_beside(training, results[0])
        except Exception as error:
            raise InputError(
                "the step returns its new state alone, and evaluate, which would give its metrics, cannot be traced "
                f"({type(error).__name__}: {first_line(error)}): return them, as in "
                '`lambda state, batch: (step(state, batch), {"loss": ...})`'
            ) from error

    return dataclasses.replace(training, step=standard, arguments=None), state, said


def _evaluated_beside(training: Training, state: Any) -> dict[str, Any]:
    """The loss and the metric of a state, in a call without sites: a fault in an evaluation harms no training."""
    arrays, form = flattened(state)

    def beside_the_training(arrays: Any) -> dict[str, Any]:
        found = training.evaluate(form.joined(jax.tree.leaves(arrays)))
        loss, metric = loss_and_metric(found, training.metric.name, "what evaluate returns")
        return {"loss": loss, training.metric.name: metric}

    beside_the_training.__name__ = BESIDE_THE_TRAINING
    return jax.jit(beside_the_training)(arrays)


def _check_settings(training: Training) -> None:
    """See that what a user gave are numbers, functions and a measure; raises InputError."""
    if not isinstance(training, Training):
        raise InputError(f"it returns a {type(training).__name__}; expected a Training")
    for name in ("steps_per_epoch", "epochs"):
        value = getattr(training, name)
        if not isinstance(value, (int, np.integer)) or isinstance(value, bool):
            raise InputError(f"{name} is {value!r}; expected a whole number")
        if value < 1:
            raise InputError(f"{name} is {value}; expected 1 at least")
    for name in ("init", "step", "batch", "evaluate"):
        if not callable(value := getattr(training, name)):
            raise InputError(f"{name} is {value!r:.60}; expected a function")
    if training.load is not None and not callable(training.load):
        raise InputError(f"load is {training.load!r:.60}; expected a function of a path, or None")
    if (training.predict is None) != (training.tests is None):
        there, lacking = ("predict", "tests") if training.tests is None else ("tests", "predict")
        raise InputError(f"{there} is given without {lacking}; pvf judges by both, or by evaluate alone")
    if not isinstance(training.turns, int) or training.turns < 1:
        raise InputError(f"turns is {training.turns!r:.60}; expected a whole number from 1")
    if not isinstance(training.metric, Measure):
        example = 'Measure("loss", "lower", chance=2.3, tolerance=0.1)'
        raise InputError(f"metric is {training.metric!r:.60}; expected a Measure, such as {example}")


def _check_asked_again(asked: str, given: Any, again: Any) -> None:
    """See that what a function gives is the same when it is asked again; raises InputError."""
    arrays, form = flattened(given)
    names, ones, others = leaf_names(arrays), jax.tree.leaves(arrays), form.arrays(again)
    for name, one, other in zip(names, ones, others, strict=True):
        a, b = np.asarray(one), np.asarray(other)
        if (a.shape, a.dtype, a.tobytes()) != (b.shape, b.dtype, b.tobytes()):
            where = f"in {name!r}" if name else "in its one array"
            raise InputError(
                f"{asked} is another one when it is asked for again: it differs {where}; seed what is random, such as "
                "by np.random.default_rng([seed, epoch, step])"
            )
