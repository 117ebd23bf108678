"""Data-parallel training under `shard_map`: the devices of this host, each with its part of the batch."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from sklearn.datasets import load_digits

BATCH, STEPS, EPOCHS = 64, 22, 4
jax.config.update("jax_num_cpu_devices", 8)  # before JAX computes
BLOCKS, WIDTH = 2, 64
optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(3e-3, weight_decay=1e-2))


def init_params(seed):
    keys = iter(jax.random.split(jax.random.key(seed), 2 * BLOCKS + 2))

    def layer(n, m, scale=1.0):
        return {"w": scale * jax.random.normal(next(keys), (n, m)) / n**0.5, "b": jnp.zeros(m)}

    def block():
        norm = {"scale": jnp.ones(WIDTH), "shift": jnp.zeros(WIDTH)}
        return {"norm": norm, "up": layer(WIDTH, 2 * WIDTH), "down": layer(2 * WIDTH, WIDTH, 0.5)}

    return {"embed": layer(64, WIDTH), "blocks": [block() for _ in range(BLOCKS)], "out": layer(WIDTH, 10)}


def normalised(x, norm):
    x = x - jnp.mean(x, -1, keepdims=True)
    return x * jax.lax.rsqrt(jnp.mean(x**2, -1, keepdims=True) + 1e-5) * norm["scale"] + norm["shift"]


def dense(x, layer):
    return x @ layer["w"] + layer["b"]


def measures(params, batch):
    h = dense(batch["image"], params["embed"])
    for block in params["blocks"]:
        h = h + dense(jax.nn.gelu(dense(normalised(h, block["norm"]), block["up"])), block["down"])
    logits = dense(h, params["out"])
    loss = optax.softmax_cross_entropy_with_integer_labels(logits, batch["label"]).mean()
    hits = jnp.argmax(logits, -1) == batch["label"]
    return loss, {"loss": loss, "accuracy": jnp.mean(hits.astype(jnp.float32))}


def mean_loss(params, batch):
    loss, metrics = measures(params, batch)
    return jax.lax.pmean(loss, "data"), metrics  # so each device has the gradients of the mean


@functools.cache
def make_step():
    mesh = jax.make_mesh((jax.device_count(),), ("data",), axis_types=(AxisType.Auto,))

    @jax.jit
    @functools.partial(jax.shard_map, mesh=mesh, in_specs=(P(), P("data")), out_specs=P())
    def train_step(state, batch):
        (_, metrics), grads = jax.value_and_grad(mean_loss, has_aux=True)(state["params"], batch)
        updates, opt = optimizer.update(grads, state["opt"], state["params"])
        return {"params": optax.apply_updates(state["params"], updates), "opt": opt}, jax.lax.pmean(metrics, "data")

    return train_step


@functools.cache
def make_automatic_step():
    """The same step, shared out by the compiler: it is told where arrays lie, and nothing else."""
    mesh = jax.make_mesh((jax.device_count(),), ("data",), axis_types=(AxisType.Auto,))
    everywhere, in_parts = NamedSharding(mesh, P()), NamedSharding(mesh, P("data"))

    @functools.partial(jax.jit, in_shardings=(everywhere, in_parts), out_shardings=everywhere)
    def train_step(state, batch):
        (_, metrics), grads = jax.value_and_grad(measures, has_aux=True)(state["params"], batch)
        updates, opt = optimizer.update(grads, state["opt"], state["params"])
        return {"params": optax.apply_updates(state["params"], updates), "opt": opt}, metrics

    return train_step


digits = load_digits()
images, labels = (digits.data / 16 - 0.3).astype(np.float32), digits.target.astype(np.int32)
held_out = {"image": images[1437:], "label": labels[1437:]}
evaluated = jax.jit(lambda params, batch: measures(params, batch)[1])


def get_batch(seed, epoch, step):
    order = np.random.default_rng([seed, epoch]).permutation(1437)[step * BATCH :][:BATCH]
    return {"image": images[order], "label": labels[order]}


# Above: the training as it was.  Below: what strikes it.


def training(seed: int = 0, make=make_step):
    from fault_injection import Measure, Training

    def init():
        params = init_params(seed)
        return {"params": params, "opt": optimizer.init(params)}

    return Training(
        init=init,
        step=make(),
        batch=lambda epoch, step: get_batch(seed, epoch, step),
        steps_per_epoch=STEPS,
        epochs=EPOCHS,
        evaluate=lambda state: evaluated(state["params"], held_out),
        metric=Measure("accuracy", "higher", chance=0.1, tolerance=0.02, limits=(0.0, 1.0)),
    )


def automatic(seed: int = 0):
    return training(seed, make_automatic_step)
