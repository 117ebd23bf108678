"""How a training lies on devices: which workers, which part of the state and of a batch each of them has."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from ..machine.devices import shaped
from ..models.arrays import Initial
from ..models.combinators import in_precision
from ..models.layer import Layer
from .copies import own_copies
from .mesh import AXIS, SPLIT, WHOLE, devices_of_stages, mesh_of, placed, sharded, shardings_of, usable_devices
from .pipeline import pipelined, staged
from .recipe import Recipe


class Layout(NamedTuple):
    """A recipe on devices.

    Attributes:
      mesh: the devices.
      network: as a device computes it: of all its copies, or in stages.
      stages: of a pipeline, each with shapes of its own parameters; none where there is no pipeline.
      across: the axis to sum over; None where each device has all workers, since the devices share the layers.
      of_batch: what each device has of a batch, and of whatever else has the workers as leading axis.
      of_state: what each device has of a state that is not in pieces.
      specs: what each device has of each array of the state.
      pieces: parts of the state of which each device has a piece.
      copies: each device's workers that have a copy of the state each; 0 where all share one.
    """

    mesh: Mesh
    network: Layer
    stages: Sequence[tuple[Layer, Initial]]
    across: str | None
    of_batch: PartitionSpec
    of_state: PartitionSpec
    specs: Any
    pieces: frozenset[str]
    copies: int

    @property
    def devices(self) -> int:
        """How many there are."""
        return self.mesh.devices.size

    def of_copies(self, function: Callable[..., Any], in_axes: Any = 0) -> Callable[..., Any]:
        """A function of one state as one of all copies of this device."""
        return jax.vmap(function, in_axes, axis_size=self.copies) if self.copies else function

    def entire(self, tree: Any) -> Any:
        """Gradients that each device has all of.  Else the norm of all would be a sum of what devices have."""
        return lax.with_sharding_constraint(tree, NamedSharding(self.mesh, WHOLE)) if self.pieces else tree

    def shardings(self, specs: Any) -> Any:
        """Specs as shardings of the mesh."""
        return jax.tree.map(lambda spec: NamedSharding(self.mesh, spec), specs)

    def place(self, specs: Any) -> Callable[[Any], Any]:
        """A function that puts arrays of the host on the devices, see `mesh.placed`."""
        return placed(self.mesh, specs)

    @property
    def of_whole_state(self) -> Any:
        """What each device has of a state, in pieces or not."""
        return self.specs if self.pieces else self.of_state

    def shaped(self, specs: Any, tree: Any) -> Any:
        """Shapes of arrays with where they lie on the devices."""
        return shaped(tree, shardings_of(self.mesh, specs, tree))

    def mapped(self, function: Callable[..., Any], in_specs: Any, out_specs: Any) -> Callable[..., Any]:
        """A function of what each device has as one of the whole."""
        return jax.shard_map(function, mesh=self.mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False)


def layout_of(recipe: Recipe, devices: int | None = None) -> Layout:
    """The layout of a recipe on the devices of this machine.

    Args:
      devices: how many to use; see `usable_devices`.

    Raises:
      InputError: the devices of several processes cannot share the workers evenly.
    """
    pieces, stages, copies = recipe.strategy.sharded, recipe.strategy.stages, recipe.copies
    count = devices_of_stages(stages, devices) if stages else usable_devices(recipe.workers, devices)
    across, of_batch = (None, WHOLE) if stages else (AXIS, SPLIT)
    parts = staged(recipe.chain, stages, recipe.inputs.shape) if stages else []
    network = own_copies(recipe.network) if copies else recipe.network
    if stages:
        passing = pipelined(recipe.chain, [stage for stage, _ in parts], AXIS if count > 1 else None)
        network = in_precision(passing, recipe.precision)
    of_state = SPLIT if copies else WHOLE
    specs = sharded(pieces, recipe.single, count) if pieces else jax.tree.map(lambda _: of_state, recipe.single)
    return Layout(
        mesh_of(count), network, parts, across, of_batch, of_state, specs, pieces, copies // count if copies else 0
    )
