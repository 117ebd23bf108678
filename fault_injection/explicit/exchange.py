"""What a step hands on between its passes and the new state, and faults in it: gradients, and the update.

A worker's gradient is what a link delivers to the sum, the summed gradient is what the optimizer reads,
and the update is what it adds to the parameters.  The step is computed with and without the fault; only
elements in which the two differ are taken from the faulty one.
"""

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from ..models.arrays import Params
from ..models.fault import INACTIVE, AllStruck, Faults, Operand, as_one, each_of, nothing_struck, site_id
from ..models.isolation import fence
from ..models.overwrite import bits, overwritten
from ..models.site import Site, TensorSpec
from ..seam.stages import EXCHANGED, GRADIENT, UPDATE, WORKER_GRADIENT
from ..seam.trees import leaf_names
from .sparse import parameter, with_parameter


def exchanged_sites(params: Any, tables: Iterable[str] = (), stages: Iterable[str] = EXCHANGED) -> dict[str, Site]:
    """What a fault can strike between the passes and the new state, by name; the one operand is `Operand.INPUT`.

    Args:
      params: arrays of the parameters, or shapes and dtypes.
      tables: parameters whose gradients are sparse: an operation, `_grad_wt`, is the place to strike these.
      stages: of `EXCHANGED`: which of them there are; all workers share a summed gradient and an update.

    >>> list(exchanged_sites({"fc": {"bias": jnp.zeros(2)}}))
    ['worker_gradient/fc/bias', 'gradient/fc/bias', 'update/fc/bias']
    """
    leaves = dict(zip(leaf_names(params), jax.tree.leaves(params), strict=True))
    return {
        f"{stage}/{name}": Site(
            f"{stage}/{name}", name, stage, {Operand.INPUT: TensorSpec(leaf.shape or (1,), leaf.dtype)}
        )
        for stage in EXCHANGED
        if stage in stages
        for name, leaf in leaves.items()
        if name not in tables
    }


class Striker:
    """Strikes what a step hands on; it adds nothing to a step that supports no fault in it.

    Args:
      fault: of this step, or several; None without fault support.
      supported: names that it can strike, of `exchanged_sites`; others are ignored.
    """

    def __init__(self, fault: Faults | None, supported: Iterable[str]):
        self._faults = each_of(fault)
        self._supported = [] if fault is None else sorted(supported)
        self._struck: list[AllStruck] = []

    def told(self, of_operations: AllStruck | None) -> AllStruck | None:
        """What the faults did, at the step's operations or here: it is alike on all devices."""
        every = [*([] if of_operations is None else [of_operations]), *self._struck]
        return jax.tree.map(lambda *parts: sum(parts[1:], parts[0]), *every) if every else None

    def of_worker(
        self, total: Params, local: Params, workers: jax.Array, axis: str | None, alone: Callable[[jax.Array], Params]
    ) -> Params:
        """Gradients summed over all workers, with the fault in what one of them adds.

        Args:
          total: summed over all workers.
          local: summed over those of this device.
          workers: int32 [R], their numbers.
          axis: of the devices; None where each of them has all workers.
          alone: the gradients summed over some of this device's workers, int32 [n] positions among them.
        """
        names, count = self._names(WORKER_GRADIENT), len(workers)
        for number, fault in enumerate(self._faults if names else ()):
            here = workers == fault.worker
            owner, r = jnp.any(here), jnp.argmax(here)
            own, rest = local, jax.tree.map(jnp.zeros_like, local)
            if count > 1:
                own, rest = alone(r[None]), alone((r + 1 + jnp.arange(count - 1)) % count)
            for path, name in names.items():
                parts = (
                    jnp.where(owner, parameter(own, path), 0),
                    jnp.where(owner, parameter(rest, path), parameter(local, path)),
                )
                mine, others = fence(*(parts if axis is None else lax.psum(parts, axis)))
                changed = self._overwritten(number, name, mine)
                differs = bits(changed) != bits(mine)
                total = with_parameter(total, path, jnp.where(differs, others + changed, parameter(total, path)))
        return total

    def of_copies(self, grads: Params, workers: jax.Array, axis: str | None) -> Params:
        """The gradients of this device's workers [W,…], with the fault in those of one of them.

        Args:
          workers, axis: as in `of_worker`.
        """
        for number, path, name in self._places(WORKER_GRADIENT):
            here, each = workers == self._faults[number].worker, parameter(grads, path)
            r = jnp.argmax(here)
            mine = jnp.where(jnp.any(here), each[r], 0)
            mine = fence(mine if axis is None else lax.psum(mine, axis))  # all devices tell of the same numbers
            changed = self._overwritten(number, name, mine)
            differs = jnp.any(here) & (bits(changed) != bits(mine))
            grads = with_parameter(grads, path, each.at[r].set(jnp.where(differs, changed, each[r])))
        return grads

    def of_sum(self, total: Params) -> Params:
        """Gradients summed over all workers, with the fault in them."""
        for number, path, name in self._places(GRADIENT):
            total = with_parameter(total, path, self._overwritten(number, name, parameter(total, path)))
        return total

    def of_update(self, params: Params, before: Params, updates: Callable[[], Params]) -> Params:
        """Parameters after a step, with the fault in what was added to them.

        Args:
          before: the parameters that the step has read.
          updates: what it adds to them.
        """
        places = self._places(UPDATE)
        added = updates() if places else {}
        for number, path, name in places:
            update = fence(parameter(added, path))
            changed, old = self._overwritten(number, name, update), parameter(before, path)
            differs = bits(changed) != bits(update)
            struck = jnp.where(differs, old + changed.astype(old.dtype), parameter(params, path))
            params = with_parameter(params, path, struck)
        return params

    def _names(self, stage: str) -> dict[str, str]:
        """Supported names of a stage, by the paths of their parameters."""
        return {name.partition("/")[2]: name for name in self._supported if name.startswith(f"{stage}/")}

    def _places(self, stage: str) -> list[tuple[int, str, str]]:
        """Numbers of the faults, with each path and name of a stage that they may strike."""
        return [(number, *place) for number in range(len(self._faults)) for place in self._names(stage).items()]

    def _overwritten(self, number: int, name: str, tensor: jax.Array) -> jax.Array:
        """A tensor with the fault of this number in it, if that strikes what has this name."""
        fault, told = self._faults[number], [*map(nothing_struck, self._faults)]
        hit = fault.site == site_id(name)
        tensor, struck = overwritten(tensor, dataclasses.replace(fault, index=jnp.where(hit, fault.index, INACTIVE)))
        told[number] = dataclasses.replace(struck, hits=struck.hits + hit.astype(jnp.int32))
        self._struck.append(as_one(tuple(told)))
        return fence(tensor)
