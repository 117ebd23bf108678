"""Moments of Adam and running statistics of batch norm as TensorFlow computes them under XLA: writes a fixture.

Run with TensorFlow 2.15, whose Keras is of the published generation, in an environment of its own:

    python -m venv venv && venv/bin/pip install "tensorflow-cpu==2.15.*"
    venv/bin/python tests/keras_numbers.py tests/fixtures/keras_numbers.json
"""

import json
import pathlib
import sys

import keras.src.layers.normalization.batch_normalization as keras_batch_normalization
import numpy as np
import tensorflow as tf

# One sequence of gradients per element of a variable.  1e20 squared is beyond float32.
GRADIENTS = {
    "usual": [0.3, -0.1, 0.2, 0.05, -0.4, 0.1],
    "small": [1e-8, -3e-8, 2e-9, 5e-8, -1e-8, 4e-8],
    "square overflows": [0.3, 1e20, 0.2, 0.05, -0.4, 0.1],
    "square overflows twice": [0.3, 1e20, -1e20, 0.05, -0.4, 0.1],
    "large, square finite": [0.3, 1e18, 0.2, 0.05, -0.4, 0.1],
    "infinite": [0.3, np.inf, 0.2, 0.05, -0.4, 0.1],
    "nan": [0.3, np.nan, 0.2, 0.05, -0.4, 0.1],
}
# The first element of each batch [4,2,2,3]; the others are as in the code.  With one channel XLA computes the square
# of the mean in another form, which overflows earlier.
INPUTS = {
    "usual": [1.5, -0.5, 2.0, 0.5],
    "variance overflows": [1.5, 1e20, 2.0, 0.5],
    "square of the mean overflows": [1.5, 1e30, 2.0, 0.5],
    "large, variance finite": [1.5, 1e18, 2.0, 0.5],
}


def adam() -> dict[str, list[list[float]]]:
    """Variable, m and v after each step: [step][element]."""
    optimizer = tf.keras.optimizers.Adam(1e-3, jit_compile=True)
    variable = tf.Variable(tf.ones(len(GRADIENTS)))
    optimizer.build([variable])
    found: dict[str, list[list[float]]] = {"parameter": [], "m": [], "v": []}
    for gradient in np.float32(list(GRADIENTS.values())).T:
        optimizer.apply_gradients([(tf.constant(gradient), variable)])
        _, m, v = optimizer.variables  # after the iteration
        for name, value in (("parameter", variable), ("m", m), ("v", v)):
            found[name].append(value.numpy().tolist())
    return found


def batch_norm(momentum: float) -> dict[str, dict[str, list[float]]]:
    """Running mean and variance after each step, for each sequence of inputs."""
    # As on TPUs, where an XLA context encloses the layer, and the layer updates the statistics itself.
    keras_batch_normalization.get_enclosing_xla_context = lambda: object()
    found = {}
    for name, inputs in INPUTS.items():
        norm = tf.keras.layers.BatchNormalization(momentum=momentum, epsilon=1e-3)
        norm.build([4, 2, 2, 3])
        step = tf.function(lambda x, norm=norm: norm(x, training=True), jit_compile=True)
        kept: dict[str, list[float]] = {"mean": [], "var": []}
        for value in inputs:
            x = np.linspace(-1, 1, 48, dtype=np.float32).reshape(4, 2, 2, 3)
            x[0, 0, 0, 0] = value
            step(tf.constant(x))
            kept["mean"].append(float(norm.moving_mean.numpy()[0]))
            kept["var"].append(float(norm.moving_variance.numpy()[0]))
        found[name] = kept
    return found


def main(path: str) -> None:
    """Write the fixture."""
    numbers = {
        "command": "python tests/keras_numbers.py tests/fixtures/keras_numbers.json",
        "tensorflow": tf.__version__,
        "gradients": GRADIENTS,
        "inputs": INPUTS,
        "adam": adam(),
        "batch_norm": {str(momentum): batch_norm(momentum) for momentum in (0.9, 0.99)},
    }
    pathlib.Path(path).write_text(json.dumps(numbers), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1])
