"""A perceptron of two layers, whose step eight devices share: by `shard_map`, or as the compiler does it."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

jax.config.update("jax_num_cpu_devices", 8)  # before JAX computes
optimizer = optax.sgd(0.1, momentum=0.9)


def state():
    random = np.random.default_rng(0)
    params = {
        "hidden": {"w": random.normal(0, 1 / 8, (64, 128)).astype(np.float32), "b": np.zeros(128, np.float32)},
        "out": {"w": random.normal(0, 1 / 11, (128, 10)).astype(np.float32), "b": np.zeros(10, np.float32)},
    }
    return {"params": params, "opt": optimizer.init(params)}


def batch():
    random = np.random.default_rng(1)
    return {"image": random.random((64, 64), np.float32) - 0.3, "label": random.integers(10, size=64, dtype=np.int32)}


def measures(params, batch):
    h = jax.nn.relu(batch["image"] @ params["hidden"]["w"] + params["hidden"]["b"])
    return judged(h @ params["out"]["w"] + params["out"]["b"], batch["label"])


def judged(logits, labels):
    loss = optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()
    return loss, {"loss": loss, "accuracy": jnp.mean((jnp.argmax(logits, -1) == labels).astype(jnp.float32))}


def trained(state, grads):
    updates, opt = optimizer.update(grads, state["opt"])
    return {"params": optax.apply_updates(state["params"], updates), "opt": opt}


def mesh():
    return jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,))


def mapped_step():
    """Each device has its part of the batch."""

    def mean_loss(params, batch):
        loss, metrics = measures(params, batch)
        return jax.lax.pmean(loss, "data"), metrics

    @jax.jit
    @functools.partial(jax.shard_map, mesh=mesh(), in_specs=(P(), P("data")), out_specs=P())
    def step(state, batch):
        (_, metrics), grads = jax.value_and_grad(mean_loss, has_aux=True)(state["params"], batch)
        return trained(state, grads), jax.lax.pmean(metrics, "data")

    return step


def automatic_step(measures=measures):
    """The compiler shares it out: it is told where arrays lie, and nothing else."""
    everywhere, in_parts = NamedSharding(mesh(), P()), NamedSharding(mesh(), P("data"))

    @functools.partial(jax.jit, in_shardings=(everywhere, in_parts), out_shardings=everywhere)
    def step(state, batch):
        (_, metrics), grads = jax.value_and_grad(measures, has_aux=True)(state["params"], batch)
        return trained(state, grads), metrics

    return step
