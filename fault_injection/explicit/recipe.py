"""A recipe: what an explicit training consists of, apart from the machine."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from ..models.combinators import in_precision
from ..models.isolation import only_shapes
from ..models.layer import Context, Layer
from ..models.loss import Head, cross_entropy
from ..models.precisions import PRECISIONS, Precision
from ..seam.stages import EXCHANGED, UPDATE, WORKER_GRADIENT
from ..seam.state_spec import StateSpec
from ..seam.strategies import REPLICATED, Strategy, Sum
from ..seam.trees import leaf_names
from . import sparse
from .batch_source import OpenData
from .exchange import exchanged_sites
from .optimizers import Invertible
from .state import ExplicitState, named_leaves


@dataclasses.dataclass(frozen=True)
class Recipe:
    """A training of an explicit network.

    Attributes:
      chain: the network, in float32.
      optimizer: with its schedule.
      example: shape and dtype of one input of the network.
      data: reads the data; called when they are first needed.
      workers: data-parallel replicas.
      batch_size: global, a multiple of the workers.
      steps_per_epoch: steps in each epoch.
      seed: of initial values, dropout and whatever else a layer draws.
      rate: the optimizer's learning rate by the number of steps done, for reductions; None where not known.
      head: what is minimised, and the metric; loss and metric of a batch are means over its targets.
      tables: parameters whose gradients are sparse (`Observations.rows`); the optimizer keeps no history of them.
      strategy: how the workers share their work.  Where each has its own copy, every leaf of the state has the
        workers as leading axis.  `tables` work only with the strategy `replicated`.
      precision: number formats of the network's passes.
    """

    chain: Layer
    optimizer: optax.GradientTransformation | Invertible
    example: jax.ShapeDtypeStruct
    data: Callable[[], OpenData]
    workers: int
    batch_size: int
    steps_per_epoch: int
    seed: int
    rate: optax.Schedule | None = None
    head: Head = cross_entropy
    tables: frozenset[str] = frozenset()
    strategy: Strategy = REPLICATED
    precision: Precision = PRECISIONS["float32"]

    @functools.cached_property
    def network(self) -> Layer:
        """The network in its precision."""
        return in_precision(self.chain, self.precision)

    @property
    def inputs(self) -> jax.ShapeDtypeStruct:
        """Shape [R,b,…] and dtype of the global batch's input."""
        shape = (self.workers, self.batch_size // self.workers, *self.example.shape)
        return jax.ShapeDtypeStruct(shape, self.example.dtype)

    @functools.cached_property
    def batch(self) -> dict[str, jax.ShapeDtypeStruct]:
        """Shapes and dtypes of the global batch, with the `weight` that it has in evaluation.

        Of logits [R,b,…,classes] targets are [R,b,…], one for each prediction.
        """

        def logits(state: ExplicitState, x: jax.Array) -> jax.Array:
            ctx = Context(jax.random.key(0), jnp.arange(self.workers), train=False)
            found: jax.Array = self.network.forward(state.params, state.stats, x, ctx)[0]
            return found

        with only_shapes():
            predictions = jax.eval_shape(logits, self.single, self.inputs).shape[:-1]
        target, weight = (jax.ShapeDtypeStruct(predictions, kind) for kind in (jnp.int32, jnp.float32))
        return {"input": self.inputs, "target": target, "weight": weight}

    @property
    def copies(self) -> int:
        """Workers that each have their own copy of the state; 0 where all share one."""
        return self.workers if self.strategy.copies else 0

    @property
    def own_gradients(self) -> bool:
        """Whether each worker follows its own gradient, summed with no other."""
        return self.strategy.gradients is Sum.NONE

    def init(self, key: tuple[int, ...] | None) -> ExplicitState:
        """One copy of the state before the first step, on the host; its shapes where there is no key."""
        params, stats = self.network.init(key, self.inputs.shape)
        make = self.optimizer.init
        if key is None:
            make = functools.partial(jax.eval_shape, make)
        return ExplicitState(params, stats, make(params), sparse.initial(params, self.tables))

    @functools.cached_property
    def single(self) -> ExplicitState:
        """Shapes and dtypes of one copy of the state."""
        return self.init(None)

    def copied(self, tree: Any) -> Any:
        """A copy of a state, or of its shapes, for each worker; the state itself where all share one."""

        def stacked(leaf: Any) -> Any:
            shape = (self.copies, *np.shape(leaf))
            abstractly = isinstance(leaf, jax.ShapeDtypeStruct)
            return jax.ShapeDtypeStruct(shape, leaf.dtype) if abstractly else np.broadcast_to(leaf, shape)

        return jax.tree.map(stacked, tree) if self.copies else tree

    def state(self) -> StateSpec:
        """What the state consists of; no device is asked for."""
        stages = {WORKER_GRADIENT} if self.own_gradients else set(EXCHANGED) - ({UPDATE} if self.copies else set())
        return StateSpec(
            abstract=self.copied(self.single),
            leaves=named_leaves(self.single),
            gradients=tuple(f"gradient/{name}" for name in leaf_names(self.single.params)),
            exchanged=exchanged_sites(self.single.params, self.tables, stages),
            workers=self.workers,
            strategy=self.strategy,
        )
