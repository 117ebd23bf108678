"""A network in stages, through which the workers' batches pass one after the other: pipeline parallelism."""

import functools
import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from ..models.arrays import Cache, Initial, Params, Shape, Stats
from ..models.combinators import added, chain, output_shape
from ..models.isolation import disguised
from ..models.largest import largest_across
from ..models.layer import BackwardResult, Context, ForwardResult, Layer, Observations, merge
from ..models.observe.reductions import is_sum
from .copies import alone, of_all_workers


def stage_sizes(sizes: Sequence[int], stages: int) -> list[int]:
    """How many parts of a chain each stage has: the largest stage is as small as it can be.

    Of several such splits, it is the one whose first stages have the fewest parts.

    Args:
      sizes: of the parts, such as bytes of parameters.
      stages: how many; each has one part at least.

    Raises:
      ValueError: there are fewer parts than stages.

    >>> stage_sizes([1, 1, 0, 4, 2, 2], 3), stage_sizes([5, 0, 0], 3)
    ([2, 2, 2], [1, 1, 1])
    """
    if len(sizes) < stages:
        raise ValueError(f"{len(sizes)} parts cannot be split into {stages} stages")

    @functools.cache
    def best(first: int, left: int) -> tuple[int, tuple[int, ...]]:
        """The smallest largest stage of the parts from `first` on, and how many parts each stage has."""
        if left == 1:
            return sum(sizes[first:]), (len(sizes) - first,)
        found = []
        for count in range(1, len(sizes) - first - left + 2):
            largest, counts = best(first + count, left - 1)
            found.append((max(largest, sum(sizes[first : first + count])), (count, *counts)))
        return min(found)

    return list(best(0, stages)[1])


def staged(network: Layer, stages: int, shape: Shape) -> list[tuple[Layer, Initial]]:
    """The stages of a network, each with shapes of its own parameters: its chain, split by bytes of parameters.

    Args:
      network: a chain.
      shape: of its input.

    Raises:
      ValueError: the chain has fewer parts than there are to be stages.

    >>> from fault_injection.models.layers.dense import dense
    >>> [sorted(params) for _, params in staged(chain(dense("one", 8), dense("two", 2)), 2, (1, 4, 3))]
    [['one'], ['two']]
    """
    params: Initial = {}
    stats: Initial = {}
    of_parts: list[Initial] = []
    for part in network.parts:
        p, s = part.init(None, shape)
        params, stats = params | p, stats | s
        of_parts.append(p)
        shape = output_shape(part, params, stats, shape)
    sizes = [sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(p)) for p in of_parts]
    ends = itertools.accumulate(stage_sizes(sizes, stages), initial=0)
    return [
        (chain(*network.parts[first:end]), functools.reduce(lambda one, other: one | other, of_parts[first:end], {}))
        for first, end in itertools.pairwise(ends)
    ]


def pipelined(network: Layer, stages: Sequence[Layer], axis: str | None) -> Layer:
    """The network whose stages are on the devices of an axis, one on each; or all on one device.

    Each worker's batch [1,b,…] is a micro-batch.  Gradients are summed over micro-batches, statistics averaged.
    Of a stage only its inputs are kept: the backward pass computes its forward pass again, without a
    fault.  All devices have the whole batch, parameters and results; each computes its own stage.

    Args:
      network: a chain, which the stages make up.
      axis: of as many devices as there are stages; None computes the stages in order.

    Reference: Huang et al., GPipe, NeurIPS 2019.

    >>> from fault_injection.models.layers.dense import dense
    >>> network, ctx = chain(dense("a", 1), dense("b", 1)), Context(jax.random.key(0), jnp.arange(2))
    >>> params = {name: {"kernel": jnp.array([[3.0]]), "bias": jnp.zeros(1)} for name in "ab"}
    >>> y, _, cache, _ = pipelined(network, network.parts, None).forward(params, {}, jnp.ones((2, 1, 1)), ctx)
    >>> dx, dparams, _ = pipelined(network, network.parts, None).backward(params, cache, jnp.ones_like(y), ctx)
    >>> y.tolist(), dparams["b"]["kernel"].tolist()
    ([[[9.0]], [[9.0]]], [[6.0]])
    """
    return Layer(network.init, *(_on_one_device(stages) if axis is None else _on_devices(stages, axis)), network.takes)


def _again(stage: Layer, params: Params, stats: Stats, x: jax.Array, ctx: Context) -> Cache:
    """What a stage's backward pass needs, from its input: its forward pass computed again.

    The compiler must not take over what the first forward pass has computed.  It could do so only where that is not
    struck, so what it fuses, and how it rounds, would depend on the faults that are supported.
    """
    clean = replace(ctx, fault=None, observe=frozenset(), reduce=frozenset(), profile=None)
    return stage.forward(params, stats, disguised(x), clean)[2]


def _on_one_device(stages: Sequence[Layer]) -> tuple[Any, Any]:
    def forward(params: Params, stats: Stats, x: jax.Array, ctx: Context) -> ForwardResult:
        found = []
        for r in range(len(ctx.workers)):
            new_stats: Stats = {}
            y, inputs, seen = x[r : r + 1], [], []
            for stage in stages:
                inputs.append(y)
                y, s, _, o = stage.forward(params, stats, y, alone(ctx, r))
                new_stats |= s
                seen.append(o)
            found.append((y, new_stats, inputs, merge(seen)))
        outputs, every, kept, observed = zip(*found, strict=True)
        mean = jax.tree.map(lambda *each: jnp.mean(jnp.stack(each), 0), *every)
        return jnp.concatenate(outputs), mean, (kept, stats), of_all_workers(observed)

    def backward(params: Params, cache: Cache, dy: jax.Array, ctx: Context) -> BackwardResult:
        kept, stats = cache
        dparams: Params = {}
        found = []
        for r in range(len(ctx.workers)):
            d, seen = dy[r : r + 1], []
            for s in reversed(range(len(stages))):
                own = alone(ctx if s == 0 else replace(ctx, input_gradient=True), r)
                again = _again(stages[s], params, stats, kept[r][s], own)
                d, dp, o = stages[s].backward(params, again, d, own)
                dparams = added(dparams, dp)
                seen.append(o)
            found.append((d, merge(seen)))
        dx, observed = zip(*found, strict=True)
        return jnp.concatenate(dx), dparams, of_all_workers(observed)

    return forward, backward


def _on_devices(stages: Sequence[Layer], axis: str) -> tuple[Any, Any]:
    """Both passes: at every tick each device takes what the one before it has made, and computes its stage."""
    last = len(stages) - 1

    def forward(params: Params, stats: Stats, x: jax.Array, ctx: Context) -> ForwardResult:
        count, s = len(ctx.workers), lax.axis_index(axis)
        shapes = _shapes(stages, params, stats, x, ctx)
        size = max(shape.size for shape in shapes[1:])

        def of_stage(k: int) -> Any:
            def run(m: jax.Array, flat: jax.Array) -> Any:
                given = x[m][None] if k == 0 else _unpacked(flat, shapes[k])
                y, new, _, seen = stages[k].forward(params, stats, given, _of(ctx, m))
                return _packed(y, size), new, seen

            return run

        branches, whole = _branches([*map(of_stage, range(last + 1))], size)

        def tick(carry: Any, t: jax.Array) -> Any:
            flat, kept, outputs, stats_sum, seen = carry
            m = t - s
            busy, at = (m >= 0) & (m < count), jnp.clip(m, 0, count - 1)
            kept = kept.at[at].set(jnp.where(busy, flat, kept[at]))
            y, new, observed = lax.switch(jnp.where(busy, s, last + 1), branches, at, flat)
            outputs = outputs.at[at].set(jnp.where(busy, y, outputs[at]))
            flat = lax.ppermute(y, axis, [(k, k + 1) for k in range(last)])
            return (flat, kept, outputs, jax.tree.map(jnp.add, stats_sum, new), _put(seen, observed, at, busy)), None

        room = jnp.zeros((count, size))
        begin = jnp.zeros(size), room, room, whole[0], _room(whole[1], count)
        (_, kept, outputs, stats_sum, seen), _ = lax.scan(tick, begin, jnp.arange(count + last))
        told = lax.psum((jnp.where(s == last, outputs, 0), stats_sum), axis)
        y = jnp.concatenate([_unpacked(told[0][m], shapes[-1]) for m in range(count)])
        mean = jax.tree.map(lambda leaf: leaf / count, told[1])
        return y, mean, (kept, x, stats, shapes), _across(seen, axis)

    def backward(params: Params, cache: Cache, dy: jax.Array, ctx: Context) -> BackwardResult:
        kept, x, stats, shapes = cache
        count, s, size = len(ctx.workers), lax.axis_index(axis), kept.shape[1]

        def of_stage(k: int) -> Any:
            def run(m: jax.Array, flat: jax.Array) -> Any:
                own = _of(ctx if k == 0 else replace(ctx, input_gradient=True), m)
                given = x[m][None] if k == 0 else _unpacked(kept[m], shapes[k])
                d = dy[m][None] if k == last else _unpacked(flat, shapes[k + 1])
                again = _again(stages[k], params, stats, given, own)
                dx, dp, seen = stages[k].backward(params, again, d, own)
                # Nobody reads the gradient of what comes in first.
                return jnp.zeros(size) if k == 0 else _packed(dx, size), dp, seen

            return run

        branches, whole = _branches([*map(of_stage, range(last + 1))], size)

        def tick(carry: Any, t: jax.Array) -> Any:
            flat, dparams, seen = carry
            m = t - (last - s)
            busy, at = (m >= 0) & (m < count), jnp.clip(m, 0, count - 1)
            dx, dp, observed = lax.switch(jnp.where(busy, s, last + 1), branches, at, flat)
            flat = lax.ppermute(dx, axis, [(k, k - 1) for k in range(1, last + 1)])
            return (flat, jax.tree.map(jnp.add, dparams, dp), _put(seen, observed, at, busy)), None

        begin = jnp.zeros(size), whole[0], _room(whole[1], count)
        (_, dparams, seen), _ = lax.scan(tick, begin, jnp.arange(count + last))
        return jnp.zeros_like(x), lax.psum(dparams, axis), _across(seen, axis)

    return forward, backward


def _branches(stages: Sequence[Any], size: int) -> tuple[list[Any], tuple[dict[str, Any], Observations]]:
    """The stages' passes of a micro-batch, each with zeros for what the others give, and one that does nothing.

    Args:
      stages: of each `(m, flat) -> flat, named arrays, Observations`.
      size: of `flat`.

    Returns:
      The passes, and what the last one gives but for `flat`.
    """
    passed = [jax.eval_shape(stage, jnp.int32(0), jnp.zeros(size)) for stage in stages]
    every = {name: leaves for _, named, _ in passed for name, leaves in named.items()}
    whole = _zeros(every), _zeros(merge([seen for *_, seen in passed]))

    def branch(stage: Any) -> Any:
        def run(m: jax.Array, flat: jax.Array) -> Any:
            out, named, seen = stage(m, flat)
            return out, whole[0] | named, _filled(whole[1], seen)

        return run

    return [*map(branch, stages), lambda m, flat: (jnp.zeros(size), *whole)], whole


def _of(ctx: Context, m: jax.Array) -> Context:
    return replace(ctx, workers=ctx.workers[m][None])


def _shapes(stages: Sequence[Layer], params: Params, stats: Stats, x: jax.Array, ctx: Context) -> list[Any]:
    """Shapes and dtypes of each stage's input for one micro-batch, and of what the last one gives."""
    shapes: list[Any] = [jax.ShapeDtypeStruct((1, *x.shape[1:]), x.dtype)]
    for stage in stages:
        out = jax.eval_shape(
            lambda given, stage=stage: stage.forward(params, stats, given, alone(ctx, 0))[0], shapes[-1]
        )
        shapes.append(out)
    return shapes


def _packed(tensor: jax.Array, size: int) -> jax.Array:
    """An activation as a vector of `size`, float32, which holds every narrower format."""
    flat = tensor.astype(jnp.float32).reshape(-1)
    return jnp.pad(flat, (0, size - flat.size))


def _unpacked(flat: jax.Array, shape: jax.ShapeDtypeStruct) -> jax.Array:
    return flat[: shape.size].reshape(shape.shape).astype(shape.dtype)


def _zeros(tree: Any) -> Any:
    return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), tree)


def _filled(whole: Observations, seen: Observations) -> Observations:
    """What one stage has seen, with zeros for all others."""
    tensors = {kind: named | seen.tensors.get(kind, {}) for kind, named in whole.tensors.items()}
    struck = whole.struck if seen.struck is None else seen.struck
    return replace(
        whole, struck=struck, tensors=tensors, maxima=whole.maxima | seen.maxima, reduced=whole.reduced | seen.reduced
    )


def _room(whole: Observations, count: int) -> Observations:
    """Zeros for what all micro-batches will have seen."""
    tensors = jax.tree.map(lambda leaf: jnp.zeros((count, *leaf.shape[1:]), leaf.dtype), whole.tensors)
    return replace(whole, tensors=tensors)


def _put(all: Observations, one: Observations, m: jax.Array, busy: jax.Array) -> Observations:
    """What was seen so far, with what micro-batch `m` adds."""
    return replace(
        all,
        struck=jax.tree.map(jnp.add, all.struck, one.struck),
        tensors=jax.tree.map(lambda a, b: a.at[m].set(jnp.where(busy, b[0], a[m])), all.tensors, one.tensors),
        maxima=jax.tree.map(jnp.maximum, all.maxima, one.maxima),
        reduced={
            name: (jnp.add if is_sum(name) else jnp.maximum)(part, one.reduced[name])
            for name, part in all.reduced.items()
        },
    )


def _across(seen: Observations, axis: str) -> Observations:
    """What all stages have seen; each has zeros for the others."""
    sums = {name: part for name, part in seen.reduced.items() if is_sum(name)}
    largest = {name: part for name, part in seen.reduced.items() if name not in sums}
    struck, tensors, sums = lax.psum((seen.struck, seen.tensors, sums), axis)
    maxima, largest = jax.tree.map(functools.partial(largest_across, axis=axis), (seen.maxima, largest))
    reduced = {name: (sums | largest)[name] for name in seen.reduced}
    return replace(seen, struck=struck, tensors=tensors, maxima=maxima, reduced=reduced)
