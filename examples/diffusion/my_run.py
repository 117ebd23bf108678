"""A denoising diffusion model of the handwritten digits in Flax Linen; the state carries its random key."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax.training import train_state
from sklearn.datasets import load_digits

BATCH, STEPS, EPOCHS, LEVELS = 64, 22, 4, 100
kept = jnp.asarray(np.cumprod(1 - np.linspace(1e-4, 0.1, LEVELS)), jnp.float32)  # of the image, at each noise level


class Denoiser(nn.Module):
    """Noisy images [b, 8, 8, 1] and their noise levels [b] -> the noise that is in them."""

    @nn.compact
    def __call__(self, x, level):
        angles = level[:, None] * 100.0 ** (-jnp.arange(16) / 16)
        time = nn.Dense(32, name="time")(jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], -1))
        x = nn.Conv(32, (3, 3), name="enter")(x)
        y = nn.swish(nn.GroupNorm(8)(x) + nn.swish(time)[:, None, None])
        y = nn.swish(nn.GroupNorm(8)(nn.Conv(64, (3, 3), 2, name="down")(y)))
        y = nn.ConvTranspose(32, (3, 3), (2, 2), name="up")(y)
        return nn.Conv(1, (3, 3), name="leave")(nn.swish(x + y))


class TrainState(train_state.TrainState):
    key: jax.Array


model = Denoiser()


def create_state(seed):
    start, key = jax.random.split(jax.random.key(seed))
    params = model.init(start, jnp.zeros((1, 8, 8, 1)), jnp.zeros(1, jnp.int32))["params"]
    return TrainState.create(apply_fn=model.apply, params=params, tx=optax.adam(2e-3), key=key)


def loss_fn(params, images, key):
    of_level, of_noise = jax.random.split(key)
    level = jax.random.randint(of_level, images.shape[:1], 0, LEVELS)
    noise = jax.random.normal(of_noise, images.shape)
    share = kept[level][:, None, None, None]
    noisy = jnp.sqrt(share) * images + jnp.sqrt(1 - share) * noise
    return jnp.mean(jnp.square(model.apply({"params": params}, noisy, level) - noise))


@jax.jit
def train_step(state, images):
    key, now = jax.random.split(state.key)
    loss, grads = jax.value_and_grad(loss_fn)(state.params, images, now)
    return state.apply_gradients(grads=grads, key=key), {"loss": loss}


images = (load_digits().images[..., None] / 8 - 1).astype(np.float32)
evaluated = jax.jit(loss_fn)


def get_batch(seed, epoch, step):
    return images[np.random.default_rng([seed, epoch]).permutation(1437)[step * BATCH :][:BATCH]]


# Above: the training as it was.  Below: what strikes it.


def training(seed: int = 0):
    from fault_injection import Measure, Training

    return Training(
        init=lambda: create_state(seed),
        step=train_step,
        batch=lambda epoch, step: get_batch(seed, epoch, step),
        steps_per_epoch=STEPS,
        epochs=EPOCHS,
        evaluate=lambda state: evaluated(state.params, images[1437:], jax.random.key(2**31)),  # always the same noise
        metric=Measure("loss", "lower", chance=1.0, tolerance=0.01),
    )
