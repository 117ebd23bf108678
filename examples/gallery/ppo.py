"""Flax's example `ppo`: a step of PPO goes through the minibatches of an epoch; games are made up here, of noise."""

import functools

import jax
import numpy as np
from others import module

from fault_injection import Measure, Training

AGENTS, STEPS_OF_EACH, BATCH, STEPS, EPOCHS, ACTIONS = 2, 16, 16, 8, 4, 4
library = module("flax/examples/ppo", "ppo_lib")
config = module("flax/examples/ppo/configs", "default").get_config()
MODEL = library.models.ActorCritic(num_outputs=ACTIONS)


def experience(random):
    """What actors would have seen; an action is rewarded where it is the brightest quarter of the picture."""
    count = AGENTS * STEPS_OF_EACH
    bright = random.integers(0, ACTIONS, count)
    pictures = random.integers(0, 64, (count, 84, 84, 4)).astype(np.float32)
    for number, corner in enumerate(bright):
        pictures[number, 42 * (corner // 2) :, 42 * (corner % 2) :][:42, :42] += 128
    actions = random.integers(0, ACTIONS, count).astype(np.int32)
    rewards = (actions == bright).astype(np.float32).reshape(STEPS_OF_EACH, AGENTS)
    values, going_on = np.zeros((STEPS_OF_EACH + 1, AGENTS), np.float32), np.ones_like(rewards)
    advantages = np.asarray(library.gae_advantages(rewards, going_on, values, config.gamma, config.lambda_))
    each = np.full(count, -np.log(ACTIONS), np.float32), *[advantages.reshape(count)] * 2
    return pictures, actions, *each


def training(seed: int = 0):
    held_out = experience(np.random.default_rng([seed, EPOCHS]))
    step = functools.partial(
        library.train_step,
        clip_param=config.clip_param,
        vf_coeff=config.vf_coeff,
        entropy_coeff=config.entropy_coeff,
    )

    def init():
        params = library.get_initial_params(jax.random.key(seed), MODEL)
        return library.create_train_state(params, MODEL, config, STEPS * EPOCHS)

    return Training(
        init=init,
        step=step,
        arguments=lambda state, batch: (state, batch, BATCH),
        batch=lambda epoch, step: experience(np.random.default_rng([seed, epoch, step])),
        steps_per_epoch=STEPS,
        epochs=EPOCHS,
        evaluate=lambda state: {"loss": step(state, held_out, BATCH)[1]},
        metric=Measure("loss", "lower", chance=100.0, tolerance=0.1),
    )
