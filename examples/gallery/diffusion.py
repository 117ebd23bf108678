"""Equinox's example of score-based diffusion: a mixer that has a number among its fields, and whose step has a key."""

import equinox as eqx
import jax.random as jr
import numpy as np
import optax
from others import cells
from sklearn.datasets import load_digits

from fault_injection import Measure, Training

BATCH, STEPS, EPOCHS, UNTIL = 64, 22, 4, 10.0
notebook = cells("equinox/docs/examples/score_based_diffusion.ipynb", 1, 3, 5, 9)
optimizer = optax.adabelief(3e-4)
images = ((load_digits().images[:, None] - 4.9) / 6).astype(np.float32)  # of mean 0, deviation 1


def int_beta(t):
    return t


def weight(t):
    return 1 - notebook["jnp"].exp(-int_beta(t))


def training(seed: int = 0):
    start, key = jr.split(jr.PRNGKey(seed))

    def init():
        model = notebook["Mixer2d"]((1, 8, 8), 2, 32, 64, 64, 2, UNTIL, key=start)
        return {"model": model, "key": key, "opt_state": optimizer.init(eqx.filter(model, eqx.is_inexact_array))}

    def step(state, batch):
        given = weight, int_beta, batch, UNTIL, state["key"], state["opt_state"], optimizer.update
        loss, model, key, opt_state = notebook["make_step"](state["model"], *given)
        return {"model": model, "key": key, "opt_state": opt_state}, loss

    def batch(epoch, step):
        return images[np.random.default_rng([seed, epoch]).permutation(1437)[step * BATCH :][:BATCH]]

    @eqx.filter_jit
    def evaluate(state):
        return {"loss": notebook["batch_loss_fn"](state["model"], weight, int_beta, images[1437:], UNTIL, key)}

    return Training(init, step, batch, STEPS, EPOCHS, evaluate, Measure("loss", "lower", chance=2.0, tolerance=0.02))
