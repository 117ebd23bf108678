"""A step whose products and convolutions a fault can strike, made of the jaxpr of the step as it is.

The jaxpr of a training step contains its backward pass.  It is interpreted equation by equation: at every site the
strike is inserted, and everything else is emitted as it was.  Sites are numbered in the order of the jaxpr.  A body
is rewritten once, however often it is called: it is told the struck site as counted from its own first.
"""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import PartitionSpec, Sharding

from ..models.isolation import fence, on_cpus
from ..models.largest import largest_across
from .jax_internals import (
    UNTYPED,
    bind_checkpoint,
    bodies,
    evaluate,
    gathered,
    is_explicit,
    is_literal,
    jit_options,
    manual_axes,
    opened,
    scan_operands,
    strikable,
)
from .product_form import Form, Kept, form_of
from .step_looks import Looks, Seen
from .struck_site import NOWHERE, Aim, going_on, strike_site, words_of_aims

HERE = PartitionSpec()
SEVERAL = ("scan", "while", "cond", "shard_map")  # a site in one of these may run several times, or not at all
Layouts = dict[int, dict[int, Sharding]]  # of an equation, by `id`: of its two operands and its result


class Told(NamedTuple):
    """What a body says of itself.

    Attributes:
      words: of each aim, with what its fault did here added.
      seen: of its sites, see `Looks.told`; the largest of all turns.
      results: whole, of each of its sites, where `Looks.whole` asks for them.  Of a scan they have its turns as
        leading axis, of a `shard_map` its devices.  Of a while loop they are those of the last turn, and zeros of
        what has not run.
    """

    words: tuple[jax.Array, ...]
    seen: Seen
    results: tuple[jax.Array, ...] = ()

    def after(self, earlier: "Told") -> "Told":
        """The same of all turns of a loop so far, but for results."""
        return self._replace(results=(), seen=jax.tree.map(jnp.maximum, earlier.seen, self.seen))


class Scope(NamedTuple):
    """What a body is told of the faults, and where the body stands.

    Attributes:
      supported: numbers of the sites that can be struck, counted from the body's first.
      aims: of each fault; none where nothing is supported.
      untyped: whether the body stands in a `shard_map` that has been rewritten.
      places: int32 [sites,PLACES], where activations are sampled; None where none is, as in loops and branches.
    """

    supported: frozenset[int] = frozenset()
    aims: tuple[Aim, ...] = ()
    untyped: bool = False
    places: jax.Array | None = None

    def within(self, first: int, count: int) -> "Scope":
        """The same for a part of the body: the `count` sites from number `first` on."""
        inside = frozenset(number - first for number in self.supported if first <= number < first + count)
        aims = tuple(aim._replace(site=aim.site - first) for aim in self.aims) if inside else ()
        places = None if self.places is None else self.places[first : first + count]
        return self._replace(supported=inside, aims=aims, places=places)


class Interpreter:
    """Evaluates a jaxpr with a barrier around every site, and a strike at those that are supported.

    The barriers alone are the reference.  An inactive fault leaves its bits as they are, whichever sites are
    supported.

    Args:
      kinds: names of the primitives that are sites; each has two operands at least, and one result.
      turns: of a while loop, in how many first turns a site can be struck.
      looks: what is told of every site.
      layouts: gives how the operands and the result of each equation are shared out among devices, by its `id`.
        Without it, a strike could change how the compiler partitions an operation, and so the order of its sums.
      looking: whether layouts are found, as the compiler chooses them, when what this evaluates is compiled.

    >>> jaxpr = jax.make_jaxpr(lambda x, w: jnp.tanh(x @ w))(jnp.ones((1, 2)), jnp.ones((2, 3)))
    >>> interpreter = Interpreter(frozenset({"dot_general"}), turns=1)
    >>> interpreter.count(jaxpr.jaxpr)
    1
    >>> results, _ = interpreter.run(jaxpr.jaxpr, (), [jnp.ones((1, 2)), jnp.zeros((2, 3))])
    >>> results[0].tolist()
    [[0.0, 0.0, 0.0]]
    """

    def __init__(
        self,
        kinds: frozenset[str],
        turns: int,
        looks: Looks = Looks(),  # noqa: B008
        layouts: Callable[[], Layouts] = dict,
        looking: bool = False,
    ):
        self.kinds, self.turns, self.looks = kinds, turns, looks
        self.layouts, self.looking = layouts, looking
        self._counts: dict[int, tuple[Any, int]] = {}  # a body is kept with its number, so that no other has its id
        self._calls: dict[tuple[Any, ...], Callable[..., Any]] = {}

    def count(self, jaxpr: Any) -> int:
        """How many sites a body has, those of a body that is called twice counted twice."""
        if id(jaxpr) not in self._counts:
            self._counts[id(jaxpr)] = (jaxpr, sum(map(self.sites, jaxpr.eqns)))
        return self._counts[id(jaxpr)][1]

    def sites(self, equation: Any) -> int:
        """How many sites an equation has."""
        if strikable(equation, self.kinds):
            return 1
        return sum(self.count(body.jaxpr) for body in bodies(equation))

    def _typed(self, equation: Any) -> bool:
        """Whether an equation has types of `shard_map` in it."""
        inside = (one for body in bodies(equation) for one in body.jaxpr.eqns)
        return equation.primitive.name in UNTYPED or any(map(self._typed, inside))

    def run(
        self,
        jaxpr: Any,
        consts: Sequence[Any],
        values: Sequence[Any],
        scope: Scope = Scope(),  # noqa: B008
    ) -> tuple[list[Any], Told]:
        """A body with the strike at its supported sites.

        Args:
          consts, values: of the body's constants and arguments.
          scope: what the body is told; by default, nothing is supported.

        Returns:
          The body's results, and what it says of itself.
        """
        known, untyped = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*consts, *values], strict=True)), scope.untyped
        fences: dict[tuple[Any, Kept], jax.Array] = {}

        def value(atom: Any) -> Any:
            return atom.val if is_literal(atom) else known[atom]

        def fenced(atom: Any, kept: Kept) -> jax.Array:
            """One fence of a tensor serves all sites that read it: the compiler may make a copy for each fence."""
            if is_literal(atom):
                return fence(kept.of(jnp.asarray(atom.val)))
            if (atom, kept) not in fences:
                fences[atom, kept] = fence(kept.of(known[atom]))
            return fences[atom, kept]

        first, begun = 0, words_of_aims(scope.aims)
        words = begun
        seen = [self.looks.nothing(0)]
        whole: list[jax.Array] = []
        for equation in jaxpr.eqns:
            if strikable(equation, self.kinds):
                given = [*map(fenced, equation.invars, self._form(equation, untyped).operands)]
            else:
                given = [*map(value, equation.invars)]
            count = self.sites(equation)
            if count or (untyped and self._typed(equation)):
                there = scope.within(first, count)
                if untyped:
                    # Each site waits for the one before: devices that share a host's processors wake each other the
                    # more, the more of their sites are ready at once.  Elsewhere, sites need not wait.
                    there = there._replace(aims=going_on(there.aims, words))
                results, told = self._enter(equation, given, there)
                if told.words:  # a strike only adds to them
                    words = told.words if untyped or words is begun else tuple(map(jnp.maximum, words, told.words))
                seen.append(told.seen)
                whole += told.results
                first += count
            else:
                results = evaluate(equation, given, untyped)
            known.update(zip(equation.outvars, results, strict=True))
        told = Told(words, jax.tree.map(lambda *parts: jnp.concatenate(parts), *seen), tuple(whole))
        return [value(atom) for atom in jaxpr.outvars], told

    def _enter(self, equation: Any, values: list[Any], scope: Scope) -> tuple[list[Any], Told]:
        """An equation that is a site, or has sites in its body."""
        name, params = equation.primitive.name, equation.params
        if strikable(equation, self.kinds):
            result, words = self._site(equation, values, scope)
            results = (gathered(result),) if self.looks.whole else ()
            return [result], Told(words, self._seen(equation, values, result, scope), results)
        if not bodies(equation):
            return evaluate(equation, values, scope.untyped), Told((), self.looks.nothing(0))
        body = bodies(equation)[0]
        if name == "jit":
            return self._call(equation, body, values, scope)
        if name in SEVERAL:
            scope = scope._replace(places=None)

        def run(aims: tuple[Aim, ...], values: Sequence[Any]) -> tuple[list[Any], Told]:
            return self.run(body.jaxpr, body.consts, values, scope._replace(aims=aims))

        aims = scope.aims
        if name in ("checkpoint", "remat2"):
            new, tree = jax.tree.flatten((aims, scope.places))
            shape: list[Any] = []

            def flat(*all_values: Any) -> list[Any]:
                aims, places = jax.tree.unflatten(tree, all_values[: len(new)])
                there = scope._replace(aims=aims, places=places)
                results = self.run(body.jaxpr, body.consts, all_values[len(new) :], there)
                leaves, of_results = jax.tree.flatten(results)
                shape.append(of_results)
                return leaves

            rewritten = jax.make_jaxpr(flat)(*new, *values)
            return jax.tree.unflatten(shape[0], bind_checkpoint(equation, rewritten, new, values))
        begin = Told(words_of_aims(aims), self.looks.nothing(self.count(body.jaxpr)))
        if name == "scan":
            return self._scan(params, run, values, aims, begin)
        if name == "while":
            return self._while(params, run, values, aims, begin)
        if name == "cond":
            return self._branches(equation, values, scope)
        if name == "shard_map":
            return self._workers(params, body, values, scope)
        return run(aims, values)  # calls, and custom derivatives: the differentiation is over

    def _form(self, equation: Any, untyped: bool) -> Form:
        """In what form a site's operands are kept; as the step has them, unless each device of CPUs has its own."""
        shared = self.looking or self.layouts() or is_explicit(equation.invars[0].aval.sharding.mesh)
        return form_of(equation, as_written=not on_cpus() or bool(shared and not untyped))

    def _seen(self, equation: Any, values: list[Any], result: jax.Array, scope: Scope) -> Seen:
        """What is told of a site."""
        if not self.looks.told:
            return {}
        kept = self._form(equation, scope.untyped).operands
        given = [one.back(value) for one, value in zip(kept, values, strict=True)]
        return self.looks.at(equation, given, result, scope.places)

    def _site(self, equation: Any, values: list[Any], scope: Scope) -> tuple[jax.Array, tuple[jax.Array, ...]]:
        """One operation, laid out among devices as it was found."""
        layouts = self.layouts()
        layout = layouts.setdefault(id(equation), {}) if self.looking else layouts.get(id(equation), {})

        def laid_out(place: int, tensor: jax.Array) -> jax.Array:
            if scope.untyped:  # inside of `shard_map`, a device has operands of its own
                return tensor
            typed = jax.typeof(tensor).sharding
            if is_explicit(typed.mesh):  # the compiler keeps to what a type says where it is told to
                return jax.sharding.reshard(tensor, typed)
            if self.looking:
                jax.debug.inspect_array_sharding(tensor, callback=lambda found: layout.update({place: found}))
                return tensor
            return lax.with_sharding_constraint(tensor, layout[place]) if place in layout else tensor

        return strike_site(self._form(equation, scope.untyped), values, scope.aims, laid_out)

    def _call(self, equation: Any, body: Any, values: list[Any], scope: Scope) -> tuple[list[Any], Told]:
        """A nested call, traced once for all that call it alike; it keeps its shardings."""
        options = jit_options(equation.params)
        told = scope.aims, scope.places
        key = (id(body.jaxpr), scope.supported, len(scope.aims), scope.places is None, scope.untyped, repr(options))
        if key not in self._calls:
            blind = scope._replace(aims=(), places=None)  # what is kept has no traced values in it

            def inner(told: tuple[tuple[Aim, ...], jax.Array | None], *values: Any) -> tuple[list[Any], Told]:
                aims, places = told
                return self.run(body.jaxpr, body.consts, values, blind._replace(aims=aims, places=places))

            inner.__name__ = equation.params["name"]
            self.count(body.jaxpr)  # which keeps the body, and its id with it
            self._calls[key] = jax.jit(inner, **options)
        return self._calls[key](told, *values)

    def _scan(
        self, params: Mapping[str, Any], run: Callable[..., Any], values: list[Any], aims: tuple[Aim, ...], begin: Told
    ) -> tuple[list[Any], Told]:
        (constant, carried), length = scan_operands(dict(params)), params["length"]
        consts, init, sliced = (
            values[:constant],
            values[constant : constant + carried],
            values[constant + carried :],
        )
        options = {"length": length, "reverse": params["reverse"], "unroll": params["unroll"]}

        def turn(carry: tuple[Any, Told, list[Any]], x: list[Any]) -> tuple[Any, Any]:
            number, seen, values = carry
            inside = tuple(aim.inside(length, number) for aim in aims)
            results, told = run(going_on(inside, seen.words), [*consts, *values, *x])
            on = number + (-1 if params["reverse"] else 1)
            return (on, told.after(seen), results[:carried]), (results[carried:], told.results)

        number = np.int32(length - 1 if params["reverse"] else 0)
        (_, seen, last), (stacked, whole) = lax.scan(turn, (number, begin, init), sliced, **options)
        return [*last, *stacked], seen._replace(results=whole)

    def _while(
        self, params: Mapping[str, Any], run: Callable[..., Any], values: list[Any], aims: tuple[Aim, ...], begin: Told
    ) -> tuple[list[Any], Told]:
        of_condition, of_body = params["cond_nconsts"], params["body_nconsts"]
        looked_at, consts = values[:of_condition], values[of_condition : of_condition + of_body]
        init, condition = values[of_condition + of_body :], opened(params["cond_jaxpr"])

        def goes_on(carry: tuple[Any, Told, list[Any]]) -> Any:
            return jax.core.eval_jaxpr(condition.jaxpr, condition.consts, *looked_at, *carry[2])[0]

        def turn(carry: tuple[Any, Told, list[Any]]) -> tuple[Any, Told, list[Any]]:
            number, seen, values = carry
            inside = []
            for aim in aims:
                site = jnp.where(number < self.turns, aim.site, NOWHERE)
                turn = jnp.minimum(number, self.turns - 1)
                inside.append(aim.inside(self.turns, turn)._replace(site=site))
            results, told = run(going_on(inside, seen.words), [*consts, *values])
            return number + 1, told.after(seen)._replace(results=told.results), results

        if self.looks.whole:
            begin = begin._replace(results=_nothing(run, aims, [*consts, *init]))
        _, seen, last = lax.while_loop(goes_on, turn, (np.int32(0), begin, init))
        return last, seen

    def _branches(self, equation: Any, values: list[Any], scope: Scope) -> tuple[list[Any], Told]:
        branches, first, sites = [], 0, self.sites(equation)
        blind = scope._replace(aims=(), supported=frozenset())
        empty = [
            _nothing(lambda _, given, body=body: self.run(body.jaxpr, body.consts, given, blind), (), values[1:])
            for body in (bodies(equation) if self.looks.whole else ())
        ]
        for number, body in enumerate(bodies(equation)):
            count = self.count(body.jaxpr)

            def branch(
                *operands: Any, body: Any = body, first: int = first, count: int = count, number: int = number
            ) -> Any:
                there = scope.within(first, count)
                results, told = self.run(body.jaxpr, body.consts, operands, there)
                words = told.words if there.aims else words_of_aims(scope.aims)
                put = jax.tree.map(
                    lambda all, mine: all.at[first : first + count].set(mine), self.looks.nothing(sites), told.seen
                )
                each = [told.results if other == number else zeros for other, zeros in enumerate(empty)]
                return results, Told(words, put, tuple(itertools.chain(*each)))

            branches.append(branch)
            first += count
        return lax.switch(values[0], branches, *values[1:])

    def _workers(self, params: Mapping[str, Any], body: Any, values: list[Any], scope: Scope) -> tuple[list[Any], Told]:
        """The body of each device of a mesh.  It is rebuilt without types, because a struck worker differs."""
        axes = manual_axes(dict(params))
        count = math.prod(params["mesh"].shape[axis] for axis in axes)
        sites = self.count(body.jaxpr)
        options = {"mesh": params["mesh"], "check_vma": False, "axis_names": set(axes)}

        def worker(aims: tuple[Aim, ...], number: Any, *values: Any) -> tuple[list[Any], Told]:
            # Of a mesh in a mesh, devices count on.
            mine = tuple(aim._replace(worker=jnp.maximum(aim.worker, 0) * count + number[0]) for aim in aims)
            found, told = self.run(body.jaxpr, body.consts, values, Scope(scope.supported, mine, untyped=True))
            seen = jax.tree.map(lambda one: largest_across(one, axes), told.seen)
            # A strike only adds to the words.  Devices wait for each other to compare theirs, so they only do where one
            # of them may have been struck.
            words = []
            for aim, own in zip(aims, told.words, strict=True):
                aimed = (aim.site >= 0) & (aim.site < sites)
                words.append(lax.cond(aimed, lambda mine: lax.pmax(mine, axes), lambda mine: mine, own))
            return found, Told(tuple(words), seen, tuple(one[None] for one in told.results))

        # Told, because JAX 0.8 has no `axis_index` in a mesh in a mesh.
        numbers = jnp.arange(count) if scope.aims else None
        in_specs = (jax.tree.map(lambda _: HERE, scope.aims), PartitionSpec(axes), *params["in_specs"])
        said: Any = Told(HERE, HERE, PartitionSpec(axes))  # type: ignore[arg-type]
        mapped = jax.shard_map(worker, in_specs=in_specs, out_specs=(list(params["out_specs"]), said), **options)
        return mapped(scope.aims, numbers, *values)


def _nothing(run: Callable[..., Any], aims: tuple[Aim, ...], values: Sequence[Any]) -> tuple[jax.Array, ...]:
    """The results of a body's sites where nothing of it runs: zeros, of the shapes that they have when it runs."""
    shapes = jax.eval_shape(lambda *given: run(aims, list(given))[1].results, *values)
    return tuple(jnp.zeros(one.shape, one.dtype) for one in shapes)
