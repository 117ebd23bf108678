"""A training that restarts from checkpoints of its own form: tensors have other names and axes than in its state."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

STEPS, EPOCHS = 4, 3
TRUE = np.random.default_rng(7).standard_normal((3, 2), np.float32)


def create():
    start = np.random.default_rng(1).standard_normal((3, 2), np.float32)
    return {"params": {"w": start}, "opt": {"m": np.zeros((3, 2), np.float32)}, "step": np.zeros((), np.int32)}


def examples(*address):
    x = np.random.default_rng([5, *address]).standard_normal((8, 3), np.float32)
    return {"x": x, "y": x @ TRUE}


def loss_of(params, batch):
    return jnp.mean((batch["x"] @ params["w"] - batch["y"]) ** 2)


@jax.jit
def train_step(state, batch):
    loss, gradient = jax.value_and_grad(loss_of)(state["params"], batch)
    m = 0.5 * state["opt"]["m"] + gradient["w"]
    return {"params": {"w": state["params"]["w"] - 0.1 * m}, "opt": {"m": m}, "step": state["step"] + 1}, {"loss": loss}


def save(path, state):
    """Write a state in the form of this training."""
    tensors = {"net.weight": state["params"]["w"].T, "adam.mu": state["opt"]["m"].T, "done": state["step"]}
    with open(path, "wb") as file:  # noqa: PTH123  so that NumPy adds no suffix
        np.savez(file, **{name: np.array(tensor, order="C") for name, tensor in tensors.items()})


def load(path):
    with np.load(path) as archive:
        return {
            "params": {"w": archive["net.weight"].T},
            "opt": {"m": archive["adam.mu"].T},
            "step": archive["done"],
        }


def load_bytes(path):
    """Of a file that has no form but this one."""
    numbers = np.frombuffer(path.read_bytes(), np.float32)
    w, m, step = np.split(numbers, [6, 12])
    return {"params": {"w": w.reshape(3, 2)}, "opt": {"m": m.reshape(3, 2)}, "step": step.astype(np.int32)[0]}


def without_loader():
    from fault_injection import Measure, Training

    return Training(
        init=create,
        step=train_step,
        batch=examples,
        steps_per_epoch=STEPS,
        epochs=EPOCHS,
        evaluate=lambda state: {"loss": loss_of(state["params"], examples(2**31))},
        metric=Measure("loss", "lower", chance=4.0, tolerance=0.01),
    )


def but(load):
    return lambda: dataclasses.replace(without_loader(), load=load)


training = but(load)
of_bytes = but(load_bytes)

# Mistakes in what load gives, or in load itself.
lacks_a_leaf = but(lambda path: {"params": {"w": load(path)["params"]["w"]}, "step": load(path)["step"]})
adds_a_leaf = but(lambda path: {**load(path), "ema": np.ones(2)})
of_another_shape = but(lambda path: {**load(path), "params": {"w": load(path)["params"]["w"].T}})
of_another_type = but(lambda path: {**load(path), "opt": {"m": load(path)["opt"]["m"].astype(np.float16)}})
is_nothing = but(lambda path: None)
misspells = but(lambda path: np.load(path)["net.weigth"])
takes_nothing = but(lambda: create())
is_no_function = but("checkpoint.npz")
