"""Flax's example `seq2seq`: an LSTM that learns to add numbers, written as characters."""

import jax
import numpy as np
from others import module

from fault_injection import Measure, Training

BATCH, STEPS, EPOCHS = 64, 20, 4
train = module("flax/examples/seq2seq", "train")
train.FLAGS(["train", "--hidden_size=64"])
TABLE = train.CTable("0123456789+= ", 2)


def sums(random, count):
    """Questions and answers, as `CharacterTable.generate_examples` makes them, from a seed."""
    pairs = random.integers(0, 100, (count, 2))
    questions, answers = [f"{a}+{b}" for a, b in pairs], [f"={a + b}" for a, b in pairs]
    return {"query": TABLE.encode_onehot(questions), "answer": TABLE.encode_onehot(answers)}


def training(seed: int = 0):
    key, held_out = jax.random.key(seed), sums(np.random.default_rng([seed, EPOCHS]), 256)

    def evaluate(state):
        return train.train_step(state, held_out, key, TABLE.eos_id)[1]

    return Training(
        init=lambda: train.get_train_state(key, TABLE),
        step=train.train_step,
        arguments=lambda state, batch: (state, batch, key, TABLE.eos_id),
        batch=lambda epoch, step: sums(np.random.default_rng([seed, epoch, step]), BATCH),
        steps_per_epoch=STEPS,
        epochs=EPOCHS,
        evaluate=evaluate,
        metric=Measure("loss", "lower", chance=np.log(TABLE.vocab_size), tolerance=0.02),
    )
