"""A convolutional network in Flax NNX, on the handwritten digits."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from sklearn.datasets import load_digits

BATCH, STEPS, EPOCHS = 64, 22, 4


class CNN(nnx.Module):
    def __init__(self, rngs):
        self.conv1 = nnx.Conv(1, 16, (3, 3), rngs=rngs)
        self.norm = nnx.BatchNorm(16, momentum=0.9, rngs=rngs)
        self.conv2 = nnx.Conv(16, 32, (3, 3), strides=2, rngs=rngs)
        self.head = nnx.Linear(32, 10, rngs=rngs)

    def __call__(self, x):
        x = nnx.relu(self.norm(self.conv1(x)))
        return self.head(jnp.mean(nnx.relu(self.conv2(x)), (1, 2)))


def create(seed):
    model = CNN(nnx.Rngs(seed))
    return model, nnx.Optimizer(model, optax.adam(3e-3), wrt=nnx.Param)


def measures(logits, labels):
    loss = optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()
    return {"loss": loss, "accuracy": jnp.mean((jnp.argmax(logits, -1) == labels).astype(jnp.float32))}


graph = nnx.graphdef(create(0))


@jax.jit
def train_step(state, batch):
    model, optimizer = nnx.merge(graph, state)

    def loss_fn(model):
        metrics = measures(model(batch["image"]), batch["label"])
        return metrics["loss"], metrics

    grads, metrics = nnx.grad(loss_fn, has_aux=True)(model)
    optimizer.update(model, grads)
    return nnx.state((model, optimizer)), metrics


@jax.jit
def eval_step(state, batch):
    model, _ = nnx.merge(graph, state)
    model.eval()
    return measures(model(batch["image"]), batch["label"])


digits = load_digits()
images, labels = (digits.images[..., None] / 16 - 0.3).astype(np.float32), digits.target.astype(np.int32)
held_out = {"image": images[1437:], "label": labels[1437:]}


def get_batch(seed, epoch, step):
    order = np.random.default_rng([seed, epoch]).permutation(1437)[step * BATCH :][:BATCH]
    return {"image": images[order], "label": labels[order]}


# Above: the training as it was.  Below: what strikes it.


def training(seed: int = 0):
    from fault_injection import Measure, Training

    return Training(
        init=lambda: nnx.state(create(seed)),
        step=train_step,
        batch=lambda epoch, step: get_batch(seed, epoch, step),
        steps_per_epoch=STEPS,
        epochs=EPOCHS,
        evaluate=lambda state: eval_step(state, held_out),
        metric=Measure("accuracy", "higher", chance=0.1, tolerance=0.02, limits=(0.0, 1.0)),
    )
