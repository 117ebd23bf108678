"""Tunix's trainer with Qwix's LoRA: of a small transformer in Flax NNX two low-rank matrices a layer are trained."""

import jax.numpy as jnp
import numpy as np
import optax
import qwix
from flax import nnx
from tunix.sft import peft_trainer
from tunix.tests import test_common

from fault_injection import Measure, Training

CONTEXT, BATCH, STEPS, EPOCHS, VOCABULARY = 16, 16, 20, 4, 256


def counted(random, count):
    """Tokens that go up by a number of the sequence's own."""
    first, by = random.integers(0, VOCABULARY, (count, 1)), random.integers(1, 5, (count, 1))
    tokens = ((first + by * np.arange(CONTEXT)) % VOCABULARY).astype(np.int32)
    return {"input_tokens": tokens, "input_mask": np.ones_like(tokens)}


def inputs(batch):
    """What the model takes, as Tunix's own trainings make it."""
    shape = batch["input_tokens"].shape
    positions = jnp.broadcast_to(jnp.arange(shape[1]), shape)
    seen = jnp.broadcast_to(jnp.tril(jnp.ones((shape[1], shape[1]), bool)), (*shape, shape[1]))
    return {**batch, "positions": positions, "attention_mask": seen}


def training(seed: int = 0):
    config = peft_trainer.TrainingConfig(eval_every_n_steps=STEPS, max_steps=STEPS * EPOCHS)
    held_out = counted(np.random.default_rng([seed, EPOCHS]), 128)

    def trainer():
        model = test_common.ToyTransformer(test_common.ModelConfig(), rngs=nnx.Rngs(seed))
        low_rank = qwix.LoraProvider(module_path=".*w1|.*w2", rank=4, alpha=2.0)
        example = test_common.get_dummy_inputs_for_lora_toy_transformer_tests()
        model = qwix.apply_lora_to_model(model, low_rank, rngs=nnx.Rngs(seed), **example)
        return peft_trainer.PeftTrainer(model, optax.adam(1e-2), config).with_gen_model_input_fn(inputs)

    own = trainer()

    def init():
        made = trainer()
        return made.model, made.optimizer

    return Training(
        init=init,
        step=lambda model, optimizer, batch: own._train_step(model, optimizer, batch)[0],
        batch=lambda epoch, step: counted(np.random.default_rng([seed, epoch, step]), BATCH),
        steps_per_epoch=STEPS,
        epochs=EPOCHS,
        evaluate=lambda state: {"loss": nnx.jit(own._eval_step)(state[0], held_out)[0]},
        metric=Measure("loss", "lower", chance=np.log(VOCABULARY), tolerance=0.05),
    )
