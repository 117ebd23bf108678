"""The program of a user's training: its golden runs are made with the reference."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from ..machine.devices import only_described
from ..machine.errors import Untrustworthy
from ..models.fault import Faults, as_one, each_of, inactive_fault
from ..models.observe.dr_dna import Profile
from ..models.overwrite import words_of
from ..seam.leaves import Batch, State
from ..seam.program import Extras, Program
from ..seam.report import StepReport
from . import recovered_gradient
from .elsewhere import lowered_for_described
from .recovered_gradient import Recovered, recovered
from .traced_training import TracedTraining
from .training_outputs import outputs_of


def training_program(made: TracedTraining, reductions: frozenset[str] = frozenset()) -> Program:
    """What runs of a user's training need.

    Args:
      reductions: what every step reports, of `REPORTED` in `recovered_gradient`, `step_updates` and `step_looks`.

    Raises:
      InputError: gradients are to be reported, and cannot be recovered from the optimizer's moments.
    """
    training, program, state = made.training, made.program, made.state

    def plainly(*arrays: Any) -> list[Any]:
        return list(program.flat(None, *arrays, *made.batch(0, 0))[0][: len(arrays)])

    @functools.cache
    def followed() -> list[Recovered]:
        return recovered(state.leaves, jax.tree.leaves(made.place(made.init())), plainly)

    rules = followed() if reductions & recovered_gradient.REPORTED else []
    stepped = functools.partial(made.stepped, reductions, rules)
    reference = jax.jit(functools.partial(stepped, None), donate_argnums=0)
    struck = _compared(program.traced.names, reference, jax.jit(stepped))

    # Once for all: twins begin alike, whatever is watched.
    data, reasons = functools.cache(made.data), functools.cache(functools.partial(made.unreported, followed))
    own = functools.cache(lambda: made.distance(reference))

    def watching(profile: Profile | None) -> Program:
        watched = None if profile is None else made.watchable(profile)

        def step(old: State, examples: Batch, epoch: int, number: int) -> tuple[State, StepReport]:
            new, told = reference(jax.tree.leaves(old), examples, watched)
            return made.tree(new), told

        def faulty_step(
            old: State, examples: Batch, epoch: int, number: int, fault: Faults
        ) -> tuple[State, StepReport]:
            new, told = struck(jax.tree.leaves(old), examples, fault, watched)
            return made.tree(new), told

        return Program(
            state=state,
            steps_per_epoch=training.steps_per_epoch,
            devices=made.devices,
            measure=lambda: training.metric,
            data=data,
            init=made.init,
            place=made.place,
            batch=made.batch,
            step=step,
            faulty_step=faulty_step,
            evaluate=made.evaluate,
            activations=lambda: made.activations,
            watching=watching,
            outputs=lambda old, examples, measured: outputs_of(
                training, state, program.traced.state, old, examples, by_measure=measured
            ),
            extras=Extras(
                unreported=reasons,
                remark=made.remark,
                own_step=own,
                load=None if training.load is None else made.load,
                lower={
                    "step": lambda: _lowered(made, functools.partial(stepped, None), watched, donated=1),
                    "faulty_step": lambda: _lowered(made, stepped, watched, words_of(inactive_fault())),
                },
            ),
        )

    return watching(None)


def _lowered(
    made: TracedTraining, function: Callable[..., Any], watched: Profile | None, *words: Any, donated: int = 0
) -> Any:
    """A step before compilation: of a fault's words, where it has them, the state's arrays, a batch, a profile."""
    given = (*words, jax.tree.leaves(made.place(made.init())), made.batch(0, 0), watched)
    if only_described():
        return lowered_for_described(function, given, donated)
    return jax.jit(function, donate_argnums=tuple(range(donated))).lower(*given)


def _compared(names: Sequence[str], reference: Any, struck: Any) -> Callable[..., Any]:
    """The step with a fault, of arrays: each of its executables is compared with the reference before its first fault.

    It raises Untrustworthy where an inactive fault changes a bit.
    """
    compared: set[Any] = set()  # numbers of elements, types of masks, and what is watched: each has its executable

    def step(arrays: list[Any], batch: Batch, fault: Faults, watched: Profile | None) -> Any:
        kinds = [(len(one.index), one.keep.dtype, one.rule is not None) for one in each_of(fault)]
        kind = (*kinds, jax.tree.structure(watched))
        if kind not in compared:
            clean, _ = reference([jnp.copy(one) for one in arrays], batch, watched)
            inactive = (inactive_fault(size, mask=mask, ruled=ruled) for size, mask, ruled in kinds)
            silent, _ = struck(as_one(tuple(map(words_of, inactive))), arrays, batch, watched)
            pairs = zip(names, jax.device_get(clean), jax.device_get(silent), strict=True)
            if odd := [name for name, a, b in pairs if a.tobytes() != b.tobytes()]:
                raise Untrustworthy(
                    f"the step with an inactive fault differs from the reference in {len(odd)} of {len(names)} leaves, "
                    f"{odd[0]!r} the first"
                )
            compared.add(kind)
        return struck(as_one(tuple(map(words_of, each_of(fault)))), arrays, batch, watched)

    return step
