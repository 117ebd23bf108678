"""A user's own workload, which has no images: only what injection files need to know of it."""

import dataclasses
import pathlib
from collections.abc import Mapping
from typing import ClassVar

import jax
import jax.numpy as jnp

from fault_injection.machine.reading import whole
from fault_injection.models.fault import Operand
from fault_injection.models.site import Site
from fault_injection.seam.program import Program
from fault_injection.seam.stages import STATE
from fault_injection.seam.workload import Contradiction, Option, Workload

NAME = f"{pathlib.Path(__file__)}:series"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Series(Workload):
    """Something with points, features and layers; every second layer computes in bfloat16."""

    points: int = 12
    features: int = 6
    layers: int = 4

    OPTIONS: ClassVar[Mapping[str, Option]] = {
        "points": Option(whole(1), "in an epoch", ("step",)),
        "features": Option(whole(1), "of each point", ("position",)),
        "layers": Option(whole(1, 100), "one after another", ("layer",)),
        **Workload.OPTIONS,
    }

    @property
    def steps_per_epoch(self) -> int:
        return self.points

    def sites(self) -> Mapping[str, Site]:
        found = {}
        for layer in range(self.layers):
            dtype = (jnp.float32, jnp.bfloat16)[layer % 2]
            shapes = ((self.features,), (self.features, 2), (2,))
            operands = {
                operand: jax.ShapeDtypeStruct(shape, dtype) for operand, shape in zip(Operand, shapes, strict=True)
            }
            for stage, name in (("forward", f"layer{layer}"), ("backward", f"layer{layer}_grad_wt")):
                found[name] = Site(name=name, layer=f"layer{layer}", stage=stage, operands=operands)
        return found

    def leaves(self) -> Mapping[str, Site]:
        shape = jax.ShapeDtypeStruct((self.features, 2), jnp.float32)
        names = [f"params/layer{layer}/w" for layer in range(self.layers)]
        return {name: Site(name, name, STATE, {Operand.INPUT: shape}) for name in names}

    def contradiction(self) -> Contradiction | None:
        if self.points % self.workers:
            return Contradiction("points", f"points {self.points} is not a multiple of the {self.workers} workers")
        return None

    def program(self, supported=None, devices=None, data_dir=None, reductions=frozenset()) -> Program:
        raise NotImplementedError("injection files run nothing")


def series() -> Series:
    """The workload as injection files name it."""
    return Series(name="series", learning_rate=0.1, workers=2, epochs=10)
