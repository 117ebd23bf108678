"""Haiku's example `rnn`: two LSTMs that read text; its step returns the state alone."""

import jax
import numpy as np
from others import module

from fault_injection import Measure, Training
from fault_injection.data.shakespeare import load_shakespeare

CONTEXT, BATCH, STEPS, EPOCHS = 32, 16, 20, 4
train = module("dm-haiku", "examples.rnn.train")
train.flags.FLAGS(["train", "--hidden_size=64", "--learning_rate=0.003"])
text = load_shakespeare(None, train.dataset.NUM_CHARS, CONTEXT)


def windows(part, random, count):
    starts = random.integers(0, len(part) - CONTEXT - 1, count)
    tokens = part[starts + np.arange(CONTEXT + 1)[:, None]].astype(np.int32)  # time comes first
    return {"input": tokens[:-1], "target": tokens[1:]}


def training(seed: int = 0):
    make, loss = train.hk.without_apply_rng(train.hk.transform(train.sequence_loss))
    held_out = windows(text.test, np.random.default_rng([seed, EPOCHS]), 64)
    measured = jax.jit(loss)

    def init():
        params = make(jax.random.key(seed), held_out)
        return train.TrainingState(params, train.make_optimizer().init(params))

    return Training(
        init=init,
        step=train.update,
        batch=lambda epoch, step: windows(text.train, np.random.default_rng([seed, epoch, step]), BATCH),
        steps_per_epoch=STEPS,
        epochs=EPOCHS,
        evaluate=lambda state: {"loss": measured(state.params, held_out)},
        metric=Measure("loss", "lower", chance=np.log(train.dataset.NUM_CHARS), tolerance=0.05),
    )
