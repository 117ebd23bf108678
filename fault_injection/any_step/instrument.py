"""Strike a step of one's own, in a loop of one's own."""

import dataclasses
import functools
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from ..machine.errors import InputError, did_you_mean
from ..machine.reading import matches
from ..models.bits import ALL_ONES, host_words, mask_type, unstruck
from ..models.fault import LARGEST_OPERAND, AllStruck, Fault, Faults, Operand, as_one, each_of, is_fixed, site_id
from ..models.isolation import on_cpus
from ..models.overwrite import Fetched, fault_of, words_of
from ..models.site import TensorSpec, make_fault
from .intercept import Interpreter, Layouts, Scope, Told
from .jax_internals import PRODUCTS, is_explicit, is_of_vector, layout, line, meshes_of, opened, typed_by
from .jaxpr_sites import Follower, FoundProduct
from .site_names import names, roles
from .step_checks import operation
from .step_forms import Arguments, one_form
from .step_looks import Layers, looks, named
from .step_site import KINDS, StepSite
from .struck_site import NOWHERE, aimed
from .traced_step import Traced, trace

ALL = "all"
Position = int | tuple[int, ...]


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Instrumented:
    """A step that a fault can strike.  `instrument` makes it.

    Attributes:
      traced: the user's step.
      sites: what can be struck, by name, in the order in which a step runs it; those that were chosen.
      all_sites: the same of the whole step.
      equations: of these sites, by name.
      not_covered: what computes products and cannot be struck, one text each.
      meshes: over which parts of it run.
      interpreter: evaluates its jaxpr; what it has traced once serves every choice of sites.
    """

    traced: Traced
    sites: Mapping[str, StepSite]
    all_sites: Mapping[str, StepSite]
    equations: Mapping[str, Any]
    not_covered: tuple[str, ...]
    meshes: tuple[Any, ...]
    interpreter: Interpreter

    def __repr__(self) -> str:
        return f"<step that a fault can strike at {len(self.sites)} of its {len(self.all_sites)} sites>"

    def supporting(self, chosen: frozenset[str]) -> "Instrumented":
        """The same step, of which these sites can be struck."""
        sites = {name: site for name, site in self.all_sites.items() if name in chosen}
        return dataclasses.replace(self, sites=sites)

    def telling(self, reductions: frozenset[str], layers: Layers | None = None) -> "Instrumented":
        """The same step, which tells these reductions of its sites, of `step_looks.REPORTED`.

        Args:
          layers: whose activations it samples; None samples nothing.
        """
        told, now = looks(reductions, self.all_sites, self.equations, layers), self.interpreter
        if told == now.looks:
            return self
        return dataclasses.replace(self, interpreter=Interpreter(now.kinds, now.turns, told, now.layouts))

    def flat(
        self, words: jax.Array | tuple[jax.Array, ...] | None, *leaves: Any, places: jax.Array | None = None
    ) -> tuple[list[Any], Told]:
        """The step's results, as leaves of the new state and of the metrics, and what it says of itself.

        Args:
          words: of the fault, or of several, each at a site of its own; None gives the reference.
          leaves: of the state, then of the batch.
          places: int32 [all sites,PLACES], where activations are sampled.

        Raises:
          InputError: when it is traced, and the leaves are not as those that `instrument` was given.
        """
        self.traced.check(leaves)
        with typed_by(self.meshes):
            each = words if isinstance(words, tuple) else () if words is None else (words,)
            return self._flat(each, leaves, places)

    def _flat(
        self, words: tuple[jax.Array, ...], leaves: Sequence[Any], places: jax.Array | None
    ) -> tuple[list[Any], Told]:
        body, order = opened(self.traced.jaxpr), list(self.all_sites)
        run = functools.partial(self.interpreter.run, body.jaxpr, body.consts, leaves)
        if not words or not self.sites:
            results, told = run(Scope(places=places))
            return results, told._replace(words=words)
        numbers = np.array([order.index(name) for name in self.sites], np.int32)
        ids = np.array([site_id(name) for name in self.sites], np.int32)
        sites = [jnp.max(jnp.where(ids == fault_of(one).site, numbers, NOWHERE)) for one in words]
        return run(Scope(frozenset(numbers.tolist()), tuple(map(aimed, words, sites)), places=places))

    def named(self, told: Told) -> dict[str, jax.Array]:
        """The reductions that a step tells, by `REDUCTION/KIND/SITE`."""
        return named(told.seen, self.all_sites)

    def _with_keys(self, words: jax.Array | tuple[jax.Array, ...] | None, *leaves: Any) -> tuple[list[Any], Told]:
        """`flat` of leaves with keys as they are: to turn them into integers outside of what is compiled costs time."""
        state, batch, count = self.traced.state, self.traced.batch, len(self.traced.names)
        results, told = self.flat(words, *state.integers(leaves[:count]), *batch.integers(leaves[count:]))
        return [*state.with_keys(results[:count]), *results[count:]], told

    @functools.cached_property
    def compiled(self) -> Any:
        """The step with the words of a fault, compiled at its first call."""
        return jax.jit(self._with_keys, donate_argnums=tuple(1 + place for place in self.traced.donates))

    @functools.cached_property
    def reference_compiled(self) -> Any:
        """The step without a fault, compiled at its first call."""
        donated = tuple(1 + place for place in self.traced.donates)
        return jax.jit(lambda _, *leaves: self._with_keys(None, *leaves)[0], donate_argnums=donated)

    def words(self, fault: Fault) -> jax.Array:
        """A fault as `compiled` takes it, where the step runs.  A loop gives many steps the same fault."""
        last, known, placed = self._last[0]
        if fault is last:
            return placed
        words = words_of(fault)
        if not isinstance(words, np.ndarray):
            return words
        told = words.tobytes()
        if told != known or words.dtype != placed.dtype:
            meshes = [mesh for mesh in self.meshes if isinstance(mesh, Mesh)]
            with jax.ensure_compile_time_eval():  # also where the loop itself is traced
                placed = jax.device_put(words, NamedSharding(meshes[0], PartitionSpec()) if meshes else None)
        self._last[0] = fault if is_fixed(fault) else None, told, placed
        return placed

    @functools.cached_property
    def _last(self) -> list[tuple[Fault | None, bytes, Any]]:
        """The last fault, None if it can change; its bytes; and its words, placed."""
        return [(None, b"", None)]

    def __call__(self, fault: Faults, state: Any, batch: Any) -> tuple[tuple[Any, Any], AllStruck]:
        """One step with a fault, or a tuple of several at different sites, as `(state, metrics), struck`.

        One executable serves every site, operand, position, value, iteration and worker; only the padded number of
        elements is a shape (`models.fault.padded_size`).
        """
        words = as_one(tuple(map(self.words, each_of(fault))))
        results, told = self.compiled(words, *self._leaves(state, batch))
        return self._joined(results), as_one(tuple(map(Fetched.later, told.words)))

    def reference(self, state: Any, batch: Any) -> tuple[Any, Any]:
        """One step without a fault, as `state, metrics`: the user's step with a barrier around each operation.

        An inactive fault gives just these bits.  The user's own step may round differently, where the compiler
        fuses across a site.
        """
        return self._joined(self.reference_compiled(None, *self._leaves(state, batch)))

    def fault(
        self,
        site: str,
        operand: Operand | str,
        index: Position | Sequence[Position],
        *,
        values: Any = None,
        flip: Any = None,
        worker: int = 0,
        iteration: int | Sequence[int] = (),
    ) -> Fault:
        """A fault at one operand of one site, checked against the list of sites.

        Args:
          site: a name in `sites`.
          operand: `input` (the first), `weight` (the second) or `output`.
          index: the coordinates of one element, or a list of such; an integer is a row-major position.
          values: what each element becomes, in the operand's dtype.
          flip: a mask of the bits of each element that are inverted, instead of `values`.
          worker: of a site that every device runs with operands of its own, whose.
          iteration: of a site in loops, which turn of each, the outermost first.

        Raises:
          InputError: there is no such site, operand, element, turn or worker, or no value for it.
        """
        if site not in self.sites:
            known = " (this program was made for other sites)" if site in self.all_sites else ""
            raise InputError(f"{site!r} is not a site of this program{known}{did_you_mean(site, self.sites)}")
        place = self.sites[site]
        if isinstance(operand, str):
            valid = [one.name.lower() for one in Operand]
            if operand not in valid:
                raise InputError(f"operand {operand!r}{did_you_mean(operand, valid)}")
            operand = Operand[operand.upper()]
        turn = (iteration,) if isinstance(iteration, int) else tuple(iteration)
        if len(turn) != len(place.iterations) or not all(
            0 <= i < n for i, n in zip(turn, place.iterations, strict=True)
        ):
            expected = f"one turn for each of the loops {list(place.iterations)}" if place.iterations else "none"
            raise InputError(
                f"iteration {turn} of {site}, in loops of {list(place.iterations)} turns; expected {expected}"
            )
        if not 0 <= worker < place.owners:
            raise InputError(f"worker {worker} of {site}; expected 0 to {place.owners - 1}")
        tensor = place.operands[operand]
        if why := unstruck(tensor.dtype):
            raise InputError(f"{place.named(operand)} is {tensor.dtype}, which {why}: a fault cannot strike it")
        shape = tensor.shape[len(turn) :]
        listed: list[Position] = index if isinstance(index, list) else [index]  # type: ignore[list-item]
        before = int(np.ravel_multi_index(turn, place.iterations)) * math.prod(shape) if turn else 0
        at = [before + _position(one, shape, place.named(operand)) for one in listed]
        if (values is None) == (flip is None):
            raise InputError("a fault either sets values or flips bits; give values=… or flip=…")
        keep = 0 if flip is None else ALL_ONES
        masks = host_words(np.asarray(values).astype(tensor.dtype)) if flip is None else flip
        masks = np.broadcast_to(np.asarray(masks, mask_type(tensor.dtype)), len(at))
        try:
            return make_fault(place, operand, worker, at, keep=keep, flip=masks)
        except ValueError as error:
            raise InputError(str(error)) from None

    def _leaves(self, state: Any, batch: Any) -> list[Any]:
        return [*self.traced.state.leaves(state), *self.traced.batch.leaves(batch)]

    def _joined(self, leaves: Sequence[Any]) -> tuple[Any, Any]:
        count = len(self.traced.names)
        return self.traced.state.of_leaves(leaves[:count]), jax.tree.unflatten(self.traced.metrics, leaves[count:])


def instrument(
    step: Callable[..., Any],
    state: Any,
    batch: Any,
    sites: str | Sequence[str] = ALL,
    primitives: Sequence[str] = (),
    turns: int = 1,
    arguments: Arguments | None = None,
) -> Instrumented:
    """A step of one's own that faults can strike; nothing of its code changes.

    >>> import jax, jax.numpy as jnp
    >>> def step(state, batch):
    ...     loss, grads = jax.value_and_grad(lambda w: jnp.mean((batch @ w) ** 2))(state["w"])
    ...     return {"w": state["w"] - 0.1 * grads}, {"loss": loss}
    >>> state, batch = {"w": jnp.ones((3, 2))}, jnp.ones((4, 3))
    >>> program = instrument(step, state, batch)
    >>> program
    <step that a fault can strike at 2 of its 2 sites>
    >>> list(program.sites)
    ['forward:w', 'grad_wt:w']
    >>> fault = program.fault("forward:w", "output", (0, 1), values=[100.0])
    >>> (state, metrics), struck = program(fault, state, batch)
    >>> float(metrics["loss"]), struck.old.view("float32").tolist(), struck.new.view("float32").tolist()
    (1257.875, [3.0], [100.0])

    Args:
      step: `(state, batch) -> state, metrics`: plain JAX, or of any library on top of it, compiled or not.  Of a step
        in another form (see `step_forms.one_form`) the program returns this form, with None for no metrics.
      state, batch: as the step takes them.  Leaves that are no arrays stay as they are.
      sites: which sites can be struck: all, or patterns of their names such as `grad_wt:*`.
      primitives: names of further primitives that are sites: two operands at least, and one result.
      turns: of a while loop whose number of turns only shows when it runs, in how many first turns a fault can
        strike.
      arguments: what the step takes, made of a state and a batch, where that does not show.

    Raises:
      InputError: the step is impure, changes the form of its state, or has no such site.
    """
    traced = trace(one_form(step, state, batch, arguments), state, batch)
    program = instrumented(traced, PRODUCTS | frozenset(primitives), turns)
    leaves = program._leaves(state, batch)
    placed = meshes_of([getattr(leaf, "sharding", None) for leaf in leaves])
    program = dataclasses.replace(program, meshes=tuple(dict.fromkeys([*program.meshes, *placed])))
    left_to_compiler = program.meshes and not any(map(is_explicit, program.meshes))
    if left_to_compiler and any(not site.axes for site in program.all_sites.values()):
        program = _laid_out(program, leaves)
    return supporting_patterns(program, sites)


def _laid_out(program: Instrumented, leaves: Sequence[Any]) -> Instrumented:
    """The same step, whose sites are shared out among devices as the compiler does it where nothing can strike."""
    now = program.interpreter

    def abstract(leaf: Any, kind: Any) -> jax.ShapeDtypeStruct:
        sharding = getattr(leaf, "sharding", None)
        return jax.ShapeDtypeStruct(
            kind.shape, kind.dtype, sharding=sharding if isinstance(sharding, NamedSharding) else None
        )

    given = [abstract(*pair) for pair in zip(leaves, program.traced.jaxpr.in_avals, strict=True)]

    @functools.cache  # when a site is first traced
    def layouts() -> Layouts:
        found: Layouts = {}
        looking = Interpreter(now.kinds, now.turns, layouts=lambda: found, looking=True)
        reference = dataclasses.replace(program, interpreter=looking)
        jax.jit(lambda *leaves: reference.flat(None, *leaves)[0]).lower(*given).compile()
        return found

    return dataclasses.replace(program, interpreter=Interpreter(now.kinds, now.turns, layouts=layouts))


def instrumented(traced: Traced, kinds: frozenset[str], turns: int) -> Instrumented:
    """A traced step with all its sites; raises InputError where it has none."""
    body, follower, count = opened(traced.jaxpr), Follower(kinds, turns), len(traced.names)
    sizes = [math.prod(kind.shape) for kind in traced.jaxpr.in_avals]
    arguments = [
        follower.fresh(name, place >= count, size)
        for place, (name, size) in enumerate(zip(traced.inputs, sizes, strict=True))
    ]
    results = follower.follow(body, arguments)
    fixed = {one.label for one, new in zip(arguments[:count], results, strict=False) if one.id == new.id}
    products = follower.products
    found = roles(products, follower.moved, follower.read, fixed)
    each = list(zip(names(found), found, products, strict=True))
    sites = {name: _site(name, role, product) for name, (role, _), product in each}
    equations = {name: product.equation for name, (_, _), product in each}
    if not sites:
        raise InputError(f"the step has no site: no {', no '.join(sorted(kinds))} is in it")
    ids: dict[int, str] = {}
    for name in sites:
        if (other := ids.setdefault(site_id(name), name)) != name:
            raise InputError(f"sites {other!r} and {name!r} have the same id; rename a leaf of the state")
    vectors = [
        name for name, one in zip(sites, products, strict=True) if one.around.turns and is_of_vector(one.equation)
    ]
    if vectors and on_cpus():
        warnings.warn(
            f"{len(vectors)} sites such as {vectors[0]} multiply a vector in a loop, which XLA on CPUs compiles as one "
            "kernel with what is around it: a step with an inactive fault may differ from the reference in last places",
            stacklevel=3,
        )
    interpreter = Interpreter(kinds, turns)
    assert interpreter.count(body.jaxpr) == len(sites)  # both number them alike
    return Instrumented(traced, sites, sites, equations, tuple(follower.closed), tuple(follower.meshes), interpreter)


def _site(name: str, role: str, product: FoundProduct) -> StepSite:
    equation, around = product.equation, product.around
    kind, tensors = equation.primitive.name, zip(Operand, product.tensors, strict=True)
    return StepSite(
        name=name,
        layer=name.partition(":")[2],
        stage="forward" if role == "forward" else "backward",
        operands={operand: TensorSpec((*around.turns, *one.shape), one.dtype) for operand, one in tensors},
        kind=KINDS.get(kind, kind),
        owners=around.workers,
        conditional=around.conditional,
        role=role,
        primitive=kind,
        parameter=None if product.weight is None else Operand(product.weight),
        leaf="" if product.weight is None else product.operands[product.weight].label,
        iterations=around.turns,
        axes=around.axes,
        checked=operation(equation) is not None,
        layout=layout(equation),
        line=line(equation),
    )


def supporting_patterns(program: Instrumented, sites: str | Sequence[str]) -> Instrumented:
    """The same step, of which sites that fit patterns can be struck; raises InputError where a pattern fits none."""
    if sites == ALL:
        return program
    found: set[str] = set()
    for pattern in [sites] if isinstance(sites, str) else sites:
        fitting = [name for name in program.all_sites if matches(name, [pattern])]
        if not fitting:
            raise InputError(f"no site of the step fits {pattern!r}{did_you_mean(pattern, program.all_sites)}")
        found |= set(fitting)
    return program.supporting(frozenset(found))


def _position(index: Position, shape: tuple[int, ...], of: str) -> int:
    """The row-major position of an element; raises InputError where there is none."""
    if isinstance(index, tuple):
        if len(index) != len(shape) or not all(0 <= i < n for i, n in zip(index, shape, strict=True)):
            raise InputError(f"index {index} lies outside {of}, which is {list(shape)}")
        return int(np.ravel_multi_index(index, shape)) if shape else 0
    size = math.prod(shape)
    if not 0 <= index < min(size, LARGEST_OPERAND):
        raise InputError(f"position {index} lies outside {of}, which is {list(shape)}; expected 0 to {size - 1}")
    return int(index)
