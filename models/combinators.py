"""Combinators: layers made of layers.  They own both passes, so that a network is written once.

Layers of equal name share their parameters: the gradients add, and each updates the running
statistics that the one before it has left.
"""

import jax
import jax.numpy as jnp

from .layer import Context, Layer, Params, merge


def chain(*layers: Layer) -> Layer:
    """One layer after another."""

    def init(key, shape):
        params, stats = {}, {}
        for layer in layers:
            p, s = layer.init(key, shape)
            params |= p
            stats |= s
            shape = _output_shape(layer, p, s, shape)
        return params, stats

    def forward(params, stats, x, ctx):
        new_stats, caches, observations = {}, [], []
        for layer in layers:
            x, s, cache, o = layer.forward(params, stats | new_stats, x, ctx)
            new_stats |= s
            caches.append(cache)
            observations.append(o)
        return x, new_stats, caches, merge(observations)

    def backward(params, cache, dy, ctx):
        dparams, observations = {}, []
        for layer, layer_cache in zip(reversed(layers), reversed(cache), strict=True):
            dy, d, o = layer.backward(params, layer_cache, dy, ctx)
            dparams = _added(dparams, d)
            observations.append(o)
        return dy, dparams, merge(observations)

    return Layer(init, forward, backward)


def residual(main: Layer, shortcut: Layer | None = None) -> Layer:
    """`main(x) + shortcut(x)`; without a shortcut, `main(x) + x`."""

    def init(key, shape):
        params, stats = main.init(key, shape)
        if shortcut is not None:
            p, s = shortcut.init(key, shape)
            params, stats = params | p, stats | s
        return params, stats

    def forward(params, stats, x, ctx):
        y, new_stats, main_cache, observations = main.forward(params, stats, x, ctx)
        if shortcut is None:
            return y + x, new_stats, (main_cache, None), observations
        z, s, shortcut_cache, o = shortcut.forward(params, stats | new_stats, x, ctx)
        return y + z, new_stats | s, (main_cache, shortcut_cache), merge([observations, o])

    def backward(params, cache, dy, ctx):
        main_cache, shortcut_cache = cache
        dx, dparams, observations = main.backward(params, main_cache, dy, ctx)
        if shortcut is None:
            return dx + dy, dparams, observations
        dx_shortcut, d, o = shortcut.backward(params, shortcut_cache, dy, ctx)
        return dx + dx_shortcut, _added(dparams, d), merge([observations, o])

    return Layer(init, forward, backward)


def concatenated(main: Layer) -> Layer:
    """`x` and `main(x)` side by side, along channels."""

    def forward(params, stats, x, ctx):
        y, new_stats, cache, observations = main.forward(params, stats, x, ctx)
        return jnp.concatenate([x, y], axis=-1), new_stats, (cache, x.shape[-1]), observations

    def backward(params, cache, dy, ctx):
        main_cache, channels = cache
        dx, dparams, observations = main.backward(params, main_cache, dy[..., channels:], ctx)
        return dy[..., :channels] + dx, dparams, observations

    return Layer(main.init, forward, backward)


def gated(gate: Layer) -> Layer:
    """`x · gate(x)`; the gate has one factor a channel: [R,b,1,1,C] for x [R,b,H,W,C]."""

    def forward(params, stats, x, ctx):
        factor, new_stats, cache, observations = gate.forward(params, stats, x, ctx)
        return x * factor, new_stats, (x, factor, cache), observations

    def backward(params, cache, dy, ctx):
        x, factor, gate_cache = cache
        dfactor = jnp.sum(dy * x, (2, 3), keepdims=True)
        dx, dparams, observations = gate.backward(params, gate_cache, dfactor, ctx)
        return dy * factor + dx, dparams, observations

    return Layer(gate.init, forward, backward)


def _added(one: Params, other: Params) -> Params:
    """Gradients of two parts of a network as one; where both have read a layer's parameters, their sum."""
    shared = {name: jax.tree.map(jnp.add, one[name], other[name]) for name in one if name in other}
    return one | other | shared


def _output_shape(layer, params, stats, shape):
    def output(params, stats, x):
        ctx = Context(key=jax.random.key(0), workers=jax.numpy.arange(shape[0]))
        return layer.forward(params, stats, x, ctx)[0]

    return jax.eval_shape(output, params, stats, jax.ShapeDtypeStruct(shape, "float32")).shape
