"""The step of an explicit network: both passes, the exchange between workers, the update; and its evaluation."""

import dataclasses
import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax

from ..models.arrays import Params, Stats
from ..models.fault import AllStruck, Fault, Faults, inactive_fault
from ..models.isolation import isolated
from ..models.largest import largest_across
from ..models.layer import Context, Observations
from ..models.loss import predicted
from ..models.observe.dr_dna import Profile
from ..models.observe.reductions import RESULTS, WHOLE_RESULTS, together
from ..models.precision import MAXIMA
from ..seam.digest import digest, magnitude
from ..seam.leaves import Batch
from ..seam.packed import Packed
from ..seam.report import Inference, StepReport
from ..seam.reporting import report
from ..seam.strategies import Sum
from ..seam.watched_activations import returned, scored
from . import sparse, step_reductions
from .exchange import Striker
from .layout import Layout
from .mesh import AXIS, WHOLE, jitted
from .passes import Passes, forward_and_backward
from .recipe import Recipe
from .state import ExplicitState, with_maxima
from .sums import averaged, exchanged, of_first, sum_over

LOWERED = ("step", "faulty_step", "evaluate", "infer")  # see `Extras.lower`


class Gathered(NamedTuple):
    """What a step has when all devices have made their passes: the same on each of them, but for `tensors`.

    Attributes:
      loss, metric: of the global batch.
      grads: summed over all workers; or [W,…] of each of the device's workers.
      stats: new running statistics.
      rows: of tables, which `grads` are of.
      struck: what a fault, or each of several, has done so far.
      found: reductions asked for.
      tensors: observations asked for.
    """

    loss: jax.Array
    metric: jax.Array
    grads: Params
    stats: Stats
    rows: sparse.Rows
    struck: AllStruck | None
    found: dict[str, jax.Array]
    tensors: dict[str, Any]


@dataclasses.dataclass(frozen=True, eq=False)
class Engine:
    """The step of a recipe on devices.

    Attributes:
      recipe: what is trained.
      layout: of it on the devices.
      supported: sites that a faulty step can strike; None for all.
      reductions: of `models.observe.reductions.CHOICES`, or `WHOLE_RESULTS`: what every step returns of tensors and
        products; no bit of a run depends on it.
    """

    recipe: Recipe
    layout: Layout
    supported: frozenset[str] | None = None
    reductions: frozenset[str] = frozenset()

    def _striker(self, fault: Faults | None) -> Striker:
        """What strikes between the passes and the new state."""
        return Striker(fault, self.supported or ())

    def passes(
        self,
        params: Params,
        stats: Stats,
        batch: Batch,
        address: jax.Array,
        numbers: jax.Array,
        profile: Profile | None,
        fault: Faults | None,
    ) -> Gathered:
        """The passes of this device's workers, and what is summed over all: the only communication of most steps.

        Args:
          address: int32 [3]: seed, epoch, step.
          numbers: int32 [R] of this device's workers.
        """
        layout, recipe = self.layout, self.recipe
        key = jax.random.key(address[0])
        key = jax.random.fold_in(jax.random.fold_in(key, address[1]), address[2])
        ctx = Context(
            key=key,
            workers=numbers,
            fault=fault,
            supported=self.supported,
            observe=frozenset({RESULTS} if WHOLE_RESULTS in self.reductions else ()),
            reduce=self.reductions,
            input_gradient=False,  # which nothing reads
            profile=profile,
        )
        # A mean over the global batch; over a worker's own where it follows its own gradient.
        shared = recipe.workers if recipe.own_gradients else 1
        terms = recipe.batch_size // shared * math.prod(batch["target"].shape[2:])
        here = forward_and_backward(layout.network, params, stats, batch, ctx, terms, recipe.head)
        striker, across = self._striker(fault), layout.across

        def alone(some: jax.Array) -> Params:
            """The gradients of some of this device's workers, by their positions among them."""
            if recipe.copies:
                return jax.tree.map(lambda each: jnp.sum(each[some], 0), here.grads)
            # A fault in a gradient strikes no operation; of several, another may.
            beside = fault if isinstance(fault, tuple) else None
            those = dataclasses.replace(ctx, workers=numbers[some], fault=beside, profile=None)
            those = dataclasses.replace(those, observe=frozenset(), reduce=frozenset())
            theirs = jax.tree.map(lambda part: part[some], batch)
            found = forward_and_backward(recipe.network, params, stats, theirs, those, terms, recipe.head)
            return sparse.apart(found.grads, found.seen.rows)[0]

        at_once = recipe.copies and recipe.strategy.gradients is Sum.AT_ONCE
        summed = jax.tree.map(lambda each: jnp.sum(each, 0), here.grads) if at_once else here.grads
        mine, of_tables = sparse.apart(summed, here.seen.rows)
        rule, passes = recipe.strategy.gradients, here._replace(grads=mine)
        local = step_reductions.of_local_gradients(recipe, self.reductions, here.grads, across, layout.devices)
        loss, metric, grads, struck = exchanged(rule, passes, striker, numbers, across, layout.devices, alone)
        grads, rows = sparse.joined(grads, of_tables, params, AXIS, layout.devices)
        new_stats = self._statistics(stats, here, numbers)
        told = together(here.seen.reduced, across) | scored(profile, here.seen.tensors, across) | local
        struck = striker.told(struck)
        return Gathered(loss, metric, grads, new_stats, rows, struck, told, returned(profile, here.seen.tensors))

    def _statistics(self, stats: Stats, here: Passes, numbers: jax.Array) -> Stats:
        """The new running statistics: the mean over all workers, or worker 0's; or each worker's, to be averaged."""
        layout, new, maxima = self.layout, here.stats, here.seen.maxima
        across = layout.across
        if self.recipe.strategy.buffers:
            new = of_first(new, numbers, across)
        elif not self.recipe.strategy.every:
            if self.recipe.copies:
                new = jax.tree.map(lambda each: jnp.broadcast_to(jnp.mean(each, 0), each.shape), new)
            new = new if across is None else lax.pmean(new, across)
        maxima = maxima if across is None else jax.tree.map(partial(largest_across, axis=across), maxima)
        return new | layout.of_copies(with_maxima, (0, None))(stats, maxima)

    def update(self, grads: Params, opt_state: Any, params: Params) -> tuple[Params, Any]:
        """The optimizer's step of one copy: new parameters and optimizer state."""
        updates, opt_state = self.recipe.optimizer.update(self.layout.entire(grads), opt_state, params)
        return optax.apply_updates(params, updates), opt_state

    def added(self, grads: Params, opt_state: Any, params: Params) -> Params:
        """What that step adds to the parameters."""
        added: Params = self.recipe.optimizer.update(self.layout.entire(grads), opt_state, params)[0]
        return added

    def updated(
        self, state: ExplicitState, here: Gathered, address: jax.Array, fault: Faults | None
    ) -> tuple[ExplicitState, StepReport]:
        """The new state, and the report."""
        recipe, strategy = self.recipe, self.recipe.strategy
        grads, rows, stats, striker = here.grads, here.rows, here.stats, self._striker(fault)
        update, added = (jax.jit(isolated("true")(one)) for one in (self.update, self.added))
        with isolated("false"):
            read = sparse.read(state.params, rows)
            in_axes = (0 if recipe.own_gradients else None, 0, 0)
            params, opt_state = self.layout.of_copies(update, in_axes)(grads, state.opt_state, read)
            params = striker.of_update(params, read, lambda: added(grads, state.opt_state, read))
        done = address[1] * recipe.steps_per_epoch + address[2]
        found = here.found | step_reductions.of_gradients(recipe, self.reductions, grads, state.params, rows)
        found |= step_reductions.of_update(recipe, self.reductions, read, params, opt_state, done)
        params, kept, known = sparse.written(state.params, read, params, state.tables, rows)
        if strategy.every:
            maxima = {MAXIMA: stats[MAXIMA]} if MAXIMA in stats else {}  # which all workers share
            params, opt_state, stats = lax.cond(
                (done + 1) % strategy.every == 0,
                lambda each: averaged(each, AXIS),
                lambda each: each,
                (params, opt_state, stats),
            )
            stats |= maxima
        new = ExplicitState(params, stats, opt_state, kept)
        told = report(here.loss, here.metric, grads, new, striker.told(here.struck), here.tensors, found, known)
        if recipe.own_gradients:
            told = told._replace(magnitude=largest_across(jnp.asarray(told.magnitude), AXIS))
        return new, told

    def stepping(self, with_fault: bool) -> Any:
        """The compiled step `(state, batch, address, numbers, profile) -> state, report`, or with a fault behind these.

        A step without a fault consumes the state's buffers.
        """
        layout, options = self.layout, {} if with_fault else {"donate_argnums": 0}
        of_batch, of_state, more = layout.of_batch, layout.of_state, (WHOLE,) if with_fault else ()
        whole: dict[str, Any] = dict.fromkeys(StepReport._fields, WHOLE)
        reported = StepReport(**whole | {"tensors": of_batch})
        whole = dict.fromkeys(Gathered._fields, WHOLE)
        gathered = Gathered(**whole | {"tensors": of_batch})
        passing: Callable[..., Gathered] = self.passes

        def step(state: ExplicitState, batch: Batch, address: jax.Array, *rest: Any) -> Any:
            numbers, profile, fault = rest if with_fault else (*rest, None)
            here = passing(state.params, state.stats, batch, address, numbers, profile, fault)
            return self.updated(state, here, address, fault)

        if layout.pieces:  # which the compiler shares the update out by
            in_passes = (WHOLE, WHOLE, of_batch, WHOLE, of_batch, WHOLE, WHOLE)
            passing = layout.mapped(self.passes, in_passes, gathered)
            shardings = layout.shardings(layout.specs), layout.shardings(reported)
            return jitted(step, out_shardings=shardings, **options)
        in_specs = (of_state, of_batch, WHOLE, of_batch, WHOLE, *more)
        on_devices = layout.mapped(step, in_specs, (of_state, reported))

        def of_every_copy(*arguments: Any) -> tuple[ExplicitState, StepReport]:
            new, told = on_devices(*arguments)  # which reports each device's own copies
            gradients = told.magnitude[: len(jax.tree.leaves(self.recipe.single.params))]
            largest = jnp.append(gradients, magnitude(new))
            return new, told._replace(digest=digest(new), magnitude=largest)

        return jitted(of_every_copy if self.recipe.copies else on_devices, **options)

    def evaluate(self, state: ExplicitState, batch: Batch, numbers: jax.Array) -> tuple[jax.Array, ...]:
        """Sums of loss, metric and weight of a batch of the test data, over all devices."""
        ctx = Context(key=jax.random.key(0), workers=numbers, train=False)
        logits = self.layout.network.forward(state.params, state.stats, batch["input"], ctx)[0]
        loss, metric, _ = self.recipe.head(logits, batch["target"])
        weighted = [jnp.sum(t * batch["weight"]) for t in (loss, metric.astype(loss.dtype), jnp.ones_like(loss))]
        return sum_over(tuple(weighted), self.layout.across)

    def infer(
        self, state: ExplicitState, batch: Batch, numbers: jax.Array, profile: Profile | None, fault: Fault | None
    ) -> Inference:
        """A forward pass in evaluation, and what it says of each example."""
        ctx = Context(
            key=jax.random.key(0),
            workers=numbers,
            fault=fault,
            supported=self.supported,
            train=False,
            reduce=self.reductions,
            profile=profile,
        )
        logits, _, _, seen = self.layout.network.forward(state.params, state.stats, batch["input"], ctx)
        loss, metric, _ = self.recipe.head(logits, batch["target"])
        across = self.layout.across
        found = together(seen.reduced, across) | scored(profile, seen.tensors, across)
        struck = sum_over(seen.struck, across)
        return Inference(loss, metric, predicted(logits), struck, returned(profile, seen.tensors), Packed(found))

    def activation_sizes(self) -> dict[str, int]:
        """Elements of one example's activation by forward operation; nothing is computed."""
        network, example = self.recipe.network, self.recipe.example

        def forward(state: ExplicitState, x: jax.Array) -> Observations:
            ctx = Context(jax.random.key(0), jnp.arange(1), train=False, observe=frozenset({"activations"}))
            return network.forward(state.params, state.stats, x, ctx)[3]

        x = jax.ShapeDtypeStruct((1, 1, *example.shape), example.dtype)
        seen = jax.eval_shape(forward, self.recipe.single, x)
        return {site: seen.tensors["activations"][site].size for site in seen.sites}

    def evaluating(self) -> tuple[Any, Any]:
        """The compiled `evaluate` and `infer` of all devices."""
        layout, each = self.layout, self.layout.of_batch
        said: Any = Inference(each, each, each, WHOLE, each, WHOLE)  # type: ignore[arg-type]
        return (
            jitted(layout.mapped(self.evaluate, (layout.of_state, each, each), WHOLE)),
            jitted(layout.mapped(self.infer, (layout.of_state, each, each, WHOLE, WHOLE), said)),
        )

    def lowered(self, part: str, profile: Profile | None) -> Any:
        """What is compiled, before compilation (`jax.stages.Lowered`), from shapes alone.

        Args:
          part: one of `LOWERED`.
        """
        layout, stepping = self.layout, part in ("step", "faulty_step")
        workers = jax.ShapeDtypeStruct((self.recipe.workers,), jnp.int32)
        batch = {name: shape for name, shape in self.recipe.batch.items() if name != "weight" or not stepping}
        state = layout.shaped(layout.of_whole_state, self.recipe.state().abstract)
        batch, numbers = (layout.shaped(layout.of_batch, tree) for tree in (batch, workers))
        address = np.zeros(3, np.int32)
        if part == "step":
            return self.stepping(False).lower(state, batch, address, numbers, profile)
        if part == "faulty_step":
            return self.stepping(True).lower(state, batch, address, numbers, profile, inactive_fault())
        evaluate, infer = self.evaluating()
        if part == "evaluate":
            return evaluate.lower(state, batch, numbers)
        return infer.lower(state, batch, numbers, profile, None)
