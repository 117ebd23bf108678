"""Faults in the state: what a step reads differs from what the step before has written."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax import ShapeDtypeStruct

from models.fault import Fault, Operand, Struck, overwrite, site_id
from models.site import Site

from .program import Batch, Program, Role, State, StepReport

STATE = "state"  # the stage of a leaf, beside the forward and the backward pass


def state_sites(program: Program) -> dict[str, Site]:
    """The leaves of a program's state as what a fault can strike, by name; their one operand is `Operand.INPUT`.

    Raises:
      ValueError: two names have the same id.
    """
    leaves = zip(program.leaves, jax.tree.leaves(program.abstract), strict=True)
    found = {
        # One number has the position 0.
        leaf.name: Site(
            leaf.name, leaf.name, STATE, {Operand.INPUT: ShapeDtypeStruct(tensor.shape or (1,), tensor.dtype)}
        )
        for leaf, tensor in leaves
        if leaf.role != Role.KEPT
    }
    if len({site_id(name) for name in found}) < len(found):
        raise ValueError("two leaves of the state have names with the same id")
    return found


def faulty_step(
    program: Program, state: State, batch: Batch, epoch: int, step: int, fault: Fault
) -> tuple[State, StepReport]:
    """One step with a fault, in an operation or in the state that the step reads.

    A fault in the state is written into its leaf, and the plain step follows.  So it costs neither
    a program with fault support nor time in any other step.  The step gets a copy of the state,
    because it consumes its buffers, and after a step with a fault its state can still be used.
    """
    number = _leaf_number(program, int(fault.site))
    if number is None:
        return program.faulty_step(state, batch, epoch, step, fault)
    leaves, tree = jax.tree.flatten(jax.tree.map(jnp.copy, state))
    leaves[number], struck = _overwritten(leaves[number], fault)
    struck_state = program.restated(jax.tree.unflatten(tree, leaves))
    state, report = program.step(struck_state, batch, epoch, step)
    return state, dataclasses.replace(report, struck=struck)


def _leaf_number(program: Program, site: int) -> int | None:
    return next((i for i, leaf in enumerate(program.leaves) if site_id(leaf.name) == site), None)


@jax.jit
def _overwritten(leaf: Any, fault: Fault) -> tuple[jax.Array, Struck]:
    (leaf,), struck = overwrite((leaf,), fault)
    return leaf, dataclasses.replace(struck, hits=struck.hits + 1)
