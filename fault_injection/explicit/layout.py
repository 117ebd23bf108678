"""How a training lies on devices: which workers, which part of the state and of a batch each of them has."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from ..models.layer import Layer
from .copies import own_copies
from .mesh import AXIS, SPLIT, WHOLE, compiler_options, devices_of_stages, mesh_of, placed, sharded, usable_devices
from .pipeline import pipelined, staged
from .recipe import Recipe


@dataclasses.dataclass(frozen=True, eq=False)
class Layout:
    """A recipe on so many devices.

    Attributes:
      recipe: what is trained.
      count: of devices.
    """

    recipe: Recipe
    count: int

    @functools.cached_property
    def mesh(self) -> Mesh:
        """The devices."""
        return mesh_of(self.count)

    @property
    def pieces(self) -> frozenset[str]:
        """Parts of the state of which each device has a piece."""
        return self.recipe.strategy.sharded

    @property
    def across(self) -> str | None:
        """The axis to sum over.  Where the devices share the layers, each of them has all workers: there is none."""
        return None if self.recipe.strategy.stages else AXIS

    @property
    def of_batch(self) -> PartitionSpec:
        """What each device has of a batch, and of whatever else has the workers as leading axis."""
        return WHOLE if self.recipe.strategy.stages else SPLIT

    @property
    def of_state(self) -> PartitionSpec:
        """What each device has of a state that is not in pieces."""
        return SPLIT if self.recipe.copies else WHOLE

    @functools.cached_property
    def specs(self) -> Any:
        """What each device has of each array of the state."""
        single = self.recipe.single
        if self.pieces:
            return sharded(self.pieces, single, self.count)
        return jax.tree.map(lambda _: self.of_state, single)

    def shardings(self, specs: Any) -> Any:
        """The same as shardings of the mesh."""
        return jax.tree.map(lambda spec: NamedSharding(self.mesh, spec), specs)

    @functools.cached_property
    def stages(self) -> list[tuple[Layer, Any]]:
        """The stages of a pipeline, each with shapes of its own parameters; none where there is no pipeline."""
        recipe = self.recipe
        wanted = recipe.strategy.stages
        return staged(recipe.network, wanted, recipe.inputs.shape) if wanted else []

    @functools.cached_property
    def network(self) -> Layer:
        """The network as a device computes it: of all its copies, or in stages."""
        if self.stages:
            axis = AXIS if self.count > 1 else None
            return pipelined(self.recipe.network, [stage for stage, _ in self.stages], axis)
        return own_copies(self.recipe.network) if self.recipe.copies else self.recipe.network

    def of_copies(self, function: Callable[..., Any], in_axes: Any = 0) -> Callable[..., Any]:
        """A function of one state as one of all copies of this device."""
        copies = self.recipe.copies
        return jax.vmap(function, in_axes, axis_size=copies // self.count) if copies else function

    def entire(self, tree: Any) -> Any:
        """Gradients that each device has all of.  Else the norm of all would be a sum of what devices have."""
        return lax.with_sharding_constraint(tree, NamedSharding(self.mesh, WHOLE)) if self.pieces else tree

    @functools.cached_property
    def place(self) -> Callable[[Any], Any]:
        """A function that puts a state of the host on the devices."""
        return placed(self.mesh, self.specs if self.pieces else self.of_state)

    @functools.cached_property
    def place_batch(self) -> Callable[[Any], Any]:
        """The same of a batch, and of whatever else has the workers as leading axis."""
        return placed(self.mesh, self.of_batch)

    @functools.cached_property
    def replicate(self) -> Callable[[Any], Any]:
        """The same of what every device has all of."""
        return placed(self.mesh, WHOLE)

    @functools.cached_property
    def numbers(self) -> Any:
        """The numbers of the workers, each where the worker is."""
        return self.place_batch(np.arange(self.recipe.workers, dtype=np.int32))

    def mapped(self, function: Callable[..., Any], in_specs: Any, out_specs: Any) -> Callable[..., Any]:
        """A function of what each device has as one of the whole."""
        return jax.shard_map(function, mesh=self.mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False)


def jitted(function: Callable[..., Any], **options: Any) -> Any:
    """A function compiled with the options that the project compiles with."""
    return jax.jit(function, compiler_options=compiler_options(), **options)


def layout_of(recipe: Recipe, devices: int | None = None) -> Layout:
    """The layout of a recipe on the devices of this machine.

    Args:
      devices: how many to use; see `usable_devices`.

    Raises:
      InputError: the devices of several processes cannot share the workers evenly.
    """
    stages = recipe.strategy.stages
    count = devices_of_stages(stages, devices) if stages else usable_devices(recipe.workers, devices)
    return Layout(recipe, count)
