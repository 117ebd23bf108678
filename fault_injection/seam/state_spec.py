"""What a state consists of: known before any of it is computed."""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

from ..models.site import Site
from .leaves import Leaf, Role
from .strategies import REPLICATED, Strategy


@dataclasses.dataclass(frozen=True, eq=False)
class StateSpec:
    """Names, roles and shapes of the arrays of a training's state, and who has a copy of it; equal to itself alone.

    Attributes:
      abstract: the state's tree with shapes and dtypes, as `jax.ShapeDtypeStruct`; of all copies.
      leaves: names and roles of its arrays, in the order of `jax.tree.leaves`.
      gradients: names of the arrays whose magnitudes a step's report has before those of the state.
      exchanged: what a fault can strike between the passes and the new state, by name.
      workers: data-parallel replicas.
      strategy: how they share the state.

    >>> import jax
    >>> spec = StateSpec({"w": jax.ShapeDtypeStruct((2,), "float32")}, (Leaf("w", Role.PARAMETER),), ("gradient/w",))
    >>> spec.positions(Role.PARAMETER), spec.bytes, spec.copies, spec.loaders
    ([1], 8, 0, 1)
    """

    abstract: Any
    leaves: tuple[Leaf, ...]
    gradients: tuple[str, ...]
    exchanged: Mapping[str, Site] = dataclasses.field(default_factory=dict)
    workers: int = 1
    strategy: Strategy = REPLICATED

    @property
    def copies(self) -> int:
        """Workers that each have their own copy, the leading axis of every array; 0 where all share one."""
        return self.workers if self.strategy.copies else 0

    @property
    def loaders(self) -> int:
        """Workers, or stages of a pipeline, that each load a checkpoint at the start."""
        return self.strategy.loaders(self.workers)

    def single(self, state: Any, worker: int) -> Any:
        """One worker's copy of a state; the state itself where all workers share it.

        Args:
          state: such as a checkpoint of a golden run, on the host.
        """
        import jax  # a spec is read without it

        return jax.tree.map(lambda leaf: leaf[worker], state) if self.copies else state

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the arrays, in the order of `leaves`."""
        return tuple(leaf.name for leaf in self.leaves)

    @functools.cached_property
    def watched(self) -> tuple[Leaf, ...]:
        """What the magnitudes of a report belong to: the gradients, then the state's arrays."""
        return (*(Leaf(name, Role.GRADIENT) for name in self.gradients), *self.leaves)

    def positions(self, role: Role, moment: str = "") -> list[int]:
        """Positions among `watched` of all arrays of a role; of one moment, if one is named."""
        return [i for i, leaf in enumerate(self.watched) if leaf.role == role and moment in ("", leaf.moment)]

    def places(self, role: Role) -> list[int]:
        """Positions among `leaves` of all arrays of a role."""
        return [i for i, leaf in enumerate(self.leaves) if leaf.role == role]

    @property
    def norms(self) -> list[int]:
        """Places of the running statistics of norms: of variances, and of statistics that stand beside one.

        Others are read by every step, such as the scales of formats.
        """
        beside = {leaf.name.rpartition("/")[0] for leaf in self.leaves if leaf.role == Role.VARIANCE}
        of_norms = (Role.STATISTIC, Role.VARIANCE)
        return [
            i for i, leaf in enumerate(self.leaves) if leaf.role in of_norms and leaf.name.rpartition("/")[0] in beside
        ]

    @property
    def moments(self) -> list[str]:
        """The moments of the optimizer's history, in the order of the state."""
        return list(dict.fromkeys(leaf.moment for leaf in self.leaves if leaf.role == Role.HISTORY))

    @property
    def bytes(self) -> int:
        """Size of a state."""
        import jax

        return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(self.abstract))
