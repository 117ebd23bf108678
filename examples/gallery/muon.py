"""modded-nanogpt-jax's step, which sums gradients over small batches, with Optax's Muon as its optimizer."""

import jax
import numpy as np
import optax
from others import module

from fault_injection import Measure, Training
from fault_injection.data.shakespeare import VOCABULARY, load_shakespeare

CONTEXT, BATCH, SMALL, STEPS, EPOCHS = 32, 8, 2, 20, 4
train = module("modded-nanogpt-jax", "train")
config = train.TrainConfig(
    n_layer=2, embd_dim=64, head_dim=16, block_size=CONTEXT, max_seq_len=CONTEXT, vocab_size=VOCABULARY, mesh_shape=(1,)
)
text = load_shakespeare(None, VOCABULARY, CONTEXT)
optimizer = optax.contrib.muon(1e-2)


def windows(part, random, count):
    starts = random.integers(0, len(part) - CONTEXT - 1, (SMALL, count))
    tokens = part[starts[..., None] + np.arange(CONTEXT + 1)].astype(np.int32)
    return tokens[..., :-1], tokens[..., 1:]


def training(seed: int = 0):
    model = config.get_model_config()
    made, fixed = train.init_params(model, train.get_mesh(config), jax.random.key(seed))
    held_out = windows(text.test, np.random.default_rng([seed, EPOCHS]), 32)

    def step(state, batch):
        params, opt_state, told = train.train_step(model, state["params"], fixed, state["opt_state"], optimizer, *batch)
        return {"params": params, "opt_state": opt_state}, told

    evaluated = jax.jit(lambda params: train.eval_step(model, params, fixed, *held_out))
    return Training(
        init=lambda: {"params": made, "opt_state": optimizer.init(made)},
        step=step,
        batch=lambda epoch, step: windows(text.train, np.random.default_rng([seed, epoch, step]), BATCH),
        steps_per_epoch=STEPS,
        epochs=EPOCHS,
        evaluate=lambda state: {"loss": evaluated(state["params"])},
        metric=Measure("loss", "lower", chance=np.log(VOCABULARY), tolerance=0.05),
    )
