"""A small Llama in plain JAX: layers in a scan, each under a checkpoint, computed in bfloat16."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax

from fault_injection.data.shakespeare import VOCABULARY, load_shakespeare

LAYERS, WIDTH, HEADS, HIDDEN, CONTEXT, BATCH = 2, 64, 4, 160, 64, 16
STEPS, EPOCHS = 20, 4
optimizer = optax.adamw(optax.warmup_cosine_decay_schedule(0.0, 6e-3, 10, STEPS * EPOCHS), weight_decay=0.01)


def init_params(seed):
    keys = iter(jax.random.split(jax.random.key(seed), 9))

    def matrix(*shape):
        return jax.random.normal(next(keys), shape) * shape[-2] ** -0.5

    return {
        "embed": jax.random.normal(next(keys), (VOCABULARY, WIDTH)) * 0.02,
        "layers": {
            "attention_norm": jnp.ones((LAYERS, WIDTH)),
            "wq": matrix(LAYERS, WIDTH, WIDTH),
            "wk": matrix(LAYERS, WIDTH, WIDTH),
            "wv": matrix(LAYERS, WIDTH, WIDTH),
            "wo": matrix(LAYERS, WIDTH, WIDTH),
            "mlp_norm": jnp.ones((LAYERS, WIDTH)),
            "gate": matrix(LAYERS, WIDTH, HIDDEN),
            "up": matrix(LAYERS, WIDTH, HIDDEN),
            "down": matrix(LAYERS, HIDDEN, WIDTH),
        },
        "norm": jnp.ones(WIDTH),
        "head": matrix(WIDTH, VOCABULARY),
    }


def rms_norm(x, gain):
    return (x * jax.lax.rsqrt(jnp.mean(jnp.square(x), -1, keepdims=True) + 1e-5) * gain).astype(x.dtype)


def rotary(x):  # [b, t, heads, d]
    half = x.shape[-1] // 2
    angles = np.arange(x.shape[1])[:, None] * 10_000.0 ** (-np.arange(half) / half)
    cos, sin = (jnp.asarray(f(angles), x.dtype)[:, None] for f in (np.cos, np.sin))
    a, b = jnp.split(x, 2, -1)
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], -1)


@functools.partial(jax.checkpoint, policy=None)
def block(x, p):
    p = jax.tree.map(lambda w: w.astype(x.dtype), p)
    h = rms_norm(x, p["attention_norm"])
    q, k, v = (jnp.einsum("btc,cd->btd", h, p[w]).reshape(*h.shape[:2], HEADS, -1) for w in ("wq", "wk", "wv"))
    scores = jnp.einsum("bqhd,bkhd->bhqk", rotary(q), rotary(k)).astype(jnp.float32) * q.shape[-1] ** -0.5
    scores = jnp.where(np.tri(x.shape[1], dtype=bool), scores, -1e30)
    mixed = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores).astype(x.dtype), v)
    x = x + mixed.reshape(x.shape) @ p["wo"]
    h = rms_norm(x, p["mlp_norm"])
    return x + (jax.nn.silu(h @ p["gate"]) * (h @ p["up"])) @ p["down"]


def logits(params, tokens):
    x = params["embed"].astype(jnp.bfloat16)[tokens]
    x, _ = jax.lax.scan(lambda x, p: (block(x, p), None), x, params["layers"])
    return (rms_norm(x, params["norm"].astype(x.dtype)) @ params["head"].astype(x.dtype)).astype(jnp.float32)


def loss_and_accuracy(params, tokens):
    out, targets = logits(params, tokens[:, :-1]), tokens[:, 1:]
    loss = optax.softmax_cross_entropy_with_integer_labels(out, targets).mean()
    return loss, jnp.mean((jnp.argmax(out, -1) == targets).astype(jnp.float32))


@jax.jit
def train_step(state, tokens):
    (loss, accuracy), grads = jax.value_and_grad(loss_and_accuracy, has_aux=True)(state["params"], tokens)
    updates, opt = optimizer.update(grads, state["opt"], state["params"])
    return {"params": optax.apply_updates(state["params"], updates), "opt": opt}, {"loss": loss, "accuracy": accuracy}


text = load_shakespeare(None, VOCABULARY, CONTEXT)


def pieces(part, random, count):
    starts = random.integers(0, len(part) - CONTEXT - 1, count)
    return part[starts[:, None] + np.arange(CONTEXT + 1)].astype(np.int32)


@jax.jit
def evaluated(params, tokens):
    loss, accuracy = loss_and_accuracy(params, tokens)
    return {"loss": loss, "accuracy": accuracy}


# Above: the training as it was.  Below: what strikes it.


def training(seed: int = 0):
    from fault_injection import Measure, Training

    def init():
        params = init_params(seed)
        return {"params": params, "opt": optimizer.init(params)}

    held_out = pieces(text.test, np.random.default_rng(2**31), 64)
    return Training(
        init=init,
        step=train_step,
        batch=lambda epoch, step: pieces(text.train, np.random.default_rng([seed, epoch, step]), BATCH),
        steps_per_epoch=STEPS,
        epochs=EPOCHS,
        evaluate=lambda state: evaluated(state["params"], held_out),
        metric=Measure("accuracy", "higher", chance=0.15, tolerance=0.01, limits=(0.0, 1.0)),
    )
