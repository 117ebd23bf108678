"""The program of an explicit network: its step, with both passes written out, on a mesh of workers."""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from jax.sharding import NamedSharding

from ..models.fault import Fault, Struck
from ..models.isolation import isolated
from ..models.layer import Context, Layer, Params, Stats
from ..models.loss import Head, cross_entropy
from ..models.observe.dr_dna import NAME as ACTIVATIONS
from ..models.observe.dr_dna import Profile
from ..models.observe.reductions import CHOICES, reduced, together
from ..models.observe.reductions import WHOLE as WHOLE_GRADIENTS
from ..models.precision import MAXIMA
from ..seam.digest import digest, magnitude
from ..seam.measure import Evaluation, Measure
from ..seam.program import Program
from ..seam.report import Inference, StepReport, report
from ..seam.stages import EXCHANGED, UPDATE, WORKER_GRADIENT
from ..seam.strategies import REPLICATED, Strategy, Sum
from ..seam.trees import Array, Batch, leaf_names
from . import sparse
from .batch_source import BatchSource
from .copies import own_copies
from .exchange import Striker, exchanged_sites
from .gradient_scale import gradient_scale
from .inference import activation_sizes, evaluating, inferring
from .mesh import AXIS, SPLIT, WHOLE, compiler_options, devices_of_stages, mesh_of, placed, sharded, usable_devices
from .optimizers import Invertible
from .passes import forward_and_backward
from .pipeline import pipelined, staged
from .start import stages_of, starting
from .state import ExplicitState, named_leaves, with_maxima
from .sums import EXCHANGES, averaged, largest
from .watched_activations import returned, scored, with_largest


class Gathered(NamedTuple):
    """What a step has when all devices have made their passes: the same on each of them, but for `tensors`.

    Attributes:
      loss, metric: of the global batch.
      grads: summed over all workers; or [W,…] of each of the device's workers.
      stats: new running statistics.
      rows: of tables, which `grads` are of.
      struck: what a fault has done so far.
      found: reductions asked for.
      tensors: observations asked for.
    """

    loss: jax.Array
    metric: jax.Array
    grads: Params
    stats: Stats
    rows: sparse.Rows
    struck: Struck | None
    found: dict[str, jax.Array]
    tensors: dict[str, Any]


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
    strategy: Strategy = REPLICATED,
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
      reductions: of `models.observe.reductions.CHOICES`: what every step returns of tensors and products; no bit of
        a run depends on it.
      head: what is minimised, and the metric; loss and metric of a batch are means over its targets.
      tables: parameters whose gradients are sparse (`Observations.rows`); the optimizer keeps no history of them.
      strategy: how the workers share their work.  Where each has its own copy, every leaf of the state has the
        workers as leading axis.  There are `tables` with `replicated` alone.

    Raises:
      InputError: the devices of several processes cannot share the workers evenly.
    """
    pieces, copies, stages = strategy.sharded, workers if strategy.copies else 0, strategy.stages
    count = devices_of_stages(stages, devices) if stages else usable_devices(workers, devices)
    inputs = jax.ShapeDtypeStruct((workers, batch_size // workers, *example.shape), example.dtype)
    # Where the devices share the layers, each of them has all workers, and nothing is left to sum over devices.
    across, of_batch = (None, WHOLE) if stages else (AXIS, SPLIT)
    parts = staged(network, stages, inputs.shape) if stages else []
    computed = own_copies(network) if copies else network
    if stages:
        computed = pipelined(network, [stage for stage, _ in parts], AXIS if count > 1 else None)
    mesh = mesh_of(count)
    exchange = EXCHANGES[strategy.gradients]
    own_gradients = strategy.gradients is Sum.NONE

    def init(key: tuple[int, ...] | None) -> ExplicitState:
        params, stats = network.init(key, inputs.shape)
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

    single = init(None)
    abstract = copied(single)
    of_state = SPLIT if copies else WHOLE
    specs = sharded(pieces, single, count) if pieces else jax.tree.map(lambda _: of_state, single)
    shardings = jax.tree.map(lambda spec: NamedSharding(mesh, spec), specs)

    def entire(tree: Any) -> Any:
        """Gradients that each device has all of.  Else the norm of all would be a sum of what devices have."""
        return lax.with_sharding_constraint(tree, NamedSharding(mesh, WHOLE)) if pieces else tree

    @jax.jit
    @isolated("true")
    def update(grads: Params, opt_state: optax.OptState, params: Params) -> tuple[Params, optax.OptState]:
        updates, opt_state = optimizer.update(entire(grads), opt_state, params)
        return optax.apply_updates(params, updates), opt_state

    @jax.jit
    @isolated("true")
    def added(grads: Params, opt_state: optax.OptState, params: Params) -> Params:
        return optimizer.update(entire(grads), opt_state, params)[0]

    def passes(
        params: Params,
        stats: Stats,
        batch: Batch,
        address: jax.Array,
        numbers: jax.Array,
        profile: Profile | None,
        fault: Fault | None,
    ) -> Gathered:
        """The passes of this device's workers, and what is summed over all: the only communication of most steps."""
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
        # A mean over the global batch; over a worker's own where it follows its own gradient.
        terms = batch_size // (workers if own_gradients else 1) * math.prod(batch["target"].shape[2:])
        here = forward_and_backward(computed, params, stats, batch, ctx, terms, head)
        striker = Striker(fault, supported or ())

        def alone(some: jax.Array) -> Params:
            """The gradients of some of this device's workers, by their positions among them."""
            if copies:
                return jax.tree.map(lambda each: jnp.sum(each[some], 0), here.grads)
            those = dataclasses.replace(ctx, workers=numbers[some], fault=None, reduce=frozenset(), profile=None)
            theirs = jax.tree.map(lambda part: part[some], batch)
            found = forward_and_backward(network, params, stats, theirs, those, terms, head)
            return sparse.apart(found.grads, found.seen.rows)[0]

        at_once = copies and strategy.gradients is Sum.AT_ONCE
        summed = jax.tree.map(lambda each: jnp.sum(each, 0), here.grads) if at_once else here.grads
        mine, of_tables = sparse.apart(summed, here.seen.rows)
        found = exchange(here._replace(grads=mine), striker, numbers, across, count, alone)
        grads, rows = sparse.joined(found.grads, of_tables, params, AXIS, count)
        new_stats = here.stats
        if not strategy.every:
            if copies:
                new_stats = jax.tree.map(lambda each: jnp.broadcast_to(jnp.mean(each, 0), each.shape), new_stats)
            new_stats = new_stats if across is None else lax.pmean(new_stats, across)
        maxima = here.seen.maxima if across is None else lax.pmax(here.seen.maxima, across)
        new_stats |= of_copies(with_maxima, (0, None))(stats, maxima)
        told = together(here.seen.reduced, across) | scored(profile, here.seen, across)
        return Gathered(
            found.loss,
            found.metric,
            grads,
            new_stats,
            rows,
            striker.told(found.struck),
            told,
            returned(profile, here.seen),
        )

    def updated(
        state: ExplicitState, here: Gathered, address: jax.Array, fault: Fault | None
    ) -> tuple[ExplicitState, StepReport]:
        """The new state, and the report."""
        grads, rows, stats, striker = here.grads, here.rows, here.stats, Striker(fault, supported or ())
        with isolated("false"):
            read = sparse.read(state.params, rows)
            in_axes = (0 if own_gradients else None, 0, 0)
            params, opt_state = of_copies(update, in_axes)(grads, state.opt_state, read)
            params = striker.of_update(params, read, lambda: added(grads, state.opt_state, read))
        params, kept, known = sparse.written(state.params, read, params, state.tables, rows)
        if strategy.every:
            done = address[1] * steps_per_epoch + address[2] + 1
            maxima = {MAXIMA: stats[MAXIMA]} if MAXIMA in stats else {}  # which all workers share
            params, opt_state, stats = lax.cond(
                done % strategy.every == 0,
                lambda each: averaged(each, AXIS),
                lambda each: each,
                (params, opt_state, stats),
            )
            stats |= maxima
        new = ExplicitState(params, stats, opt_state, kept)
        found, of_all = here.found, AXIS if own_gradients else None
        for name, gradient in zip(leaf_names(grads), jax.tree.leaves(grads), strict=True):
            found |= together(reduced(reductions, "parameter_gradients", name, gradient), of_all)
        if WHOLE_GRADIENTS in reductions:
            tables_whole = sparse.whole(grads, state.params, rows)
            found |= {f"{WHOLE_GRADIENTS}/{name}": table for name, table in tables_whole.items()}
        struck = striker.told(here.struck)
        told = report(here.loss, here.metric, grads, new, struck, here.tensors, found, known)
        if own_gradients:
            told = dataclasses.replace(told, magnitude=largest(jnp.asarray(told.magnitude), AXIS))
        return new, told

    fields: dict[str, Any] = {field.name: WHOLE for field in dataclasses.fields(StepReport)}
    reported = StepReport(**fields | {"tensors": of_batch})
    fields = dict.fromkeys(Gathered._fields, WHOLE)
    gathered = Gathered(**fields | {"tensors": of_batch})

    def mapped(function: Callable[..., Any], in_specs: Any, out_specs: Any) -> Callable[..., Any]:
        return jax.shard_map(function, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False)

    def on_mesh(function: Callable[..., Any], in_specs: Any, out_specs: Any) -> Any:
        return jax.jit(mapped(function, in_specs, out_specs), compiler_options=compiler_options())

    def stepping(with_fault: bool, **jit_options: Any) -> Any:
        more = (WHOLE,) if with_fault else ()

        def step(state: ExplicitState, batch: Batch, address: jax.Array, *rest: Any) -> Any:
            numbers, profile, fault = rest if with_fault else (*rest, None)
            here = passes(state.params, state.stats, batch, address, numbers, profile, fault)
            return updated(state, here, address, fault)

        on_devices = mapped(step, (of_state, of_batch, WHOLE, of_batch, WHOLE, *more), (of_state, reported))

        def of_every_copy(*arguments: Any) -> tuple[ExplicitState, StepReport]:
            new, told = on_devices(*arguments)  # which reports each device's own copies
            largest = jnp.append(told.magnitude[: len(jax.tree.leaves(single.params))], magnitude(new))
            return new, dataclasses.replace(told, digest=digest(new), magnitude=largest)

        in_passes = (WHOLE, WHOLE, of_batch, WHOLE, of_batch, WHOLE, WHOLE)
        passing = mapped(passes, in_passes, gathered)

        def of_pieces(state: ExplicitState, batch: Batch, address: jax.Array, *rest: Any) -> Any:
            numbers, profile, fault = rest if with_fault else (*rest, None)
            here = passing(state.params, state.stats, batch, address, numbers, profile, fault)
            return updated(state, here, address, fault)  # the compiler shares this out by the pieces

        if pieces:
            of_report = jax.tree.map(lambda spec: NamedSharding(mesh, spec), reported)
            jit_options |= {"out_shardings": (shardings, of_report)}
        stepped = of_every_copy if copies else of_pieces if pieces else on_devices
        return jax.jit(stepped, compiler_options=compiler_options(), **jit_options)

    place, replicate, place_batch = (
        placed(mesh, specs if pieces else of_state),
        placed(mesh, WHOLE),
        placed(mesh, of_batch),
    )
    numbers = place_batch(np.arange(workers, dtype=np.int32))
    plain, faulty = stepping(False, donate_argnums=0), stepping(True)

    sums = evaluating(computed, head, across)
    inference = inferring(computed, head, across, supported, observe, reductions)
    evaluated = on_mesh(sums, (of_state, of_batch, of_batch), WHOLE)
    inferred = on_mesh(
        inference,
        (of_state, of_batch, of_batch, WHOLE, WHOLE),
        Inference(of_batch, of_batch, of_batch, WHOLE, of_batch, WHOLE),  # type: ignore[arg-type]
    )
    opened = functools.cache(batches)
    tested = functools.cache(lambda: [place_batch(batch) for batch in opened().test()])

    def evaluate(state: ExplicitState) -> Evaluation:
        found = [evaluated(state, batch, numbers) for batch in tested()]
        loss, metric, weight = np.array(jax.device_get(found), np.float64).sum(axis=0).tolist()
        return Evaluation(loss / weight, metric / weight)

    start = starting(mesh, strategy, single, specs, workers, stages_of(leaf_names(single), [p for _, p in parts]))
    shared = {WORKER_GRADIENT} if own_gradients else set(EXCHANGED) - ({UPDATE} if copies else set())

    def address(epoch: int, step: int) -> Array:
        return np.array([seed, epoch, step], np.int32)

    @jax.jit
    def inverted(state: ExplicitState, gradients: Params) -> ExplicitState:
        assert isinstance(optimizer, Invertible)
        opt_state, params = optimizer.inverse(gradients, state.opt_state, state.params)
        kept = sparse.looked_at(params, state.tables)
        return ExplicitState(params, state.stats, opt_state, kept)

    @functools.partial(jax.jit, out_shardings=shardings if pieces else None)
    def restated(state: ExplicitState) -> ExplicitState:
        return dataclasses.replace(state, tables=sparse.looked_at(state.params, state.tables))

    def undo(state: ExplicitState, told: StepReport) -> ExplicitState:
        names = leaf_names(single.params)
        leaves = [told.reductions[f"{WHOLE_GRADIENTS}/{name}"] for name in names]
        return inverted(state, replicate(jax.tree.unflatten(jax.tree.structure(single.params), leaves)))

    def watching(profile: Profile | None) -> Program:
        if profile is not None:
            profile = replicate(profile)
        return Program(
            steps_per_epoch=steps_per_epoch,
            abstract=abstract,
            leaves=named_leaves(single),
            gradients=tuple(f"gradient/{name}" for name in leaf_names(single.params)),
            measure=measure,
            data=data,
            devices=count,
            init=lambda: copied(jax.device_get(init((seed,)))),
            place=place,
            copies=copies,
            start=start,
            loaders=strategy.loaders(workers),
            diverges=strategy.diverges,
            sharded="params" in pieces,
            batch=lambda epoch, number: place_batch(opened().train(epoch, number)),
            step=lambda state, batch, epoch, number: plain(state, batch, address(epoch, number), numbers, profile),
            faulty_step=lambda state, batch, epoch, number, fault: faulty(
                state, batch, address(epoch, number), numbers, profile, fault
            ),
            evaluate=evaluate,
            tests=tested,
            infer=lambda state, batch, fault: inferred(state, batch, numbers, profile, fault),
            activations=lambda: activation_sizes(network, single, example),
            exchanged=lambda: exchanged_sites(single.params, tables, shared),
            watching=watching,
            reports=frozenset((*CHOICES, ACTIVATIONS)),
            gradient_scale=lambda: gradient_scale(network, single.params, single.stats, inputs),
            restated=restated if tables or pieces else lambda state: state,
            undo=undo if isinstance(optimizer, Invertible) and not copies else None,
            lower=lambda state, batch: plain.lower(state, batch, address(0, 0), numbers, profile),
            lower_infer=lambda state, batch: inferred.lower(state, batch, numbers, profile, None),
        )

    return watching(None)
