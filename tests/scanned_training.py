"""A training of one's own with layers in a scan, forward only; and the same written out, for a test to see it whole."""

import jax
import jax.numpy as jnp
import numpy as np
from own_steps import SCANNED, dot, plain, scanned_state, scanned_step

STEPS = 4
PLAIN = plain(SCANNED)


def rows(step):
    return np.random.default_rng(step).standard_normal((5, 4), np.float32)


def stepped(product=PLAIN):
    inner = scanned_step(product)

    def step(state, batch):
        new, metrics = inner(state, batch)
        return jax.tree.map(lambda old, now: old + 0.01 * jnp.tanh(now - old), state, new), metrics

    return step


def whole(product):
    """Every product of that step, of all turns: `(state, batch) -> {site: [turns,…]}`."""

    def layer(x, given):
        turn, up, down = given
        first = product("forward:up", turn, x, up)
        second = product("forward:down", turn, jnp.tanh(first), down)
        return x + second, (first, second)

    def run(state, batch):
        _, found = jax.lax.scan(layer, batch, (jnp.arange(3), state["up"], state["down"]))
        return dict(zip(("forward:up", "forward:down"), found, strict=True))

    return run


def training():
    from fault_injection import Measure, Training

    return Training(
        init=scanned_state,
        step=stepped(),
        batch=lambda epoch, step: rows(step),
        steps_per_epoch=STEPS,
        epochs=2,
        evaluate=lambda state: {"loss": jnp.sum(dot(state["up"][0].T, state["up"][0]) ** 2)},
        metric=Measure("loss", "lower", chance=1e3, tolerance=1.0),
    )
