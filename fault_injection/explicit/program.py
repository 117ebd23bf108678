"""The program of an explicit training: what a run needs of it."""

import dataclasses
import functools
from typing import Any

import jax
import numpy as np

from ..models.arrays import Params
from ..models.fault import Faults
from ..models.observe.dr_dna import Profile
from ..models.observe.reductions import WHOLE as WHOLE_GRADIENTS
from ..seam.leaves import Batch
from ..seam.measure import Evaluation
from ..seam.program import Extras, ForwardPasses, Program
from ..seam.report import StepReport
from ..seam.trees import Array, leaf_names
from . import sparse, step_reductions
from .batch_source import read_alike
from .engine import LOWERED, Engine
from .gradient_scale import gradient_scale
from .layout import Layout, layout_of
from .mesh import WHOLE
from .network_outputs import outputs_of
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
    """The program of a recipe; what it consists of is compiled, and data are read, when they are first needed.

    Args:
      supported: sites that `faulty_step` can strike; None for all.
      devices: how many to use; see `usable_devices`.
      reductions: what every step returns of tensors and products, see `Engine`.

    Raises:
      InputError: the devices of several processes cannot share the workers evenly.
    """
    layout, single = layout_of(recipe, devices), recipe.single
    engine = Engine(recipe, layout, supported, reductions)
    place, replicate, place_batch = map(layout.place, (layout.of_whole_state, WHOLE, layout.of_batch))
    numbers = place_batch(np.arange(recipe.workers, dtype=np.int32))
    plain, faulty = engine.stepping(False), engine.stepping(True)
    data = functools.cache(lambda: read_alike(recipe.data))
    tests = functools.cache(lambda: [place_batch(batch) for batch in data().batches.test()])
    evaluated, inferred = engine.evaluating()
    stages = stages_of(leaf_names(single), [params for _, params in layout.stages])
    joined = starting(layout.mesh, recipe.strategy, single, layout.specs, recipe.workers, stages)

    def address(epoch: int, step: int) -> Array:
        return np.array([recipe.seed, epoch, step], np.int32)

    def watching(profile: Profile | None) -> Program:
        profile = None if profile is None else replicate(profile)

        def faulty_step(state: ExplicitState, batch: Batch, epoch: int, step: int, fault: Faults) -> Any:
            return faulty(state, batch, address(epoch, step), numbers, profile, fault)

        forward = ForwardPasses(
            tests=tests,
            infer=lambda state, batch, fault: inferred(state, batch, numbers, profile, fault),
        )
        extras = Extras(
            unreported=functools.partial(step_reductions.unreported, recipe),
            remark=functools.partial(step_reductions.remark, recipe, layout.devices),
            gradient_scale=lambda: gradient_scale(recipe.network, single.params, single.stats, recipe.inputs),
            undo=_undoing(recipe, replicate),
            lower={part: functools.partial(engine.lowered, part, profile) for part in LOWERED},
            trains_without_statistics=True,
        )
        return Program(
            state=recipe.state(),
            steps_per_epoch=recipe.steps_per_epoch,
            devices=layout.devices,
            measure=lambda: data().measure,
            data=lambda: data().sha256,
            init=lambda: recipe.copied(jax.device_get(recipe.init((recipe.seed,)))),
            place=place,
            batch=lambda epoch, step: place_batch(data().batches.train(epoch, step)),
            step=lambda state, batch, epoch, step: plain(state, batch, address(epoch, step), numbers, profile),
            faulty_step=faulty_step,
            evaluate=lambda state: _mean([evaluated(state, batch, numbers) for batch in tests()]),
            joined=joined,
            restated=_restating(layout) if recipe.tables or layout.pieces else lambda state: state,
            forward=forward,
            activations=engine.activation_sizes,
            watching=watching,
            outputs=lambda state, examples, _: outputs_of(recipe.network, state, tests(), examples),
            extras=extras,
        )

    return watching(None)


def _mean(sums: list[Any]) -> Evaluation:
    """The means over batches, from each one's sums of loss, metric and weight."""
    loss, metric, weight = np.array(jax.device_get(sums), np.float64).sum(axis=0).tolist()
    return Evaluation(loss / weight, metric / weight)


def _restating(layout: Layout) -> Any:
    """See `Program.restated`."""

    @functools.partial(jax.jit, out_shardings=layout.shardings(layout.specs) if layout.pieces else None)
    def restated(state: ExplicitState) -> ExplicitState:
        return dataclasses.replace(state, tables=sparse.looked_at(state.params, state.tables))

    return restated


def _undoing(recipe: Recipe, replicate: Any) -> Any:
    """See `Extras.undo`."""
    optimizer, params = recipe.optimizer, recipe.single.params
    if not isinstance(optimizer, Invertible) or recipe.copies:
        return None

    @jax.jit
    def inverted(state: ExplicitState, gradients: Params) -> ExplicitState:
        opt_state, before = optimizer.inverse(gradients, state.opt_state, state.params)
        return ExplicitState(before, state.stats, opt_state, sparse.looked_at(before, state.tables))

    def undo(state: ExplicitState, told: StepReport) -> ExplicitState:
        leaves = [told.reductions[f"{WHOLE_GRADIENTS}/{name}"] for name in leaf_names(params)]
        gradients = jax.tree.unflatten(jax.tree.structure(params), leaves)
        undone: ExplicitState = inverted(state, replicate(gradients))
        return undone

    return undo
