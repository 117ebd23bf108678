"""Writes TensorFlow checkpoints as the published ones are laid out; runs where TensorFlow is, as a program.

    python write_tensorflow.py LAYOUT.json ITERATION FOLDER WORKLOAD...

In FOLDER each is called as its workload.  Every array is drawn from a generator seeded by its key (`value`), so that
a reader knows what to expect.
"""

import json
import pathlib
import sys
import zlib

import numpy as np

END = "/.ATTRIBUTES/VARIABLE_VALUE"


def value(key: str, shape: list[int]) -> np.ndarray:
    """The array float32 that a checkpoint holds under `key`."""
    return np.random.default_rng(zlib.crc32(key.encode())).standard_normal(shape).astype(np.float32)


def slot_key(key: str, slot: str) -> str:
    """The key of a variable's optimizer moment."""
    return f"{key.removesuffix(END)}/.OPTIMIZER_SLOT/optimizer/{slot}{END}"


def main(layouts: str, iteration: str, folder: str, *workloads: str):
    import tensorflow as tf

    class Node(tf.__internal__.tracking.AutoTrackable):
        """An object of the saved graph; its attributes are its children."""

    class Optimizer(Node):
        """Has slots as the optimizers of TensorFlow 2.6 had them, which later versions still save."""

        def __init__(self):
            object.__setattr__(self, "_slots", {})  # no children

        def get_slot_names(self):
            return sorted({name for _, name in self._slots})

        def get_slot(self, variable, name):
            return self._slots.get((variable.ref(), name))

    def write(workload: str, layout: list[tuple[str, list[int]]]):
        root = tf.train.Checkpoint()
        optimizer = Optimizer()
        with_moments = any("beta_1" in key for key, _ in layout)
        for key, shape in layout:
            if key.startswith("optimizer/"):
                continue
            *path, leaf = key.removesuffix(END).split("/")
            node = root
            for part in path:
                if not hasattr(node, part):
                    setattr(node, part, Node())
                node = getattr(node, part)
            variable = tf.Variable(value(key, shape))
            setattr(node, leaf, variable)
            if with_moments and leaf in ("kernel", "bias", "gamma", "beta", "depthwise_kernel"):
                for slot in ("m", "v"):
                    optimizer._slots[variable.ref(), slot] = tf.Variable(value(slot_key(key, slot), shape))
        root.optimizer = optimizer
        for key, shape in layout:
            if key.startswith("optimizer/"):
                optimizer.__setattr__(key.split("/")[1], tf.Variable(value(key, shape)))
        optimizer.iter = tf.Variable(int(iteration), dtype=tf.int64)
        root.write(f"{folder}/{workload}")

    layout_of = json.loads(pathlib.Path(layouts).read_text())["workloads"]
    for workload in workloads:
        write(workload, layout_of[workload])


if __name__ == "__main__":
    main(*sys.argv[1:])
