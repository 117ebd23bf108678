"""The program of an explicit training: what a run needs of it."""

import dataclasses
import functools
from typing import Any

import jax
import numpy as np

from ..models.fault import Fault
from ..models.layer import Params
from ..models.observe.dr_dna import NAME as ACTIVATIONS
from ..models.observe.dr_dna import Profile
from ..models.observe.reductions import CHOICES
from ..models.observe.reductions import WHOLE as WHOLE_GRADIENTS
from ..seam.measure import Evaluation
from ..seam.program import Extras, ForwardPasses, Program
from ..seam.report import Inference, StepReport
from ..seam.trees import Array, Batch, leaf_names
from . import sparse
from .batch_source import OpenData, read_alike
from .engine import Engine
from .gradient_scale import gradient_scale
from .inference import activation_sizes, evaluating, inferring
from .layout import jitted, layout_of
from .mesh import WHOLE
from .optimizers import Invertible
from .recipe import Recipe
from .start import stages_of, starting
from .state import ExplicitState


def explicit_program(
    recipe: Recipe,
    supported: frozenset[str] | None = None,
    devices: int | None = None,
    reductions: frozenset[str] = frozenset(),
) -> Program:
    """The program of a recipe.

    Args:
      supported: sites that `faulty_step` can strike; None for all.
      devices: how many to use; see `usable_devices`.
      reductions: of `models.observe.reductions.CHOICES`: what every step returns of tensors and products; no bit of
        a run depends on it.

    Raises:
      InputError: the devices of several processes cannot share the workers evenly.
    """
    return Compiled(Engine(layout_of(recipe, devices), supported, reductions)).program()


@dataclasses.dataclass(frozen=True, eq=False)
class Compiled:
    """The functions of an engine, each compiled at its first call; what watches activations shares them.

    Attributes:
      engine: whose step it is.
    """

    engine: Engine

    @property
    def _recipe(self) -> Recipe:
        return self.engine.recipe

    @functools.cached_property
    def _plain(self) -> Any:
        return self.engine.stepping(False, donate_argnums=0)

    @functools.cached_property
    def _faulty(self) -> Any:
        return self.engine.stepping(True)

    @functools.cached_property
    def _evaluated(self) -> Any:
        layout = self.engine.layout
        sums = evaluating(layout.network, self._recipe.head, layout.across)
        return jitted(layout.mapped(sums, (layout.of_state, layout.of_batch, layout.of_batch), WHOLE))

    @functools.cached_property
    def _inferred(self) -> Any:
        layout = self.engine.layout
        inference = inferring(
            layout.network, self._recipe.head, layout.across, self.engine.supported, self.engine.reductions
        )
        each = layout.of_batch
        in_specs = (layout.of_state, each, each, WHOLE, WHOLE)
        return jitted(layout.mapped(inference, in_specs, Inference(each, each, each, WHOLE, each, WHOLE)))  # type: ignore[arg-type]

    @functools.cached_property
    def _data(self) -> OpenData:
        return read_alike(self._recipe.data)

    @functools.cached_property
    def _tests(self) -> list[Batch]:
        return [self.engine.layout.place_batch(batch) for batch in self._data.batches.test()]

    def _address(self, epoch: int, step: int) -> Array:
        return np.array([self._recipe.seed, epoch, step], np.int32)

    def _evaluate(self, state: ExplicitState) -> Evaluation:
        found = [self._evaluated(state, batch, self.engine.layout.numbers) for batch in self._tests]
        loss, metric, weight = np.array(jax.device_get(found), np.float64).sum(axis=0).tolist()
        return Evaluation(loss / weight, metric / weight)

    @functools.cached_property
    def _restated(self) -> Any:
        layout = self.engine.layout

        def restated(state: ExplicitState) -> ExplicitState:
            return dataclasses.replace(state, tables=sparse.looked_at(state.params, state.tables))

        return jax.jit(restated, out_shardings=layout.shardings(layout.specs) if layout.pieces else None)

    @functools.cached_property
    def _inverted(self) -> Any:
        optimizer = self._recipe.optimizer
        assert isinstance(optimizer, Invertible)

        def inverted(state: ExplicitState, gradients: Params) -> ExplicitState:
            opt_state, params = optimizer.inverse(gradients, state.opt_state, state.params)
            return ExplicitState(params, state.stats, opt_state, sparse.looked_at(params, state.tables))

        return jax.jit(inverted)

    def _undo(self, state: ExplicitState, told: StepReport) -> ExplicitState:
        params = self._recipe.single.params
        leaves = [told.reductions[f"{WHOLE_GRADIENTS}/{name}"] for name in leaf_names(params)]
        gradients = jax.tree.unflatten(jax.tree.structure(params), leaves)
        return self._inverted(state, self.engine.layout.replicate(gradients))  # type: ignore[no-any-return]

    def program(self, profile: Profile | None = None) -> Program:
        """The program whose passes watch activations after a profile; None watches nothing."""
        recipe, layout, state = self._recipe, self.engine.layout, self._recipe.state()
        numbers, single = layout.numbers, recipe.single
        if profile is not None:
            profile = layout.replicate(profile)

        def faulty_step(state: Any, batch: Batch, epoch: int, step: int, fault: Fault) -> Any:
            return self._faulty(state, batch, self._address(epoch, step), numbers, profile, fault)

        stages = stages_of(leaf_names(single), [params for _, params in layout.stages])
        return Program(
            state=state,
            steps_per_epoch=recipe.steps_per_epoch,
            devices=layout.count,
            measure=lambda: self._data.measure,
            data=lambda: self._data.sha256,
            init=lambda: recipe.copied(jax.device_get(recipe.init((recipe.seed,)))),
            place=layout.place,
            batch=lambda epoch, step: layout.place_batch(self._data.batches.train(epoch, step)),
            step=lambda state, batch, epoch, step: self._plain(
                state, batch, self._address(epoch, step), numbers, profile
            ),
            faulty_step=faulty_step,
            evaluate=self._evaluate,
            joined=starting(layout.mesh, recipe.strategy, single, layout.specs, recipe.workers, stages),
            restated=self._restated if recipe.tables or layout.pieces else lambda state: state,
            forward=ForwardPasses(
                tests=lambda: self._tests,
                infer=lambda state, batch, fault: self._inferred(state, batch, numbers, profile, fault),
                lower=lambda state, batch: self._inferred.lower(state, batch, numbers, profile, None),
                activations=lambda: activation_sizes(recipe.network, single, recipe.example),
                watching=self.program,
            ),
            extras=Extras(
                reports=frozenset((*CHOICES, ACTIVATIONS)),
                gradient_scale=lambda: gradient_scale(recipe.network, single.params, single.stats, recipe.inputs),
                undo=self._undo if isinstance(recipe.optimizer, Invertible) and not recipe.copies else None,
                lower=lambda state, batch: self._plain.lower(state, batch, self._address(0, 0), numbers, profile),
            ),
        )
