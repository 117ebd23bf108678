"""Flax's example `ogbg_molpcba`: a graph convolutional network; the graphs are drawn here."""

import jax
import jraph
import numpy as np
from others import module

from fault_injection import Measure, Training

NODES, BATCH, STEPS, EPOCHS = 8, 16, 20, 4
train = module("flax/examples/ogbg_molpcba", "train")
config = module("flax/examples/ogbg_molpcba/configs", "default").get_config()
config.update(latent_size=32, message_passing_steps=2, num_classes=1)


def drawn(random, count):
    """Random graphs, each with a question: are there more edges between alike nodes than between others?"""
    graphs = []
    for _ in range(count):
        kinds = random.integers(0, 2, NODES)
        senders, receivers = random.integers(0, NODES, (2, 2 * NODES))
        alike = float(np.mean(kinds[senders] == kinds[receivers]) > 0.5)
        graphs.append(
            jraph.GraphsTuple(
                nodes=np.eye(2, dtype=np.float32)[kinds],
                edges=np.ones((2 * NODES, 1), np.float32),
                senders=senders.astype(np.int32),
                receivers=receivers.astype(np.int32),
                globals=np.array([[alike]], np.float32),
                n_node=np.array([NODES], np.int32),
                n_edge=np.array([2 * NODES], np.int32),
            )
        )
    return jraph.pad_with_graphs(jraph.batch_np(graphs), NODES * count + 1, 2 * NODES * count + 1, count + 1)


def training(seed: int = 0):
    keys = dict(zip(("params", "dropout"), jax.random.split(jax.random.key(seed)), strict=True))
    held_out = drawn(np.random.default_rng([seed, EPOCHS]), 128)

    def init():
        example = train.replace_globals(held_out)
        params = jax.jit(train.create_model(config, deterministic=True).init)(keys["params"], example)
        network = train.create_model(config, deterministic=False)
        return train.train_state.TrainState.create(
            apply_fn=network.apply, params=params, tx=train.create_optimizer(config)
        )

    def step(state, graphs):
        state, told = train.train_step(state, graphs, {"dropout": jax.random.fold_in(keys["dropout"], state.step)})
        return state, {"loss": told.loss.compute()}

    def evaluate(state):
        quiet = state.replace(apply_fn=train.create_model(config, deterministic=True).apply)
        return {"loss": train.evaluate_step(quiet, held_out).loss.compute()}

    return Training(
        init=init,
        step=step,
        batch=lambda epoch, step: drawn(np.random.default_rng([seed, epoch, step]), BATCH),
        steps_per_epoch=STEPS,
        epochs=EPOCHS,
        evaluate=evaluate,
        metric=Measure("loss", "lower", chance=np.log(2), tolerance=0.02),
    )
