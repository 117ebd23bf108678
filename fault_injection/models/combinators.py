"""Combinators: layers made of layers.  They own both passes, so that a network is written once.

Layers of equal name share their parameters: their gradients add up, and each updates the running
statistics that the one before it has left.  A layer with sites cannot be shared (`layer.merge`).
"""

from collections.abc import Sequence
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np

from .arrays import Cache, Initial, Key, Params, Shape, Stats
from .isolation import only_shapes
from .layer import BackwardResult, Context, ForwardResult, Layer, Observations, merge
from .precision import HISTORY, MAXIMA, wide
from .precisions import PRECISIONS, Precision


def chain(*layers: Layer) -> Layer:
    """One layer after another.

    >>> from fault_injection.models.layers.activation import relu
    >>> from fault_injection.models.layers.dense import dense
    >>> network = chain(dense("hidden", 16), relu(), dense("logits", 10))
    >>> params, _ = network.init((0,), (1, 8, 4))
    >>> {name: leaves["kernel"].shape for name, leaves in params.items()}
    {'hidden': (4, 16), 'logits': (16, 10)}
    """

    def init(key: Key, shape: Shape) -> tuple[Initial, Initial]:
        params: Initial = {}
        stats: Initial = {}
        for layer in layers:
            p, s = layer.init(key, shape)
            params |= p
            stats |= s
            shape = output_shape(layer, params, stats, shape)  # it may read what an earlier layer has made
        return params, stats

    def forward(params: Params, stats: Stats, x: jax.Array, ctx: Context) -> ForwardResult:
        new_stats: Stats = {}
        caches, observations = [], []
        for layer in layers:
            x, s, cache, o = layer.forward(params, stats | new_stats, x, ctx)
            new_stats |= s
            caches.append(cache)
            observations.append(o)
        return x, new_stats, caches, merge(observations)

    def backward(params: Params, cache: Cache, dy: jax.Array, ctx: Context) -> BackwardResult:
        dparams: Params = {}
        observations = []
        for i in reversed(range(len(layers))):
            # What is before the first layer alone decides whether anybody reads its input gradient.
            here = ctx if i == 0 else replace(ctx, input_gradient=True)
            dy, d, o = layers[i].backward(params, cache[i], dy, here)
            dparams = added(dparams, d)
            observations.append(o)
        return dy, dparams, merge(observations)

    return Layer(init, forward, backward, layers[0].takes if layers else "float32", layers)


def init_all(layers: Sequence[Layer], key: Key, shapes: Sequence[Shape]) -> tuple[Initial, Initial]:
    """Initial parameters and statistics of layers side by side, each with an input of its own shape."""
    params: Initial = {}
    stats: Initial = {}
    for layer, shape in zip(layers, shapes, strict=True):
        p, s = layer.init(key, shape)
        params, stats = params | p, stats | s
    return params, stats


def forward_all(
    layers: Sequence[Layer], params: Params, stats: Stats, inputs: Sequence[jax.Array], ctx: Context
) -> tuple[list[jax.Array], Stats, list[Cache], Observations]:
    """The forward passes of layers side by side, each with an input of its own: their outputs and their caches."""
    new_stats: Stats = {}
    outputs, caches, observations = [], [], []
    for layer, x in zip(layers, inputs, strict=True):
        y, s, cache, o = layer.forward(params, stats | new_stats, x, ctx)
        new_stats |= s
        outputs.append(y)
        caches.append(cache)
        observations.append(o)
    return outputs, new_stats, caches, merge(observations)


def residual(main: Layer, shortcut: Layer | None = None) -> Layer:
    """`main(x) + shortcut(x)`; without a shortcut, `main(x) + x`.

    >>> from fault_injection.models.layers.activation import relu
    >>> y, *_ = residual(relu()).forward({}, {}, jnp.array([[-1.0, 2.0]]), Context(jax.random.key(0), jnp.arange(1)))
    >>> y.tolist()
    [[-1.0, 4.0]]
    """

    branches = [main] if shortcut is None else [main, shortcut]

    def init(key: Key, shape: Shape) -> tuple[Initial, Initial]:
        return init_all(branches, key, [shape] * len(branches))

    def forward(params: Params, stats: Stats, x: jax.Array, ctx: Context) -> ForwardResult:
        outputs, new_stats, caches, observations = forward_all(branches, params, stats, [x] * len(branches), ctx)
        return outputs[0] + (x if shortcut is None else outputs[1]), new_stats, caches, observations

    def backward(params: Params, cache: Cache, dy: jax.Array, ctx: Context) -> BackwardResult:
        ctx = replace(ctx, input_gradient=True)
        dx, dparams, observations = main.backward(params, cache[0], dy, ctx)
        if shortcut is None:
            return dx + dy, dparams, observations
        dx_shortcut, d, o = shortcut.backward(params, cache[1], dy, ctx)
        return dx + dx_shortcut, added(dparams, d), merge([observations, o])

    return Layer(init, forward, backward)


def concatenated(main: Layer) -> Layer:
    """`x` and `main(x)` side by side, along channels.

    >>> from fault_injection.models.layers.activation import relu
    >>> ctx = Context(jax.random.key(0), jnp.arange(1))
    >>> y, *_ = concatenated(relu()).forward({}, {}, jnp.array([[-1.0, 2.0]]), ctx)
    >>> y.tolist()
    [[-1.0, 2.0, 0.0, 2.0]]
    """

    def forward(params: Params, stats: Stats, x: jax.Array, ctx: Context) -> ForwardResult:
        y, new_stats, cache, observations = main.forward(params, stats, x, ctx)
        return jnp.concatenate([x, y], axis=-1), new_stats, (cache, x.shape[-1]), observations

    def backward(params: Params, cache: Cache, dy: jax.Array, ctx: Context) -> BackwardResult:
        main_cache, channels = cache
        ctx = replace(ctx, input_gradient=True)
        dx, dparams, observations = main.backward(params, main_cache, dy[..., channels:], ctx)
        return dy[..., :channels] + dx, dparams, observations

    return Layer(main.init, forward, backward)


def gated(gate: Layer) -> Layer:
    """`x · gate(x)`; the gate has one factor per channel: [R,b,1,1,C] for x [R,b,H,W,C].

    >>> from fault_injection.models.layers.pooling import global_average
    >>> ctx = Context(jax.random.key(0), jnp.arange(1))
    >>> y, *_ = gated(global_average("mean", keep_map=True)).forward({}, {}, jnp.full((1, 1, 2, 2, 1), 3.0), ctx)
    >>> y.reshape(-1).tolist()
    [9.0, 9.0, 9.0, 9.0]
    """

    def forward(params: Params, stats: Stats, x: jax.Array, ctx: Context) -> ForwardResult:
        factor, new_stats, cache, observations = gate.forward(params, stats, x, ctx)
        return x * factor, new_stats, (x, factor, cache), observations

    def backward(params: Params, cache: Cache, dy: jax.Array, ctx: Context) -> BackwardResult:
        x, factor, gate_cache = cache
        dfactor = jnp.sum(dy * x, (2, 3), keepdims=True)
        dx, dparams, observations = gate.backward(params, gate_cache, dfactor, replace(ctx, input_gradient=True))
        return dy * factor + dx, dparams, observations

    return Layer(gate.init, forward, backward)


def multiplied(one: Layer, other: Layer) -> Layer:
    """`one(x) · other(x)`, element by element.

    >>> from fault_injection.models.layers.activation import relu
    >>> both, ctx = multiplied(relu(), relu(2.0)), Context(jax.random.key(0), jnp.arange(1))
    >>> both.forward({}, {}, jnp.array([[-1.0, 3.0]]), ctx)[0].tolist()
    [[0.0, 18.0]]
    """

    def init(key: Key, shape: Shape) -> tuple[Initial, Initial]:
        return init_all([one, other], key, [shape, shape])

    def forward(params: Params, stats: Stats, x: jax.Array, ctx: Context) -> ForwardResult:
        (y, z), new_stats, caches, observations = forward_all([one, other], params, stats, [x, x], ctx)
        return y * z, new_stats, (y, z, *caches), observations

    def backward(params: Params, cache: Cache, dy: jax.Array, ctx: Context) -> BackwardResult:
        y, z, one_cache, other_cache = cache
        ctx = replace(ctx, input_gradient=True)
        dx_other, dparams, observations = other.backward(params, other_cache, dy * y, ctx)
        dx_one, d, o = one.backward(params, one_cache, dy * z, ctx)
        return dx_one + dx_other, added(dparams, d), merge([observations, o])

    return Layer(init, forward, backward)


def in_float32(layer: Layer) -> Layer:
    """A layer that computes in float32 at least, whatever the format of what comes in; its output has that again.

    >>> from fault_injection.models.layers.activation import swish
    >>> ctx = Context(jax.random.key(0), jnp.arange(1))
    >>> in_float32(swish()).forward({}, {}, jnp.ones((1, 1), jnp.bfloat16), ctx)[0].dtype
    dtype(bfloat16)
    """

    def forward(params: Params, stats: Stats, x: jax.Array, ctx: Context) -> ForwardResult:
        y, new_stats, cache, observations = layer.forward(params, stats, wide(x), ctx)
        return y.astype(x.dtype), new_stats, cache, observations

    def backward(params: Params, cache: Cache, dy: jax.Array, ctx: Context) -> BackwardResult:
        dx, dparams, observations = layer.backward(params, cache, wide(dy), ctx)
        return dx.astype(dy.dtype), dparams, observations

    return Layer(layer.init, forward, backward, layer.takes)


def in_precision(network: Layer, precision: Precision) -> Layer:
    """A network whose pass has the formats of `precision`; input, output and parameters stay float32.

    Where a format needs scales, there is a statistic `maxima` for each product: what
    `Context.maxima` is.  The step brings it up to date with `Observations.maxima` of both passes.

    >>> from fault_injection.models.layers.dense import dense
    >>> from fault_injection.models.precisions import PRECISIONS
    >>> network, ctx = in_precision(dense("fc", 2), PRECISIONS["float8"]), Context(jax.random.key(0), jnp.arange(1))
    >>> params, stats = network.init((0,), (1, 4, 3))
    >>> sorted(stats["maxima"]), network.forward(params, stats, jnp.ones((1, 4, 3)), ctx)[0].dtype
    (['fc', 'fc_grad_in', 'fc_grad_wt'], dtype('float32'))
    """
    if precision == PRECISIONS["float32"]:
        return network

    def within(ctx: Context, stats: Stats | None) -> Context:
        return replace(ctx, precision=precision, maxima=None if stats is None else stats.get(MAXIMA))

    def init(key: Key, shape: Shape) -> tuple[Initial, Initial]:
        params, stats = network.init(key, shape)
        if precision.forward is None:
            return params, stats

        def passes(params: Params, stats: Stats, x: jax.Array) -> dict[str, jax.Array]:
            ctx = Context(key=jax.random.key(0), workers=jnp.arange(shape[0], dtype=jnp.int32))
            y, _, cache, at_forward = forward(params, stats, x, ctx)
            _, _, at_backward = backward(params, cache, y, ctx)
            return at_forward.maxima | at_backward.maxima

        found = jax.eval_shape(passes, params, stats, jax.ShapeDtypeStruct(shape, network.takes))
        return params, stats | {MAXIMA: {site: np.zeros((2, HISTORY), np.float32) for site in sorted(found)}}

    def forward(params: Params, stats: Stats, x: jax.Array, ctx: Context) -> ForwardResult:
        if jnp.issubdtype(x.dtype, jnp.floating):
            x = x.astype(precision.held)
        y, new_stats, cache, observations = network.forward(params, stats, x, within(ctx, stats))
        return wide(y), new_stats, (cache, stats), observations

    def backward(params: Params, cache: Cache, dy: jax.Array, ctx: Context) -> BackwardResult:
        cache, stats = cache
        dy = (dy * precision.loss_scale).astype(precision.held)
        dx, dparams, observations = network.backward(params, cache, dy, within(ctx, stats))
        return wide(dx) / precision.loss_scale, jax.tree.map(lambda d: d / precision.loss_scale, dparams), observations

    return Layer(init, forward, backward, network.takes)


def added(one: Params, other: Params) -> Params:
    """Gradients of two parts of a network as one: their sum where both parts read a layer's parameters."""
    shared = {name: jax.tree.map(jnp.add, one[name], other[name]) for name in one if name in other}
    return one | other | shared


def output_shape(layer: Layer, params: Initial, stats: Initial, shape: Shape) -> Shape:
    """The shape of a layer's output, from shapes of the network's parameters and statistics and of its input."""

    def output(params: Params, stats: Stats, x: jax.Array) -> jax.Array:
        ctx = Context(key=jax.random.key(0), workers=jnp.arange(shape[0], dtype=jnp.int32))
        return layer.forward(params, stats, x, ctx)[0]

    with only_shapes():
        return jax.eval_shape(output, params, stats, jax.ShapeDtypeStruct(shape, layer.takes)).shape
