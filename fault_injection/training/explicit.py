"""The training step: a pure function of state, batch, address and fault."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import struct
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from models.fault import Fault, Struck
from models.formulations import CPU_OPTIONS
from models.isolation import isolated
from models.layer import Context, Layer, Params, Stats, merge
from models.loss import cross_entropy

from ..machine.errors import InputError

AXIS = "workers"
COPIED = 1 << 16  # elements up to which leaves of one size are copied together to be looked at
Array = jax.Array | np.ndarray  # on the device, or fetched from it


@struct.dataclass
class State:
    """What a step reads and writes: parameters, running statistics, optimizer state."""

    params: Params
    stats: Stats
    opt_state: optax.OptState


@struct.dataclass
class StepReport:
    """What a step says of itself.

    Attributes:
      loss, accuracy: of the global batch, before the update.
      digest: uint32 [leaves of the state], see `digest`.
      magnitude: float32 [leaves of gradients and of the state], largest absolute value of
        each; NaN or infinite exactly where a leaf has a non-finite element.
      struck: what the fault did, None without fault support.
      tensors: observations asked for, with leading axis [R].
    """

    loss: Array
    accuracy: Array
    digest: Array
    magnitude: Array
    struck: Struck | None
    tensors: dict[str, Any]


def gradients(network: Layer, params: Params, stats: Stats, batch, ctx: Context, batch_size: int):
    """One forward and backward pass of the device's workers.

    Args:
      batch: `image` [R,b,H,W,C], `label` [R,b].
      batch_size: global; the loss is the sum over examples divided by it.

    Returns:
      This device's share of loss and accuracy, new statistics (mean over its workers),
      gradients (summed over its workers), observations, logits [R,b,classes].
    """
    logits, new_stats, cache, forward = network.forward(params, stats, batch["image"], ctx)
    loss, correct, dlogits = cross_entropy(logits, batch["label"])
    # Nobody reads the gradient of the images.
    ctx = dataclasses.replace(ctx, input_gradient=False)
    _, grads, backward = network.backward(params, cache, dlogits / batch_size, ctx)
    loss, accuracy = jnp.sum(loss) / batch_size, jnp.sum(correct) / batch_size
    return loss, accuracy, new_stats, grads, merge([forward, backward]), logits


def digest(state: State) -> jax.Array:
    """One integer a leaf: Σ bits(element) · odd hash(position), modulo 2³².

    Integer sums do not depend on the order of summation, hence not on sharding.  An odd
    factor is invertible, so a leaf that differs in one element never has the same digest.
    Two states that differ in several elements of one leaf agree by chance once in 2³².
    """
    return _of_each(_digests, jax.tree.leaves(state))


@jax.jit
@isolated("true")
def _digests(leaves):
    words = _words(leaves)
    position = lax.iota(jnp.uint32, words.shape[1])
    return _reduce(words * ((position * jnp.uint32(0x9E3779B1)) | 1), jnp.sum)  # 2³² / golden ratio


def magnitude(tree) -> jax.Array:
    """Largest absolute value of each leaf, by its bits, so that no NaN is lost to a comparison."""
    tops = _of_each(_magnitudes, jax.tree.leaves(tree))
    return lax.bitcast_convert_type(tops, jnp.float32)


@jax.jit
@isolated("true")
def _magnitudes(leaves):
    if not jnp.issubdtype(leaves.dtype, jnp.floating):
        return jnp.zeros(leaves.shape[0], jnp.uint32)
    return _reduce(_words(leaves) & 0x7FFFFFFF, jnp.max)


def _of_each(function, leaves):
    """`function` of each leaf [n].  It takes several of one size at once, [m,size], and gives [m].

    Small leaves are copied together by their size: a network has thousands of them and few
    sizes, and each call is a piece of program to be compiled and loaded.
    """
    groups: dict[Any, list[int]] = {}
    for i, leaf in enumerate(leaves):
        alone = i if leaf.size > COPIED else None
        groups.setdefault((leaf.dtype, leaf.size, alone), []).append(i)
    found = []
    for members in groups.values():
        together = jnp.concatenate([leaves[i].reshape(1, -1) for i in members])
        with isolated("false"):
            found.append(function(together))
    order = np.argsort([i for members in groups.values() for i in members])
    return jnp.concatenate(found)[order]


def _reduce(words, reduce):
    """Sum (modulo 2³²) or maximum of unsigned integers [m,n] over n.

    XLA rewrites a reduction over more than 32 elements of an axis into windows, which on a
    CPU is several times slower than reading a row of 32×32.
    """
    while words.shape[1] > 32:
        words = jnp.pad(words, ((0, 0), (0, -words.shape[1] % 1024))).reshape(len(words), -1, 32, 32)
        words = reduce(words, (2, 3))
    return reduce(words, 1).astype(jnp.uint32)


def _words(leaves):
    return lax.bitcast_convert_type(leaves, jnp.uint32)


def leaf_names(tree) -> list[str]:
    """Names of a tree's leaves, in the order of `digest` and `magnitude`: `params/conv1/kernel`, `opt_state/m/…`."""
    paths = jax.tree_util.tree_flatten_with_path(tree)[0]
    return [jax.tree_util.keystr(path, simple=True, separator="/") for path, _ in paths]


@functools.cache
def compiler_options() -> dict[str, str] | None:
    """Options for the outermost `jit`, where this version of XLA knows them."""
    if jax.default_backend() != "cpu":
        return None
    try:
        jax.jit(jnp.negative, compiler_options=CPU_OPTIONS).lower(1.0).compile()
    except jax.errors.JaxRuntimeError:  # experimental options come and go
        return None
    return CPU_OPTIONS


@dataclasses.dataclass(frozen=True)
class Program:
    """The compiled functions of one workload on one set of devices.

    Attributes:
      network: what it trains.
      abstract: shapes and types of the state.
      devices: how many it runs on.
      init: `(seed) -> State`, on the host.
      step: `(state, batch, address) -> State, StepReport`; consumes the state's buffers.
      faulty_step: `(state, batch, address, fault) -> State, StepReport`; the state survives,
        so that the control can start from it.
      evaluate: `(state, batch) -> loss sum, correct, weight` over a test batch.
      place: put a batch on the devices, split by workers.
      replicate: put a state on the devices, whole on each.
    """

    network: Layer
    abstract: State
    devices: int
    init: Callable[[int], State]
    step: Callable[[State, Any, jax.Array], tuple[State, StepReport]]
    faulty_step: Callable[[State, Any, jax.Array, Fault], tuple[State, StepReport]]
    evaluate: Callable[[State, Any], tuple[jax.Array, jax.Array, jax.Array]]
    place: Callable[[Any], Any]
    replicate: Callable[[Any], Any]


def make_program(
    network: Layer,
    optimizer: optax.GradientTransformation,
    workers: int,
    batch_size: int,
    *,
    input_shape: tuple[int, ...] = (32, 32, 3),
    devices: int | None = None,
    observe: frozenset[str] = frozenset(),
) -> Program:
    """Build the functions of a workload; each compiles at its first call.

    Args:
      workers: data-parallel replicas, a multiple of the devices used.
      batch_size: global.
      input_shape: of one example.
      devices: how many to use; by default the largest number that divides `workers`.
        Several processes use all of theirs.
      observe: kinds of tensors that every step returns, see `models.layer.Context`.

    Raises:
      InputError: the devices of several processes cannot share the workers evenly.
    """
    available = jax.devices()
    count = devices or max(d for d in range(1, len(available) + 1) if workers % d == 0)
    if jax.process_count() > 1 and count != len(available):
        found = f"{len(available)} devices in {jax.process_count()} processes"
        raise InputError(f"{found}; expected a number that divides the {workers} workers")
    mesh = Mesh(np.array(available[:count]), (AXIS,))
    split, whole = PartitionSpec(AXIS), PartitionSpec()

    def init(key):
        shape = (workers, batch_size // workers, *input_shape)
        return network.init(key, shape)

    def with_optimizer(params, stats):
        return State(params, stats, optimizer.init(params))

    @jax.jit
    @isolated("true")
    def update(grads, opt_state, params):
        updates, opt_state = optimizer.update(grads, opt_state, params)
        return optax.apply_updates(params, updates), opt_state

    def step(state, batch, address, numbers, fault):
        key = jax.random.key(address[0])
        key = jax.random.fold_in(jax.random.fold_in(key, address[1]), address[2])
        ctx = Context(key=key, workers=numbers, fault=fault, observe=observe)
        loss, accuracy, stats, grads, seen, _ = gradients(network, state.params, state.stats, batch, ctx, batch_size)
        # The only communication of a step.
        loss, accuracy, grads, struck = lax.psum((loss, accuracy, grads, seen.struck), AXIS)
        stats = lax.pmean(stats, AXIS)
        with isolated("false"):
            params, opt_state = update(grads, state.opt_state, state.params)
        new = State(params, stats, opt_state)
        report = StepReport(loss, accuracy, digest(new), magnitude((grads, new)), struck, seen.tensors)
        return new, report

    specs: dict[str, Any] = {field.name: whole for field in dataclasses.fields(StepReport)} | {"tensors": split}
    reported = StepReport(**specs)

    def on_mesh(function, in_specs, out_specs, **jit_options):
        mapped = jax.shard_map(function, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False)
        return jax.jit(mapped, compiler_options=compiler_options(), **jit_options)

    def placed(spec):
        """A function that puts a tree of arrays on the devices, each process its part."""
        sharding = NamedSharding(mesh, spec)
        if jax.process_count() == 1:
            return lambda tree: jax.device_put(tree, sharding)
        # device_put would compare the values of all processes, every time.
        return lambda tree: jax.tree.map(
            lambda array: jax.make_array_from_callback(np.shape(array), sharding, lambda part: array[part]), tree
        )

    place, replicate = placed(split), placed(whole)
    numbers = place(np.arange(workers, dtype=np.int32))
    plain = on_mesh(
        functools.partial(step, fault=None), (whole, split, whole, split), (whole, reported), donate_argnums=0
    )
    faulty = on_mesh(step, (whole, split, whole, split, whole), (whole, reported))

    def evaluate(state, batch, numbers):
        ctx = Context(key=jax.random.key(0), workers=numbers, train=False)
        logits = network.forward(state.params, state.stats, batch["image"], ctx)[0]
        loss, correct, _ = cross_entropy(logits, batch["label"])
        sums = [jnp.sum(t * batch["weight"]) for t in (loss, correct, jnp.ones_like(loss))]
        return lax.psum(tuple(sums), AXIS)

    evaluated = on_mesh(evaluate, (whole, split, split), whole)
    return Program(
        network=network,
        abstract=jax.eval_shape(with_optimizer, *init(None)),
        devices=count,
        init=lambda seed: jax.device_get(with_optimizer(*init((seed,)))),
        step=lambda state, batch, address: plain(state, batch, address, numbers),
        faulty_step=lambda state, batch, address, fault: faulty(state, batch, address, numbers, fault),
        evaluate=lambda state, batch: evaluated(state, batch, numbers),
        place=place,
        replicate=replicate,
    )
