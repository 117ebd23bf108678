"""What a step tells of gradients and of what it adds to the parameters: the reductions that it was asked for.

Gradients are looked at before the sum over the workers and after it; an update, when it has been made.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from ..models.arrays import Params
from ..models.isolation import isolated
from ..models.observe.reductions import WHOLE, adam_step, local_gradient, reduced, together
from ..seam.leaves import MEANS, SQUARES
from ..seam.trees import leaf_names
from . import sparse
from .mesh import AXIS
from .optimizers import history
from .recipe import Recipe

Told = dict[str, jax.Array]  # by `REDUCTION/KIND/NAME`

ADAM_STEPS = "/adam_steps"


def unreported(recipe: Recipe, reduction: str) -> str:
    """Why steps cannot report a reduction; empty where they can."""
    if not reduction.endswith(ADAM_STEPS):
        return ""
    if recipe.rate is None:
        return "its learning rate is not known"
    return "" if _moments(recipe.single.opt_state, recipe.single.params) else "its optimizer has not Adam's moments"


def remark(recipe: Recipe, devices: int, reduction: str) -> str:
    """What is to be known of a reduction; empty where nothing is."""
    apart = recipe.copies or recipe.workers == devices
    if apart or not reduction.endswith("/local_gradients"):
        return ""
    groups = 1 if recipe.strategy.stages else devices
    return f"a gradient before the exchange is that of the {recipe.workers // groups} workers of one device together"


def of_local_gradients(recipe: Recipe, wanted: frozenset[str], grads: Params, across: str | None, devices: int) -> Told:
    """Of gradients before the sum over all workers, alike on all devices.

    A name says whose gradient it is (`local_gradient`): a worker's own where each has a copy of the state or a device
    to itself, else that of all workers of a device, whose products add them up.

    Args:
      grads: of this device; [W,…] of each of its workers, where each has a copy.
      across: the axis of the devices that share the workers; None where each device has all of them.
      devices: how many there are.
    """
    found: Told = {}
    groups = devices if across is not None else 1
    each = recipe.workers // groups
    here = lax.axis_index(across) if across is not None and groups > 1 else 0
    for name, gradient in zip(leaf_names(grads), jax.tree.leaves(grads), strict=True):
        if gradient.ndim - bool(recipe.copies) < 2:
            continue
        for row, one in enumerate(gradient if recipe.copies else [gradient]):
            parts = reduced(wanted, "local_gradients", "", one)
            for group in range(groups):
                first = group * each + (row if recipe.copies else 0)
                whose = local_gradient(first, first if recipe.copies else first + each - 1, name)
                found |= {f"{of}{whose}": jnp.where(group == here, part, 0) for of, part in parts.items()}
    return together(found, across if groups > 1 else None)


def of_gradients(recipe: Recipe, wanted: frozenset[str], grads: Params, params: Params, rows: sparse.Rows) -> Told:
    """Of gradients summed over the workers; of each worker's own, where they are not summed."""
    found: Told = {}
    of_all = AXIS if recipe.own_gradients else None
    for name, gradient in zip(leaf_names(grads), jax.tree.leaves(grads), strict=True):
        found |= together(reduced(wanted, "parameter_gradients", name, gradient), of_all)
    if WHOLE in wanted:
        found |= {f"{WHOLE}/{name}": table for name, table in sparse.whole_tables(grads, params, rows).items()}
    return found


def of_update(
    recipe: Recipe, wanted: frozenset[str], before: Params, after: Params, opt_state: Any, done: jax.Array
) -> Told:
    """Of what a step adds to the parameters, and of what Adam would add; of all copies together, where there are any.

    Args:
      before, after: the parameters; of tables those rows that the step reads.
      opt_state: after the step.
      done: int32, steps before this one.
    """
    found: Told = {}
    of_all = AXIS if recipe.copies else None
    with isolated("false"):
        if any(each.endswith("/updates") for each in wanted):
            added = jax.jit(lambda new, old: jax.tree.map(jnp.subtract, new, old))(after, before)
            for name, update in zip(leaf_names(added), jax.tree.leaves(added), strict=True):
                found |= together(reduced(wanted, "updates", name, update), of_all)
        if any(each.endswith(ADAM_STEPS) for each in wanted) and not unreported(recipe, ADAM_STEPS):
            assert recipe.rate is not None  # nothing is unreported
            with jax.numpy_dtype_promotion("standard"):  # as Optax's schedules need it
                rate = jnp.float32(recipe.rate(done))
            steps = jax.jit(lambda m, v, rate: jax.tree.map(lambda one, other: adam_step(one, other, rate), m, v))
            made = steps(*_moments(opt_state, before), rate)
            for name, step in zip(leaf_names(made), jax.tree.leaves(made), strict=True):
                found |= together(reduced(wanted, "adam_steps", name, step), of_all)
    return found


def _moments(opt_state: Any, params: Params) -> tuple[Params, ...]:
    """Adam's two moments; nothing where the optimizer has not got them."""
    kept = {name.rpartition(".")[2]: tree for name, tree in history(opt_state, params).items()}
    found = tuple(kept[kind] for kinds in (MEANS, SQUARES) for kind in kinds if kind in kept)
    return found if len(found) == 2 else ()
