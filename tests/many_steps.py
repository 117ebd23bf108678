"""Training steps of many kinds, small: what names of sites must tell apart, as gradients that share what they read.

Each function returns a step, its state and its batch.  Metrics have `seen`: the parameters as the step has them one
after the other, where it has more than those at its end.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax

SEED = 5


def normal(*shape):
    return jnp.asarray(np.random.default_rng([SEED, *shape]).normal(size=shape) / 2, jnp.float32)


def sgd(params, grads, rate=0.1):
    return jax.tree.map(lambda p, g: p - rate * g, params, grads)


def descends(loss):
    """A step of gradient descent."""

    def step(params, batch):
        value, grads = jax.value_and_grad(loss)(params, batch)
        return sgd(params, grads), {"loss": value}

    return step


def mlp(p, x):
    return jnp.mean((jnp.tanh(x @ p["a"]) @ p["b"] - 1) ** 2)


MLP = {"a": (5, 4), "b": (4, 3)}


def params(**shapes):
    return {name: normal(*shape) for name, shape in shapes.items()}


def lstm():
    """Kernels of inputs and of the state for each gate, as in Flax."""
    gates = "ifgo"

    def loss(p, xs):
        def cell(carry, x):
            h, c = carry
            i, f, g, o = (x @ p[f"i{gate}"] + h @ p[f"h{gate}"] + p[f"b{gate}"] for gate in gates)
            c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
            h = jax.nn.sigmoid(o) * jnp.tanh(c)
            return (h, c), h

        start = jnp.zeros((3, 4)), jnp.zeros((3, 4))
        return jnp.mean((lax.scan(cell, start, xs)[1] @ p["out"] - 1) ** 2)

    shapes = {f"i{g}": (5, 4) for g in gates} | {f"h{g}": (4, 4) for g in gates} | {f"b{g}": (4,) for g in gates}
    return descends(loss), params(**shapes, out=(4, 2)), normal(6, 3, 5)


def gru():
    """Unrolled, with a reset gate."""

    def loss(p, xs):
        h = jnp.zeros((3, 4))
        for x in xs:
            r, z = jax.nn.sigmoid(x @ p["xr"] + h @ p["hr"]), jax.nn.sigmoid(x @ p["xz"] + h @ p["hz"])
            h = (1 - z) * jnp.tanh(x @ p["xn"] + r * (h @ p["hn"])) + z * h
        return jnp.mean((h - 1) ** 2)

    return descends(loss), params(**dict.fromkeys(("xr", "xz", "xn", "hr", "hz", "hn"), (4, 4))), normal(3, 3, 4)


def parallel_block():
    """Attention and a perceptron beside each other, as in PaLM: all sums, all widths alike."""

    def block(h, p):
        q, k, v = (h @ p[name] for name in "qkv")
        return h + jax.nn.softmax(q @ k.T) @ v @ p["o"] + jax.nn.gelu(h @ p["up"]) @ p["down"]

    def loss(p, x):
        return jnp.mean((block(block(x @ p["in"], p["one"]), p["two"]) - 1) ** 2)

    layer = dict.fromkeys(("q", "k", "v", "o", "up", "down"), (4, 4))
    return descends(loss), params(**{"in": (5, 4)}) | {"one": params(**layer), "two": params(**layer)}, normal(6, 5)


def residual_sums():
    """Convolutions whose results are added, without a norm between."""

    def conv(x, k):
        return lax.conv_general_dilated(x, k, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))

    def loss(p, x):
        h = conv(x, p["stem"])
        for name in ("one", "two"):
            h = conv(jax.nn.relu(conv(h, p[name]["c1"])), p[name]["c2"]) + conv(h, p[name]["shortcut"])
        return jnp.mean((h - 1) ** 2)

    layer = {"c1": (3, 3, 4, 4), "c2": (3, 3, 4, 4), "shortcut": (3, 3, 4, 4)}
    layers = {"one": params(**layer), "two": params(**layer)}
    return descends(loss), params(stem=(3, 3, 3, 4)) | layers, normal(2, 4, 4, 3)


def one_sum():
    """Two layers that read the same input, and whose results are added: even their gradients are alike."""
    return descends(lambda p, x: jnp.mean((x @ p["a"] + x @ p["b"] - 1) ** 2)), params(a=(5, 4), b=(5, 4)), normal(6, 5)


def tied():
    def loss(p, tokens):
        h = jnp.tanh(p["embedding"][tokens] @ p["w"])
        return jnp.mean((h @ p["embedding"].T - 1) ** 2)

    return descends(loss), params(embedding=(7, 4), w=(4, 4)), jnp.array([1, 3, 3, 6])


def experts():
    def loss(p, x):
        chosen = jax.nn.softmax(x @ p["router"])
        h = jnp.einsum("te,td,edf->etf", chosen, x, p["up"])
        return jnp.mean((jnp.einsum("etf,efd->td", jnp.tanh(h), p["down"]) - 1) ** 2)

    return descends(loss), params(router=(4, 2), up=(2, 4, 4), down=(2, 4, 4)), normal(6, 4)


def sharpness_aware():
    def step(p, x):
        near = sgd(p, jax.grad(mlp)(p, x), -0.05)
        value, grads = jax.value_and_grad(mlp)(near, x)
        return sgd(p, grads), {"loss": value, "seen": (near,)}

    return step, params(**MLP), normal(6, 5)


def meta_learned():
    def step(p, x):
        def outer(p):
            fast = sgd(p, jax.grad(mlp)(p, x[:3]))
            return mlp(fast, x[3:]), fast

        (value, fast), grads = jax.value_and_grad(outer, has_aux=True)(p)
        return sgd(p, grads), {"loss": value, "seen": (fast,)}

    return step, params(**MLP), normal(6, 5)


def minibatches():
    """As PPO has them: several in one step, with Adam."""
    optimizer = optax.adam(0.1)

    def step(state, xs):
        p, opt, seen = state["params"], state["opt"], []
        for x in xs:
            value, grads = jax.value_and_grad(mlp)(p, x)
            updates, opt = optimizer.update(grads, opt, p)
            p = optax.apply_updates(p, updates)
            seen.append({"params": p})
        return {"params": p, "opt": opt}, {"loss": value, "seen": tuple(seen)}

    initial = params(**MLP)
    return step, {"params": initial, "opt": optimizer.init(initial)}, normal(2, 6, 5)


def adversaries():
    """The discriminator's step, then the generator's through the new discriminator."""

    def says(d, x):
        return jnp.mean(jnp.tanh(x @ d["one"]) @ d["two"])

    def makes(g, z):
        return jnp.tanh(z @ g["one"]) @ g["two"]

    def step(p, batch):
        g, d = p["g"], p["d"]
        fake = makes(g, batch["z"])
        d = sgd(d, jax.grad(lambda d: jax.nn.softplus(says(d, fake)) + jax.nn.softplus(-says(d, batch["x"])))(d))
        value, grads = jax.value_and_grad(lambda g: jax.nn.softplus(-says(d, makes(g, batch["z"]))))(g)
        after = says(d, makes(sgd(g, grads), batch["z"]))  # a forward pass that nothing differentiates
        return {"g": sgd(g, grads), "d": d}, {"loss": value, "after": after, "seen": ({"g": g, "d": d},)}

    return (
        step,
        {"g": params(one=(3, 4), two=(4, 4)), "d": params(one=(4, 4), two=(4, 1))},
        {"x": normal(6, 4), "z": normal(6, 3)},
    )


def adversarial():
    def step(p, x):
        moved = x + 0.1 * jnp.sign(jax.grad(mlp, 1)(p, x))
        value, grads = jax.value_and_grad(mlp)(p, moved)
        return sgd(p, grads), {"loss": value, "hit": mlp(p, moved)}

    return step, params(**MLP), normal(6, 5)


def accumulated():
    def step(p, xs):
        def one(total, x):
            value, grads = jax.value_and_grad(mlp)(p, x)
            return jax.tree.map(jnp.add, total, grads), value

        grads, values = lax.scan(one, jax.tree.map(jnp.zeros_like, p), xs)
        return sgd(p, grads), {"loss": jnp.mean(values)}

    return step, params(**MLP), normal(3, 6, 5)


def checkpointed():
    @jax.checkpoint
    def block(h, p):
        return h + jnp.tanh(h @ p["a"]) @ p["b"] + jnp.tanh(h @ p["c"]) @ p["d"], None

    def loss(p, x):
        return jnp.mean((lax.scan(block, x, p)[0] - 1) ** 2)

    return descends(loss), params(**dict.fromkeys("abcd", (3, 4, 4))), normal(5, 4)


def quantised(again=False):
    """Straight through a rounding, by a custom derivative.

    Args:
      again: whether the backward pass quantises anew, by rows, what the forward pass has kept.
    """

    def rounded(x, axis=None):
        scale = jnp.max(jnp.abs(x), axis, keepdims=axis is not None) / 127
        return jnp.round(x / scale) * scale

    @jax.custom_vjp
    def dense(x, w):
        return rounded(x) @ rounded(w)

    def backward(kept, dy):
        x, w = (rounded(one, 0) for one in kept) if again else map(rounded, kept)
        return rounded(dy, 1) @ w.T, x.T @ rounded(dy, 0)

    dense.defvjp(lambda x, w: (dense(x, w), (x, w)), backward)

    def loss(p, x):
        h = jnp.tanh(dense(x, p["a"]))
        return jnp.mean((dense(h, p["b"]) + dense(h, p["c"]) - 1) ** 2)

    return descends(loss), params(a=(5, 4), b=(4, 4), c=(4, 4)), normal(6, 5)


def low_rank(merged=False):
    """Adapters beside frozen weights, or added to them before they are used."""

    def loss(trained, frozen, x):
        h = x
        for name in ("one", "two"):
            w, a, b = frozen[name], trained[name]["lora_a"], trained[name]["lora_b"]
            h = jnp.tanh(h @ (w + a @ b) if merged else h @ w + (h @ a) @ b)
        return jnp.mean((h - 1) ** 2)

    def step(state, x):
        value, grads = jax.value_and_grad(loss)(state["trained"], state["frozen"], x)
        return {"frozen": state["frozen"], "trained": sgd(state["trained"], grads)}, {"loss": value}

    adapter = {"lora_a": (4, 2), "lora_b": (2, 4)}
    trained = {"one": params(**adapter), "two": params(**adapter)}
    return step, {"frozen": params(one=(4, 4), two=(4, 4)), "trained": trained}, normal(6, 4)


def optimized(optimizer):
    """A perceptron with an optimizer that multiplies."""

    optimizer = optax.with_extra_args_support(optimizer)

    def step(state, x):
        value, grads = jax.value_and_grad(mlp)(state["params"], x)
        more = {"value": value, "grad": grads, "value_fn": lambda p: mlp(p, x)}
        updates, opt = optimizer.update(grads, state["opt"], state["params"], **more)
        return {"params": optax.apply_updates(state["params"], updates), "opt": opt}, {"loss": value}

    initial = params(**MLP)
    return step, {"params": initial, "opt": optimizer.init(initial)}, normal(6, 5)


def ensemble():
    def step(p, x):
        values, grads = jax.vmap(jax.value_and_grad(mlp), (0, None))(p, x)
        return sgd(p, grads), {"loss": jnp.mean(values)}

    return step, params(a=(3, 5, 4), b=(3, 4, 3)), normal(6, 5)


def output_first():
    """Weights are output × input, and read as the first operand, as in Equinox; names are as in Haiku."""

    def loss(p, x):
        def one(x):
            h = p["mlp/~/linear_0"]["w"] @ x + p["mlp/~/linear_0"]["b"]
            return p["mlp/~/linear_1"]["w"] @ jnp.tanh(h) + p["mlp/~/skip"]["w"] @ jax.nn.relu(h)

        return jnp.mean((jax.vmap(one)(x) - 1) ** 2)

    one, two = params(w=(4, 5), b=(4,)), params(w=(4, 4))
    return descends(loss), {"mlp/~/linear_0": one, "mlp/~/linear_1": two, "mlp/~/skip": two}, normal(6, 5)


def clipped_and_decayed():
    """Decay is added to the gradient before the optimizer sees it; a clip mixes all gradients by one number."""
    return optimized(optax.chain(optax.clip_by_global_norm(1e3), optax.add_decayed_weights(0.1), optax.adam(0.1)))


def fused():
    """One product of two parameters that are put together, and a sum of a frozen weight and a trained one."""

    def step(state, x):
        def loss(p):
            h = jnp.tanh(x @ jnp.concatenate([p["q"], p["k"]], 1))
            return jnp.mean((h @ (state["base"] + p["delta"]) - 1) ** 2)

        value, grads = jax.value_and_grad(loss)(state["p"])
        return {"base": state["base"], "p": sgd(state["p"], grads)}, {"loss": value}

    return step, {"base": normal(8, 4), "p": params(q=(5, 4), k=(5, 4), delta=(8, 4))}, normal(6, 5)


def private(examples=16):
    """DP-SGD: a gradient of each example, whose products sum nothing; and then their mean."""

    def of_one(p, x):
        h = jax.nn.relu(jax.lax.conv(x[None], p["kernel"], (1, 1), "SAME"))
        return jnp.mean((h.mean((0, 2, 3)) @ p["head"] - 1) ** 2)

    def step(p, x):
        loss, grads = jax.vmap(jax.value_and_grad(of_one), (None, 0))(p, x)
        return sgd(p, jax.tree.map(lambda each: each.mean(0), grads)), {"loss": loss.mean()}

    return step, params(kernel=(4, 2, 3, 3), head=(4, 3)), normal(examples, 2, 6, 6)


def stacked():
    """One product of three parameters that are stacked."""

    def loss(p, x):
        q, k, v = jnp.einsum("bd,ndf->nbf", x, jnp.stack([p["q"], p["k"], p["v"]]))
        return jnp.mean((jnp.tanh(q) * k + v - 1) ** 2)

    return descends(loss), params(q=(5, 4), k=(5, 4), v=(5, 4)), normal(6, 5)


def stacked_blocks():
    """A list of blocks, whose parameters are stacked and scanned over."""

    def loss(p, x):
        stack = jax.tree.map(lambda *each: jnp.stack(each), *p["blocks"])
        x, _ = jax.lax.scan(lambda x, w: (x + jnp.tanh(x @ w["up"]) @ w["down"], None), x, stack)
        return jnp.mean((x - 1) ** 2)

    return descends(loss), {"blocks": [params(up=(5, 6), down=(6, 5)) for _ in range(4)]}, normal(6, 5)


STEPS = {
    "lstm": lstm,
    "gru": gru,
    "parallel block": parallel_block,
    "residual sums": residual_sums,
    "one sum": one_sum,
    "tied": tied,
    "experts": experts,
    "sharpness-aware": sharpness_aware,
    "meta-learned": meta_learned,
    "minibatches": minibatches,
    "adversaries": adversaries,
    "adversarial": adversarial,
    "accumulated": accumulated,
    "checkpointed": checkpointed,
    "quantised": quantised,
    "quantised again": functools.partial(quantised, again=True),
    "low rank": low_rank,
    "low rank, merged": functools.partial(low_rank, merged=True),
    "Muon": lambda: optimized(optax.contrib.muon(0.01)),
    "L-BFGS": lambda: optimized(optax.lbfgs(memory_size=2, linesearch=optax.scale_by_zoom_linesearch(2))),
    "ensemble": ensemble,
    "output first": output_first,
    "clipped and decayed": clipped_and_decayed,
    "fused": fused,
    "stacked": stacked,
    "stacked blocks": stacked_blocks,
}
