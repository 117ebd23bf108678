"""A small network with everything that strategies tell apart, its programs, and states of random bits."""

import functools

import jax
import numpy as np

from fault_injection.explicit.batch_source import OpenData
from fault_injection.explicit.optimizers import clipped_adamw, keras_adam, keras_sgd
from fault_injection.explicit.program import explicit_program
from fault_injection.explicit.recipe import Recipe
from fault_injection.models.combinators import chain, residual
from fault_injection.models.layers.activation import relu
from fault_injection.models.layers.convolution import convolution
from fault_injection.models.layers.dense import dense
from fault_injection.models.layers.normalisation import batch_norm
from fault_injection.models.layers.pooling import global_average
from fault_injection.seam.measure import Measure
from fault_injection.seam.strategies import REPLICATED, parse_strategy
from fault_injection.seam.trees import leaf_names

WORKERS, BATCH, IMAGE, CLASSES = 8, 4, (8, 8, 3), 5
NETWORK = chain(
    convolution("conv1", 8, 3),
    batch_norm("bn1"),
    relu(),
    residual(chain(convolution("conv2", 8, 3), batch_norm("bn2"))),
    relu(),
    global_average("pool"),
    dense("fc", CLASSES),
)
OPTIMIZERS = {"sgd": keras_sgd(0.05), "adam": keras_adam(0.01), "adamw": clipped_adamw(0.01)}
NAMES = (
    "replicated",
    "ddp",
    "horovod",
    "horovod broadcast",
    "zero",
    "zero parameters",
    "local 1",
    "local 3",
    "pipeline 2",
    "pipeline 4",
)


class Drawn:
    """Batches of random numbers; of one worker alone, where it is named."""

    def __init__(self, only=None):
        self._only = slice(None) if only is None else slice(only, only + 1)

    def train(self, epoch, step):
        """The batch of a step."""
        random = np.random.default_rng([epoch, step])
        x = random.standard_normal((WORKERS, BATCH, *IMAGE), np.float32)
        target = random.integers(CLASSES, size=(WORKERS, BATCH), dtype=np.int32)
        return {"input": x[self._only], "target": target[self._only]}

    def test(self):
        """One batch."""
        batch = self.train(99, 0)
        yield batch | {"weight": np.ones(batch["target"].shape, np.float32)}


@functools.cache
def program(
    strategy=str(REPLICATED),
    optimizer="sgd",
    supported=frozenset(),
    only=None,
    devices=None,
    reductions=frozenset(),
    rate=None,
):
    """The program of a strategy; of one worker's batches alone, where it is named."""
    workers = WORKERS if only is None else 1
    recipe = Recipe(
        NETWORK,
        OPTIMIZERS.get(optimizer, optimizer),
        jax.ShapeDtypeStruct(IMAGE, np.float32),
        lambda: OpenData(Drawn(only), Measure("accuracy", "higher", 0.2, 0.1), "drawn"),
        workers=workers,
        batch_size=workers * BATCH,
        steps_per_epoch=5,
        seed=1,
        strategy=parse_strategy(strategy),
        rate=rate,
    )
    return explicit_program(recipe, supported, devices, reductions)


def trained(own, steps, state=None):
    """State and report after some steps, on the host."""
    state = own.place(own.init()) if state is None else state
    for number in range(steps):
        at = divmod(number, own.steps_per_epoch)
        # A process that has several devices, and fewer threads than they need, must not run ahead.
        state, report = jax.block_until_ready(own.step(state, own.batch(*at), *at))
    return jax.device_get((state, report))


def random_state(abstract, seed):
    """A state of random bits: among them are infinities, NaNs and negative zeros."""
    random = np.random.default_rng(seed)

    def leaf(like):
        words = random.integers(2**32, size=like.size, dtype=np.uint32)
        words[: like.size // 5] = random.choice(np.uint32([0x80000000, 0x7F800000, 0x7FC01234, 1]), like.size // 5)
        return words.view(like.dtype).reshape(like.shape)

    return jax.tree.map(leaf, abstract)


def named(state):
    """The leaves of a state by name, as they are on the host."""
    leaves = map(np.asarray, jax.tree.leaves(jax.device_get(state)))
    return dict(zip(leaf_names(state), leaves, strict=True))


def expected_at_start(strategy, name, loaded, stage):
    """What a leaf is at the start, of what each loader has: written out apart from the code.

    Args:
      loaded: the leaf of each loader.
      stage: of a pipeline, to which the leaf belongs.
    """
    part, first = name.partition("/")[0], loaded[0]
    own, everywhere = np.stack(loaded), np.stack([first] * len(loaded))
    shares = np.array_split(
        np.arange(first.size), range(-(-first.size // len(loaded)), first.size, -(-first.size // len(loaded)))
    )
    shared = np.concatenate([loaded[r].reshape(-1)[share] for r, share in enumerate(shares)]).reshape(first.shape)
    return {
        "replicated": first,
        "ddp": own if part == "opt_state" else everywhere,
        "horovod": own,
        "horovod broadcast": everywhere,
        "zero": shared if part == "opt_state" else first,
        "zero parameters": first if part == "stats" else shared,
        "local": own,
        "pipeline": loaded[min(stage, len(loaded) - 1)],
    }[strategy if strategy in ("horovod broadcast", "zero parameters") else strategy.split()[0]]
