"""NanoDO, a decoder of Google DeepMind in bfloat16, with its own training step."""

import jax
import numpy as np
from jax.sharding import Mesh
from others import module

from fault_injection import Measure, Training
from fault_injection.data.shakespeare import VOCABULARY, load_shakespeare

CONTEXT, BATCH, STEPS, EPOCHS = 32, 16, 20, 4
train = module("nanodo", "nanodo.train")
config = module("nanodo", "nanodo.configs.default").get_config()
config.model.update(D=64, H=4, L=CONTEXT, N=2, F=256)
config.opt.update(num_train_steps=STEPS * EPOCHS, warmup_steps=STEPS)
text = load_shakespeare(None, VOCABULARY, CONTEXT)


def windows(part, random, count):
    starts = random.integers(0, len(part) - CONTEXT, count)
    return part[starts[:, None] + np.arange(CONTEXT)].astype(np.int32)


def training(seed: int = 0):
    model, get_loss_fn = train.model_factory.get_model_and_loss(config, VOCABULARY)
    held_out = windows(text.test, np.random.default_rng([seed, EPOCHS]), 64)

    def init():
        mesh = Mesh(np.array(jax.devices()[:1]), ("data",))
        return train._init_train_state(config, model, jax.random.PRNGKey(seed), mesh)[1]

    def step(state, batch):
        state, metrics = train._train_step(state, batch, config, get_loss_fn)
        return state, metrics["train_loss"]

    evaluated = jax.jit(lambda state: get_loss_fn(held_out, state.apply_fn, config)(state.params)[0])
    return Training(
        init=init,
        step=step,
        batch=lambda epoch, step: windows(text.train, np.random.default_rng([seed, epoch, step]), BATCH),
        steps_per_epoch=STEPS,
        epochs=EPOCHS,
        evaluate=lambda state: {"loss": evaluated(state)},
        metric=Measure("loss", "lower", chance=np.log(VOCABULARY), tolerance=0.05),
    )
