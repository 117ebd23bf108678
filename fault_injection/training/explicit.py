"""The program of an explicit network: its step, with both passes written out, on a mesh of workers."""

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Protocol, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import struct
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from models.copies import own_copies
from models.dr_dna import Profile
from models.fault import Fault
from models.formulations import CPU_OPTIONS
from models.isolation import isolated
from models.layer import Context, Layer, Observations, Params, Stats, merge
from models.loss import Head, cross_entropy, predicted
from models.precision import MAXIMA, remembered
from models.reductions import WHOLE, reduced, together

from ..machine.errors import InputError
from ..machine.processes import from_leader
from . import sparse
from .digest import digest, magnitude
from .exchange import Striker, exchanged_sites
from .gradient_scale import gradient_scale
from .optimizers import Invertible, history
from .packed import Packed
from .program import (
    Array,
    Batch,
    Evaluation,
    Inference,
    Leaf,
    Measure,
    Program,
    Role,
    StepReport,
    leaf_names,
    report,
)
from .strategies import DDP, REPLICATED
from .watched_activations import returned, scored, with_largest

AXIS = "workers"
Leaves = dict[str, dict[str, Any]]  # by layer and name: arrays, or their shapes and dtypes


@struct.dataclass
class ExplicitState:
    """What a step reads and writes: parameters, running statistics, optimizer state; what is kept of sparse tables."""

    params: Leaves
    stats: Leaves
    opt_state: optax.OptState
    tables: sparse.Tables = struct.field(default_factory=dict)


class BatchSource(Protocol):
    """The batches of a dataset: trees of arrays with the keys `input` and `target`, and the workers as leading axis.

    `input` is [R,b,…] as the network takes it, `target` [R,b,…] as the loss head takes it.
    """

    def train(self, epoch: int, step: int) -> dict[str, np.ndarray]:
        """The batch of one step; a pure function of its address."""

    def test(self) -> Iterator[dict[str, np.ndarray]]:
        """The test data as batches of one shape, with `weight`, shaped as `target`: 0 where they are padded, else 1."""


class Hashed(Protocol):
    """Data that have been read, with a hash of them."""

    @property
    def sha256(self) -> str:
        """Of all that a run sees of the data."""


Data = TypeVar("Data", bound=Hashed)


def read_alike(load: Callable[[], Data]) -> Data:
    """What `load` reads.

    Raises:
      InputError: two processes have read different data; or as `load`.
    """
    data = load()
    if from_leader(lambda: data.sha256) != data.sha256:
        raise InputError(f"process {jax.process_index()} has read other data of this dataset than process 0")
    return data


class Passes(NamedTuple):
    """What a forward and a backward pass of the device's workers give.

    Attributes:
      loss, metric: this device's share of the global batch's.
      stats: new running statistics, the mean over its workers.
      grads: summed over its workers.
      seen: observations.
      logits: [R,b,…,classes].
    """

    loss: jax.Array
    metric: jax.Array
    stats: Stats
    grads: Params
    seen: Observations
    logits: jax.Array


def forward_and_backward(
    network: Layer, params: Params, stats: Stats, batch: Batch, ctx: Context, terms: int, head: Head = cross_entropy
) -> Passes:
    """One forward and one backward pass of the device's workers.

    Args:
      batch: `input` [R,b,…], `target` [R,b,…].
      terms: elements of the global batch's target; the loss is the sum over them divided by their number.
      head: gives loss, metric and gradient of each.
    """
    logits, new_stats, cache, forward = network.forward(params, stats, batch["input"], ctx)
    loss, metric, dlogits = head(logits, batch["target"])
    _, grads, backward = network.backward(params, cache, dlogits / terms, ctx)
    loss, metric = jnp.sum(loss) / terms, jnp.sum(metric) / terms
    return Passes(loss, metric, new_stats, grads, merge([forward, backward]), logits)


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


def usable_devices(workers: int, wanted: int | None = None) -> int:
    """How many devices to use: those wanted, else the largest number that divides the workers.

    Raises:
      InputError: the devices of several processes cannot share the workers evenly.
    """
    available = len(jax.devices())
    count = wanted or max(d for d in range(1, available + 1) if workers % d == 0)
    if jax.process_count() > 1 and count != available:
        found = f"{available} devices in {jax.process_count()} processes"
        raise InputError(f"{found}; expected a number that divides the {workers} workers")
    return count


def explicit_program(
    network: Layer,
    optimizer: optax.GradientTransformation | Invertible,
    example: jax.ShapeDtypeStruct,
    *,
    workers: int,
    batch_size: int,
    steps_per_epoch: int,
    seed: int,
    batches: Callable[[], BatchSource],
    measure: Callable[[], Measure],
    data: Callable[[], str],
    supported: frozenset[str] | None = None,
    devices: int | None = None,
    observe: frozenset[str] = frozenset(),
    reductions: frozenset[str] = frozenset(),
    head: Head = cross_entropy,
    tables: frozenset[str] = frozenset(),
    strategy: str = REPLICATED,
) -> Program:
    """The program of a network.

    Args:
      example: one input of the network.
      workers: data-parallel replicas, a multiple of the devices used.
      batch_size: global.
      seed: of initial values, dropout and whatever else a layer draws.
      batches, measure, data: as in `Program`; called when they are first needed.
      supported: sites that `faulty_step` can strike; None for all.
      devices: how many to use; see `usable_devices`.
      observe: kinds of tensors that every step returns, see `models.layer.Context`.
      reductions: of `models.reductions.CHOICES`: what every step returns of tensors and products; no bit of a run
        depends on it.
      head: what is minimised, and the metric; loss and metric of a batch are means over its targets.
      tables: parameters whose gradients are sparse (`Observations.rows`); the optimizer keeps no history of them.
      strategy: one of `strategies.STRATEGIES`.  With `ddp` every leaf of the state has the workers as
        leading axis, and there are no `tables`.

    Raises:
      InputError: the devices of several processes cannot share the workers evenly.
    """
    count = usable_devices(workers, devices)
    copies = workers if strategy == DDP else 0
    computed = own_copies(network) if copies else network
    mesh = Mesh(np.array(jax.devices()[:count]), (AXIS,))
    split, whole = PartitionSpec(AXIS), PartitionSpec()

    def init(key: tuple[int, ...] | None) -> ExplicitState:
        params, stats = network.init(key, (workers, batch_size // workers, *example.shape))
        make = optimizer.init if key is not None else functools.partial(jax.eval_shape, optimizer.init)
        return ExplicitState(params, stats, make(params), sparse.initial(params, tables))

    def copied(tree: Any) -> Any:
        """A copy for each worker, on the host."""

        def stacked(leaf: Any) -> Any:
            shape = (copies, *np.shape(leaf))
            abstractly = isinstance(leaf, jax.ShapeDtypeStruct)
            return jax.ShapeDtypeStruct(shape, leaf.dtype) if abstractly else np.broadcast_to(leaf, shape)

        return jax.tree.map(stacked, tree) if copies else tree

    def of_copies(function: Callable[..., Any], in_axes: Any = 0) -> Callable[..., Any]:
        """A function of one state as one of all copies of this device."""
        return jax.vmap(function, in_axes, axis_size=copies // count) if copies else function

    @jax.jit
    @isolated("true")
    def update(grads: Params, opt_state: optax.OptState, params: Params) -> tuple[Params, optax.OptState]:
        updates, opt_state = optimizer.update(grads, opt_state, params)
        return optax.apply_updates(params, updates), opt_state

    @jax.jit
    @isolated("true")
    def added(grads: Params, opt_state: optax.OptState, params: Params) -> Params:
        return optimizer.update(grads, opt_state, params)[0]

    def step(
        state: ExplicitState,
        batch: Batch,
        address: jax.Array,
        numbers: jax.Array,
        profile: Profile | None,
        fault: Fault | None,
    ) -> tuple[ExplicitState, StepReport]:
        key = jax.random.key(address[0])
        key = jax.random.fold_in(jax.random.fold_in(key, address[1]), address[2])
        # Nothing reads the gradient of the network's input.
        ctx = Context(
            key=key,
            workers=numbers,
            fault=fault,
            supported=supported,
            observe=observe,
            reduce=with_largest(reductions, profile),
            input_gradient=False,
            profile=profile,
        )
        terms = batch_size * math.prod(batch["target"].shape[2:])
        here = forward_and_backward(computed, state.params, state.stats, batch, ctx, terms, head)
        striker = Striker(fault, supported or ())

        def alone(some: jax.Array) -> Params:
            """The gradients of some of this device's workers, by their positions among them."""
            if copies:
                return jax.tree.map(lambda each: jnp.sum(each[some], 0), here.grads)
            those = dataclasses.replace(ctx, workers=numbers[some], fault=None, reduce=frozenset(), profile=None)
            theirs = jax.tree.map(lambda part: part[some], batch)
            found = forward_and_backward(network, state.params, state.stats, theirs, those, terms, head)
            return sparse.apart(found.grads, found.seen.rows)[0]

        # The only communication of a step.
        summed = jax.tree.map(lambda each: jnp.sum(each, 0), here.grads) if copies else here.grads
        local, of_tables = sparse.apart(summed, here.seen.rows)
        loss, metric, grads, struck = lax.psum((here.loss, here.metric, local, here.seen.struck), AXIS)
        grads = striker.of_sum(striker.of_worker(grads, local, numbers, AXIS, alone))
        grads, rows = sparse.joined(grads, of_tables, state.params, AXIS, count)
        stats = here.stats
        if copies:
            stats = jax.tree.map(lambda each: jnp.broadcast_to(jnp.mean(each, 0), each.shape), stats)
        stats = lax.pmean(stats, AXIS)
        stats |= of_copies(_maxima, (0, None))(state.stats, lax.pmax(here.seen.maxima, AXIS))
        with isolated("false"):
            read = sparse.read(state.params, rows)
            params, opt_state = of_copies(update, (None, 0, 0))(grads, state.opt_state, read)
            params = striker.of_update(params, read, lambda: added(grads, state.opt_state, read))
        params, kept, known = sparse.written(state.params, read, params, state.tables, rows)
        new = ExplicitState(params, stats, opt_state, kept)
        found = together(here.seen.reduced, AXIS) | scored(profile, here.seen, AXIS)
        for name, gradient in zip(leaf_names(grads), jax.tree.leaves(grads), strict=True):
            found |= together(reduced(reductions, "parameter_gradients", name, gradient))
        if WHOLE in reductions:
            found |= {f"{WHOLE}/{name}": table for name, table in sparse.whole(grads, state.params, rows).items()}
        return new, report(loss, metric, grads, new, striker.told(struck), returned(profile, here.seen), found, known)

    specs: dict[str, Any] = {field.name: whole for field in dataclasses.fields(StepReport)} | {"tensors": split}
    reported, of_state = StepReport(**specs), split if copies else whole

    def mapped(function: Callable[..., Any], in_specs: Any, out_specs: Any) -> Callable[..., Any]:
        return jax.shard_map(function, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False)

    def on_mesh(function: Callable[..., Any], in_specs: Any, out_specs: Any) -> Any:
        return jax.jit(mapped(function, in_specs, out_specs), compiler_options=compiler_options())

    def stepping(function: Callable[..., Any], more: tuple[PartitionSpec, ...] = (), **jit_options: Any) -> Any:
        on_devices = mapped(function, (of_state, split, whole, split, whole, *more), (of_state, reported))

        def of_every_copy(*arguments: Any) -> tuple[ExplicitState, StepReport]:
            new, told = on_devices(*arguments)  # which reports each device's own copies
            largest = jnp.append(told.magnitude[: len(jax.tree.leaves(single.params))], magnitude(new))
            return new, dataclasses.replace(told, digest=digest(new), magnitude=largest)

        stepped = of_every_copy if copies else on_devices
        return jax.jit(stepped, compiler_options=compiler_options(), **jit_options)

    def placed(spec: PartitionSpec) -> Callable[[Any], Any]:
        """A function that puts a tree of arrays on the devices, each process its part."""
        sharding = NamedSharding(mesh, spec)
        if jax.process_count() == 1:
            return lambda tree: jax.device_put(tree, sharding)

        def by_part(array: np.ndarray) -> jax.Array:
            return jax.make_array_from_callback(np.shape(array), sharding, lambda part: array[part])

        # device_put would compare the values of all processes, every time.
        return functools.partial(jax.tree.map, by_part)

    place, replicate = placed(split), placed(whole)
    numbers = place(np.arange(workers, dtype=np.int32))
    plain, faulty = stepping(functools.partial(step, fault=None), donate_argnums=0), stepping(step, (whole,))

    def sums(state: ExplicitState, batch: Batch, numbers: jax.Array) -> tuple[jax.Array, ...]:
        ctx = Context(key=jax.random.key(0), workers=numbers, train=False)
        logits = computed.forward(state.params, state.stats, batch["input"], ctx)[0]
        loss, metric, _ = head(logits, batch["target"])
        weighted = [jnp.sum(t * batch["weight"]) for t in (loss, metric.astype(loss.dtype), jnp.ones_like(loss))]
        return lax.psum(tuple(weighted), AXIS)

    def inference(
        state: ExplicitState, batch: Batch, numbers: jax.Array, profile: Profile | None, fault: Fault | None
    ) -> Inference:
        ctx = Context(
            key=jax.random.key(0),
            workers=numbers,
            fault=fault,
            supported=supported,
            train=False,
            observe=observe,
            reduce=with_largest(reductions, profile),
            profile=profile,
        )
        logits, _, _, seen = computed.forward(state.params, state.stats, batch["input"], ctx)
        loss, metric, _ = head(logits, batch["target"])
        found = together(seen.reduced, AXIS) | scored(profile, seen, AXIS)
        struck = lax.psum(seen.struck, AXIS)
        return Inference(loss, metric, predicted(logits), struck, returned(profile, seen), Packed(found))

    evaluated = on_mesh(sums, (of_state, split, split), whole)
    inferred = on_mesh(
        inference,
        (of_state, split, split, whole, whole),
        Inference(split, split, split, whole, split, whole),  # type: ignore[arg-type]
    )
    opened = functools.cache(batches)
    tested = functools.cache(lambda: [place(batch) for batch in opened().test()])

    def evaluate(state: ExplicitState) -> Evaluation:
        found = [evaluated(state, batch, numbers) for batch in tested()]
        loss, metric, weight = np.array(jax.device_get(found), np.float64).sum(axis=0).tolist()
        return Evaluation(loss / weight, metric / weight)

    def address(epoch: int, step: int) -> Array:
        return np.array([seed, epoch, step], np.int32)

    single = init(None)
    abstract = copied(single)
    inputs = jax.ShapeDtypeStruct((workers, batch_size // workers, *example.shape), example.dtype)

    @jax.jit
    def inverted(state: ExplicitState, gradients: Params) -> ExplicitState:
        assert isinstance(optimizer, Invertible)
        opt_state, params = optimizer.inverse(gradients, state.opt_state, state.params)
        kept = sparse.looked_at(params, state.tables)
        return ExplicitState(params, state.stats, opt_state, kept)

    @jax.jit
    def restated(state: ExplicitState) -> ExplicitState:
        return dataclasses.replace(state, tables=sparse.looked_at(state.params, state.tables))

    def undo(state: ExplicitState, told: StepReport) -> ExplicitState:
        names = leaf_names(single.params)
        leaves = [told.reductions[f"{WHOLE}/{name}"] for name in names]
        return inverted(state, replicate(jax.tree.unflatten(jax.tree.structure(single.params), leaves)))

    def activations() -> dict[str, int]:
        def forward(state: ExplicitState, x: jax.Array) -> Observations:
            ctx = Context(jax.random.key(0), jnp.arange(1), train=False, observe=frozenset({"activations"}))
            return network.forward(state.params, state.stats, x, ctx)[3]

        seen = jax.eval_shape(forward, single, jax.ShapeDtypeStruct((1, 1, *example.shape), example.dtype))
        return {site: seen.tensors["activations"][site].size for site in seen.sites}

    def watching(profile: Profile | None) -> Program:
        if profile is not None:
            profile = replicate(profile)
        return Program(
            steps_per_epoch=steps_per_epoch,
            abstract=abstract,
            leaves=_leaves(single),
            gradients=tuple(f"gradient/{name}" for name in leaf_names(single.params)),
            measure=measure,
            data=data,
            devices=count,
            init=lambda: copied(jax.device_get(init((seed,)))),
            place=place if copies else replicate,
            copies=copies,
            batch=lambda epoch, number: place(opened().train(epoch, number)),
            step=lambda state, batch, epoch, number: plain(state, batch, address(epoch, number), numbers, profile),
            faulty_step=lambda state, batch, epoch, number, fault: faulty(
                state, batch, address(epoch, number), numbers, profile, fault
            ),
            evaluate=evaluate,
            tests=tested,
            infer=lambda state, batch, fault: inferred(state, batch, numbers, profile, fault),
            activations=activations,
            exchanged=lambda: exchanged_sites(single.params, tables, of_update=not copies),
            watching=watching,
            gradient_scale=lambda: gradient_scale(network, single.params, single.stats, inputs),
            restated=restated if tables else lambda state: state,
            undo=undo if isinstance(optimizer, Invertible) and not copies else None,
            lower=lambda state, batch: plain.lower(state, batch, address(0, 0), numbers, profile),
            lower_infer=lambda state, batch: inferred.lower(state, batch, numbers, profile, None),
        )

    return watching(None)


def _maxima(stats: Stats, now: dict[str, jax.Array]) -> Stats:
    """The statistic of largest values with those of this step; none where no format needs scales."""
    return {MAXIMA: {site: remembered(stats[MAXIMA][site], each) for site, each in now.items()}} if now else {}


def _leaves(state: ExplicitState) -> tuple[Leaf, ...]:
    """Names and roles of the state's leaves."""
    names = leaf_names(state)
    named = jax.tree.unflatten(jax.tree.structure(state), names)
    moments = {
        name: moment
        for moment, tree in history(named.opt_state, named.params).items()
        for name in jax.tree.leaves(tree)
    }

    def role(name: str) -> Role:
        if name in moments:
            return Role.HISTORY
        if name.startswith("tables/"):
            return Role.KEPT
        if name.startswith("stats/"):
            return Role.VARIANCE if name.endswith("/var") else Role.STATISTIC
        return Role.PARAMETER if name.startswith("params/") else Role.OTHER

    return tuple(Leaf(name, role(name), moments.get(name, "")) for name in names)
