"""EasyDeL's Llama, loss, train step and state as they are installed: nothing here is a model or a step of ours."""

import os

os.environ.setdefault(
    "EASYDEL_AUTO", "0"
)  # else EasyDeL sets flags of XLA that newer ones do not know, and end the run

import jax
import jax.numpy as jnp
import numpy as np
import optax
from easydel import LlamaConfig, LlamaForCausalLM
from easydel.infra.loss_utils import LossConfig
from easydel.trainers.trainer._fn import evaluation_step, training_step
from flax import nnx
from jax.sharding import PartitionSpec

from fault_injection.data.shakespeare import VOCABULARY, load_shakespeare

CONTEXT, BATCH, STEPS, EPOCHS = 32, 16, 20, 4
text = load_shakespeare(None, VOCABULARY, CONTEXT)


def create_state(seed):
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=160,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=CONTEXT,
        attn_mechanism="vanilla",  # the others are kernels of accelerators
    )
    model = LlamaForCausalLM(config, dtype=jnp.float32, param_dtype=jnp.float32, rngs=nnx.Rngs(seed))
    return model.to_state().init_tx(optax.adamw(6e-3)), model.mesh


def batch_of(part, random, count):
    starts = random.integers(0, len(part) - CONTEXT, count)
    tokens = part[starts[:, None] + np.arange(CONTEXT)].astype(np.int32)
    return {"input_ids": tokens, "attention_mask": np.ones_like(tokens), "labels": tokens}


# Above: the training as it was.  Below: what strikes it.


def training(seed: int = 0):
    from fault_injection import Measure, Training

    initial, mesh = create_state(seed)
    settings = {"loss_config": LossConfig(), "partition_spec": PartitionSpec()}

    def measured(metrics):
        return {"loss": metrics.loss, "accuracy": metrics.accuracy}

    @jax.jit  # as EasyDeL's trainer does
    def step(state, batch):
        with mesh:
            state, metrics = training_step(state, batch, learning_rate_fn=optax.constant_schedule(6e-3), **settings)
        return state, measured(metrics)

    @jax.jit
    def evaluated(state, batch):
        with mesh:
            return measured(evaluation_step(state, batch, **settings))

    held_out = batch_of(text.test, np.random.default_rng(2**31), 64)
    return Training(
        init=lambda: initial,
        step=step,
        batch=lambda epoch, number: batch_of(text.train, np.random.default_rng([seed, epoch, number]), BATCH),
        steps_per_epoch=STEPS,
        epochs=EPOCHS,
        evaluate=lambda state: evaluated(state, held_out),
        metric=Measure("accuracy", "higher", chance=0.15, tolerance=0.01, limits=(0.0, 1.0)),
    )
