"""A training that is small enough to follow every single bit flip of its state to the end.

A perceptron with four hidden units learns handwritten digits by Adam, 25 epochs of 4 steps.  Its state has 930 float32
numbers (310 parameters, and Adam's two moments of each) and Adam's count of steps.  Three pixels are blank in every
image, so nothing depends on the parameters that multiply them.
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax
from sklearn.datasets import load_digits

EXAMPLES, BATCH, EPOCHS, HIDDEN = 1024, 256, 25, 4

pixels, digits = load_digits(return_X_y=True)  # 1,797 handwritten digits; they come with scikit-learn
mixed = np.random.default_rng(0).permutation(len(digits))  # as they come, one person's follow one another
images, labels = np.float32(pixels[mixed] / 16), np.int32(digits[mixed])
tests = images[EXAMPLES:], labels[EXAMPLES:]
# The examples of each epoch in their order, int64 [epochs,examples].
order = np.random.default_rng(1).permuted(np.tile(np.arange(EXAMPLES), (EPOCHS, 1)), axis=1)
optimizer = optax.adam(0.05)


def init():
    first, second = jax.random.split(jax.random.key(0))
    params = {
        "hidden": {"kernel": jax.random.normal(first, (64, HIDDEN)) / 5, "bias": jnp.zeros(HIDDEN)},
        "head": {"kernel": jax.random.normal(second, (HIDDEN, 10)) / 3, "bias": jnp.zeros(10)},
    }
    return {"params": params, "opt": optimizer.init(params)}


def measure(params, batch):
    x, label = batch  # [b,64], [b]
    hidden = jax.nn.relu(x @ params["hidden"]["kernel"] + params["hidden"]["bias"])
    logits = hidden @ params["head"]["kernel"] + params["head"]["bias"]
    loss = optax.softmax_cross_entropy_with_integer_labels(logits, label).mean()
    return loss, {"loss": loss, "accuracy": jnp.mean(logits.argmax(-1) == label)}


@jax.jit
def step(state, batch):
    gradients, metrics = jax.grad(measure, has_aux=True)(state["params"], batch)
    updates, opt = optimizer.update(gradients, state["opt"])
    return {"params": optax.apply_updates(state["params"], updates), "opt": opt}, metrics


def batch(epoch, number):
    chosen = order[epoch][BATCH * number :][:BATCH]
    return images[chosen], labels[chosen]


@jax.jit
def evaluate(state):
    return measure(state["params"], tests)[1]


def training():  # what strikes it
    from fault_injection import Measure, Training

    return Training(
        init=init,
        step=step,
        batch=batch,
        steps_per_epoch=EXAMPLES // BATCH,
        epochs=EPOCHS,
        evaluate=evaluate,
        metric=Measure("accuracy", "higher", chance=0.1, tolerance=0.02, limits=(0.0, 1.0)),
    )
