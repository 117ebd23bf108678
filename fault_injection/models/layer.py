"""The values that everything in `models` passes around: a layer, its context, its observations."""

from collections.abc import Iterable
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
from flax import struct

from .arrays import Cache, Initial, Key, Params, Shape, Stats
from .fault import AllStruck, Faults
from .observe.dr_dna import Profile
from .observe.reductions import reduced
from .precision import wide
from .precisions import Precision


@struct.dataclass
class Context:
    """What a pass through a network depends on besides parameters and data.

    Attributes:
      key: the random key of (seed, epoch, step); a random layer derives its own key from it by name.
      workers: int32 [R], global numbers of the workers on this device.  They are the leading axis
        of every activation.
      fault: the fault of this step, or a tuple of several; with None, nothing of fault support is compiled.
      supported: names of the sites that `fault` can strike; None means all.  A fault at any other
        site strikes nothing.  The fewer sites, the shorter the compilation; the bits are the same.
      train: True for training (batch statistics, dropout), False for evaluation.
      observe: kinds of tensors to return besides the results: `operands` (of every site, in the
        published layouts), `results` (of every operation that is computed), and those of
        `models.observe.reductions.KINDS`.
      reduce: reductions to return of such tensors, and of products, from `models.observe.reductions.CHOICES`.
      input_gradient: whether anybody reads the gradient with respect to this layer's input.  Who
        calls a network's backward pass sets False if it discards that gradient.  `chain` hands
        False on to its first layer alone; the other combinators need the gradients of their parts.
      precision: formats of the pass; None where every number is as wide as the parameters.
      maxima: float32 [2, steps] by site, the largest absolute value of its input and its weight in
        the last steps, where `precision` has formats that need a scale; None before the first step.
      profile: where the forward pass samples activations, which it then returns as tensors of the
        kind `samples`, see `models.observe.dr_dna.watched`.

    >>> Context(jax.random.key(0), jnp.arange(8), supported=frozenset({"conv1"})).train
    True
    """

    key: jax.Array
    workers: jax.Array
    fault: Faults | None = None
    supported: frozenset[str] | None = struct.field(pytree_node=False, default=None)
    train: bool = struct.field(pytree_node=False, default=True)
    observe: frozenset[str] = struct.field(pytree_node=False, default=frozenset())
    reduce: frozenset[str] = struct.field(pytree_node=False, default=frozenset())
    input_gradient: bool = struct.field(pytree_node=False, default=True)
    precision: Precision | None = struct.field(pytree_node=False, default=None)
    maxima: dict[str, jax.Array] | None = None
    profile: Profile | None = None


@struct.dataclass
class Observations:
    """What a pass reports besides its results.

    Attributes:
      struck: what the fault, or each of several, did; None where no site is supported.
      tensors: requested tensors, `{kind: {name: …}}`.
      sites: names of the sites of the pass, in the order in which it runs them.
      reduced: this device's parts of the reductions asked for, see `models.observe.reductions.reduced`.
      maxima: float32 [2] by site, this step's part of what `Context.maxima` remembers.
      rows: int32 [n] by parameter, such as `emb_0/table`: its gradient is [n,…], of these rows of it
        alone; all others are zero.  The number of its rows marks an empty place.
    """

    struck: AllStruck | None = None
    tensors: dict[str, dict[str, Any]] = struct.field(default_factory=dict)
    sites: tuple[str, ...] = struct.field(pytree_node=False, default=())
    maxima: dict[str, jax.Array] = struct.field(default_factory=dict)
    reduced: dict[str, jax.Array] = struct.field(default_factory=dict)
    rows: dict[str, jax.Array] = struct.field(default_factory=dict)


def merge(observations: Iterable[Observations]) -> Observations:
    """Observations of several layers as one.  A fault strikes at most one site, so adding loses nothing.

    Raises:
      ValueError: a site occurs twice.  A fault would strike both operations, and its report would
        be a sum of bit patterns.

    >>> merge([Observations(sites=("conv1",)), Observations(sites=("conv2",))]).sites
    ('conv1', 'conv2')
    >>> merge([Observations(sites=("conv1",)), Observations(sites=("conv1",))])
    Traceback (most recent call last):
    ValueError: site 'conv1' occurs twice: a fault would strike both; give each layer with sites its own name
    """
    struck = None
    tensors: dict[str, dict[str, Any]] = {}
    sites: dict[str, None] = {}  # ordered
    maxima: dict[str, jax.Array] = {}
    parts: dict[str, jax.Array] = {}
    rows: dict[str, jax.Array] = {}
    for one in observations:
        maxima, parts, rows = maxima | one.maxima, parts | one.reduced, rows | one.rows
        if one.struck is not None:
            struck = one.struck if struck is None else jax.tree.map(jnp.add, struck, one.struck)
        for kind, named in one.tensors.items():
            tensors.setdefault(kind, {}).update(named)
        for site in one.sites:
            if site in sites:
                problem = f"site {site!r} occurs twice: a fault would strike both"
                raise ValueError(f"{problem}; give each layer with sites its own name")
            sites[site] = None
    return Observations(struck, tensors, tuple(sites), maxima, parts, rows)


def observed(ctx: Context, kind: str, name: str, tensor: jax.Array) -> Observations:
    """`tensor` as an observation, and its reductions, as far as they were asked for.  A loss scale is taken out.

    >>> ctx = Context(jax.random.key(0), jnp.arange(1), observe=frozenset({"gradients"}))
    >>> observed(ctx, "gradients", "bn1", jnp.ones(2)).tensors
    {'gradients': {'bn1': Array([1., 1.], dtype=float32)}}
    """
    if ctx.precision is not None and kind == "gradients":
        tensor = wide(tensor) / ctx.precision.loss_scale
    return Observations(
        tensors={kind: {name: tensor}} if kind in ctx.observe else {},
        reduced=reduced(ctx.reduce, kind, name, tensor),
    )


ForwardResult = tuple[jax.Array, Stats, Cache, Observations]
BackwardResult = tuple[jax.Array, Params, Observations]


class Init(Protocol):
    """Initial parameters and statistics of a layer."""

    def __call__(self, key: Key, shape: Shape, /) -> tuple[Initial, Initial]:
        """Draw them on the host.

        Args:
          key: integers, such as the seed, to which a layer adds its name.  With None nothing is
            drawn: leaves may then be shapes alone.
          shape: of the layer's input, `[R, b, …]`.

        Returns:
          The layer's parameters and its statistics, each `{layer: {name: array}}`.
        """


class Forward(Protocol):
    """The forward pass of a layer."""

    def __call__(self, params: Params, stats: Stats, x: jax.Array, ctx: Context, /) -> ForwardResult:
        """Compute the output.

        Args:
          params, stats: of the entire network; a layer reads its own by name.
          x: [R, b, …].
          ctx: what else the pass depends on.

        Returns:
          The output [R, b, …]; this layer's statistics (new ones in training, `{}` if unchanged);
          what its backward pass needs; observations.
        """


class Backward(Protocol):
    """The backward pass of a layer."""

    def __call__(self, params: Params, cache: Cache, dy: jax.Array, ctx: Context, /) -> BackwardResult:
        """Compute the gradients.

        Args:
          params: of the entire network.
          cache: from this layer's forward pass.
          dy: gradient of the loss with respect to the output, [R, b, …].
          ctx: as in the forward pass.

        Returns:
          dx, the gradient with respect to the input, [R, b, …] (arbitrary if `ctx.input_gradient`
          is False); the gradients of this layer's parameters, summed over the device's workers (of
          some rows alone, where `Observations.rows` says which); observations.
        """


class Layer(NamedTuple):
    """A layer, or a whole network: three pure functions.

    `params` and `stats` are the two-level dicts of the entire network, from which a layer reads its
    own by name.  Activations have the workers of the device as leading axis, `[R, b, …]`.
    `takes` is the dtype of the input, for which shapes are traced; `parts` are the layers of a chain.

    >>> from fault_injection.models.layers.activation import relu
    >>> layer, ctx = relu(), Context(jax.random.key(0), jnp.arange(1))
    >>> y, stats, cache, _ = layer.forward({}, {}, jnp.array([[-1.0, 2.0]]), ctx)
    >>> dx, dparams, _ = layer.backward({}, cache, jnp.ones_like(y), ctx)
    >>> y.tolist(), dx.tolist()
    ([[0.0, 2.0]], [[0.0, 1.0]])
    """

    init: Init
    forward: Forward
    backward: Backward
    takes: str = "float32"
    parts: "tuple[Layer, ...]" = ()


def stateless(key: Key, shape: Shape) -> tuple[Initial, Initial]:
    """The `init` of a layer that has neither parameters nor statistics.

    >>> stateless((0,), (1, 4))
    ({}, {})
    """
    del key, shape
    return {}, {}
