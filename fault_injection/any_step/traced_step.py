"""A user's step as it is, traced to a jaxpr of arrays alone; what cannot be traced is refused in one line."""

import contextlib
import gc
import re
import types
import weakref
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ..machine.errors import InputError
from ..seam.trees import leaf_names
from .jax_internals import Body, bodies, is_literal, line, opened, trace_of
from .step_forms import Step
from .step_mistakes import cannot_be_traced, check_names, check_results, keeper

WORDS = "OSUMm"  # kinds of NumPy's types that are no numbers: objects, text, dates
REGISTER = "make it a pytree, as with jax.tree_util.register_dataclass, or keep its arrays in a dict"


class Flattening(NamedTuple):
    """How a tree of the user's is kept as arrays.

    Leaves that are no arrays or numbers, such as an activation function or a flag of a model, stay as they are.  Keys
    of random numbers are kept as the integers that they consist of.

    Attributes:
      structure: of the user's tree.
      settings: each leaf that is no array, with its place among all leaves.
      keys: of each array that is a key, its place among the arrays, and how it makes numbers.
    """

    structure: Any
    settings: tuple[tuple[int, Any], ...]
    keys: tuple[tuple[int, Any], ...]

    def arrays(self, tree: Any) -> list[Any]:
        """The arrays of another tree of the user's; raises InputError where it has other leaves or settings."""
        return self.integers(self.leaves(tree))

    def leaves(self, tree: Any) -> list[Any]:
        """The same, with keys as they are."""
        leaves, structure = jax.tree.flatten(tree)
        if structure != self.structure:  # it may be like it nevertheless, with new functions in it
            known = leaf_names(jax.tree.unflatten(self.structure, range(self.structure.num_leaves)))
            if odd := sorted({*known} ^ {*leaf_names(tree)}):
                what = "lacks" if odd[0] in known else "has"
                raise InputError(f"the step was traced with other leaves: this state or batch {what} {odd[0]!r}")
        for place, setting in self.settings:
            if _differs(leaves[place], setting):
                if has_arrays(setting):
                    name, kind = leaf_names(tree)[place], type(setting).__name__
                    raise InputError(
                        f"{repr(name) if name else 'it'} is another {kind} than the step was traced with: {REGISTER}"
                    )
                raise InputError(
                    f"{leaf_names(tree)[place]!r} is {leaves[place]!r}; the step was traced with {setting!r}: "
                    "give it as an array if it changes"
                )
        for place, _ in reversed(self.settings):
            del leaves[place]
        return leaves

    def integers(self, leaves: Sequence[Any]) -> list[Any]:
        """Such arrays, with keys as the integers that they consist of."""
        arrays = list(leaves)
        for place, _ in self.keys:
            arrays[place] = jax.random.key_data(arrays[place])
        return arrays

    def with_keys(self, arrays: Sequence[Any]) -> list[Any]:
        """Such arrays, with keys as they are."""
        leaves = list(arrays)
        for place, how in self.keys:
            leaves[place] = jax.random.wrap_key_data(leaves[place], impl=how)
        return leaves

    def joined(self, arrays: Sequence[Any]) -> Any:
        """The user's tree, of such arrays."""
        return self.of_leaves(self.with_keys(arrays))

    def of_leaves(self, leaves: Sequence[Any]) -> Any:
        """The user's tree, of such arrays with keys as they are."""
        leaves = list(leaves)
        for place, setting in self.settings:
            leaves.insert(place, setting)
        return jax.tree.unflatten(self.structure, leaves)


def flattened(tree: Any, counted: Collection[int] | None = None) -> tuple[Any, Flattening]:
    """The arrays of a tree, with None in the place of what is none, and how the tree is made of them again.

    Args:
      counted: places of the leaves among which Python's numbers count as arrays; by default, all do.

    >>> arrays, form = flattened({"w": np.ones(2), "act": abs, "step": 0})
    >>> sorted(arrays), arrays["act"], form.joined(jax.tree.leaves(arrays))["act"]
    (['act', 'step', 'w'], None, <built-in function abs>)
    """

    def is_array(leaf: Any) -> bool:  # a Python bool is a setting, by which a step branches
        words = isinstance(leaf, (np.ndarray, np.generic)) and (leaf.dtype.kind in WORDS or leaf.dtype.names)
        known = isinstance(leaf, (jax.Array, np.ndarray, np.generic, int, float, complex))
        return known and not words and not isinstance(leaf, bool)

    leaves, structure = jax.tree.flatten(tree)
    fixed = [counted is not None and place not in counted and is_number(leaf) for place, leaf in enumerate(leaves)]
    settings = tuple((place, leaf) for place, leaf in enumerate(leaves) if fixed[place] or not is_array(leaf))
    arrays = [leaf for place, leaf in enumerate(leaves) if not fixed[place] and is_array(leaf)]
    keys = tuple((place, jax.random.key_impl(leaf)) for place, leaf in enumerate(arrays) if _is_key(leaf))
    others = {place for place, _ in settings}
    plain = [
        None if place in others else jax.random.key_data(leaf) if _is_key(leaf) else leaf
        for place, leaf in enumerate(leaves)
    ]
    return jax.tree.unflatten(structure, plain), Flattening(structure, settings, keys)


def _differs(leaf: Any, setting: Any) -> bool:
    """Whether a setting has another value.  Functions that are made anew, as by another `init`, cannot be compared."""
    if type(leaf) is not type(setting):
        return True
    if has_arrays(leaf) or has_arrays(setting):  # nothing sees what is in them
        return leaf is not setting
    if isinstance(leaf, np.ndarray):  # of strings, dates or objects
        return not np.array_equal(leaf, setting)
    return type(leaf).__eq__ is not object.__eq__ and bool(leaf != setting)  # type: ignore[comparison-overlap]


def is_number(leaf: Any) -> bool:
    """Whether a leaf is a number of Python's own."""
    return type(leaf) in (int, float, complex)


def has_arrays(leaf: Any, depth: int = 3) -> bool:
    """Whether a leaf is an object that JAX does not see into, with arrays in it."""
    if depth == 0 or isinstance(leaf, (jax.Array, np.ndarray, np.generic, type, types.FunctionType, types.ModuleType)):
        return False
    slots = [getattr(leaf, name, None) for name in getattr(type(leaf), "__slots__", ()) if isinstance(name, str)]
    inside = [*getattr(leaf, "__dict__", {}).values(), *slots]
    found = [one for value in inside for one in jax.tree.leaves(value)]
    return any(isinstance(one, (jax.Array, np.ndarray)) or has_arrays(one, depth - 1) for one in found)


def _place(path: Any, of: str) -> str:
    name = jax.tree_util.keystr(path, simple=True, separator="/")
    return f"{name!r} of the {of}" if name else f"the {of}"


def _changing(step: Step, state: Any, batch: Any) -> frozenset[int]:
    """Places of Python's numbers in a state that a step turns into arrays or changes.

    The others stay what they are, such as sizes and rates of a model: the user's own step sees numbers.
    """
    leaves = jax.tree.leaves(state)
    numbers = {place for place, leaf in enumerate(leaves) if is_number(leaf)}
    if not numbers:
        return frozenset()
    new: list[Any] = []
    form, of_batch = flattened(state, ())[1], flattened(batch)[1]
    given = [*form.arrays(state), *of_batch.arrays(batch)]
    count = len(given) - len(of_batch.arrays(batch))

    def flat(*arrays: Any) -> None:
        result = step(form.joined(arrays[:count]), of_batch.joined(arrays[count:]))
        new.extend(jax.tree.leaves(result[0]))

    try:
        jax.make_jaxpr(flat)(*given)
    except Exception:  # what it is shows when they are arrays
        return frozenset(numbers)
    if len(new) != len(leaves):
        return frozenset(numbers)
    return frozenset(place for place in numbers if not (is_number(new[place]) and new[place] == leaves[place]))


def _is_key(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


class Traced(NamedTuple):
    """A step of arrays.

    Attributes:
      jaxpr: of the leaves of the state's arrays, then of the batch's; its results are those of the new state's
        arrays, then of the metrics.
      state, batch: how the user's trees are made of arrays.
      arrays: the tree of the state's arrays.
      metrics: the tree of the metrics.
      names: of the state's arrays, by their paths.
      inputs: of all arguments, a batch's by `batch/…`.
      donates: numbers of the arguments whose buffers the user's step gives away.
    """

    jaxpr: Any
    state: Flattening
    batch: Flattening
    arrays: Any
    metrics: Any
    names: tuple[str, ...]
    inputs: tuple[str, ...]
    donates: tuple[int, ...]

    def check(self, leaves: Sequence[Any]) -> None:
        """See that arguments are as those of the trace; raises InputError."""
        if len(leaves) != len(self.inputs):
            raise InputError(f"state and batch have {len(leaves)} arrays; the step was traced with {len(self.inputs)}")
        self._alike(self.inputs, leaves, self.jaxpr.in_avals)

    def batch_of(self, given: Any) -> list[Any]:
        """The arrays of a batch; raises InputError where they are not as those of the trace."""
        arrays, first = self.batch.arrays(given), len(self.names)
        remedy = "; batches are all of one shape and type: drop the last one, or pad it"
        self._alike(self.inputs[first:], arrays, self.jaxpr.in_avals[first:], remedy)
        return arrays

    def _alike(self, names: Sequence[str], leaves: Sequence[Any], avals: Sequence[Any], remedy: str = "") -> None:
        for name, leaf, known in zip(names, leaves, avals, strict=True):
            kind = jax.dtypes.canonicalize_dtype(getattr(leaf, "dtype", None) or np.result_type(leaf))
            if (np.shape(leaf), kind) != (known.shape, known.dtype):
                found, expected = f"{kind}{list(np.shape(leaf))}", f"{known.dtype}{list(known.shape)}"
                raise InputError(f"{name!r} is {found}; the step was traced with {expected}{remedy}")


def trace(step: Step, state: Any, batch: Any) -> Traced:
    """Trace `step(state, batch) -> state, metrics`, as it is.

    Args:
      state, batch: any pytrees of the user's.

    Raises:
      InputError: the step cannot be traced, has other results, gives the state other shapes, dtypes or leaves,
        keeps traced values, or computes something else when it is traced again.
    """
    for path, leaf in jax.tree_util.tree_flatten_with_path(state)[0]:
        if has_arrays(leaf):
            raise InputError(
                f"{_place(path, 'state')} is a {type(leaf).__name__} that JAX does not see into: {REGISTER}"
            )
    counted = _changing(step, state, batch)
    of_state, state_form = flattened(state, counted)
    of_batch, batch_form = flattened(batch)
    leaves = [*jax.tree.leaves(of_state), *jax.tree.leaves(of_batch)]
    count = len(jax.tree.leaves(of_state))
    names = _names(of_state)
    check_names(names)
    told: list[Any] = []

    def flat(*given: Any) -> list[Any]:
        results = step(state_form.joined(given[:count]), batch_form.joined(given[count:]))
        check_results(results, state)
        new, metrics = flattened(results[0], counted)[0], results[1]
        told[:] = [_names(new), jax.tree.structure(metrics)]
        return [*jax.tree.leaves(new), *jax.tree.leaves(metrics)]

    closed = _traced(flat, leaves)
    after, metrics = told
    _check_state(names, leaves, after, closed.out_avals)
    jax.clear_caches()  # in which nested functions would be found as they were traced
    again = _traced(lambda *given: flat(*given), leaves, watching=True)
    if _text(closed.jaxpr) != _text(again.jaxpr) or not _same(closed.consts, again.consts):
        where = _where(opened(closed), opened(again))
        raise InputError(
            f"the step computes something else when it is traced again{where}: it reads what lies outside of its state "
            "and batch, such as a global counter or a random number of Python; put that into the state"
        )
    first = closed.jaxpr.eqns[0] if len(closed.jaxpr.eqns) == 1 else None
    donated = first.params.get("donated_invars", ()) if first is not None else ()
    places = {var: place for place, var in enumerate(closed.jaxpr.invars)}
    operands = first.invars if first is not None and donated else ()
    gives = {places[var] for var, gone in zip(operands, donated, strict=True) if gone}
    inputs = (*names, *(f"batch/{name}" if name else "batch" for name in leaf_names(of_batch)))
    return Traced(closed, state_form, batch_form, of_state, metrics, tuple(names), inputs, tuple(sorted(gives)))


def _names(state: Any) -> list[str]:
    """The paths of a state's leaves; a state that is one array is called `state`."""
    return [name or "state" for name in leaf_names(state)]


def _traced(flat: Callable[..., Any], leaves: Sequence[Any], watching: bool = False) -> Any:
    try:
        if not watching:
            return jax.make_jaxpr(flat)(*leaves)
        with jax.checking_leaks(), _only_new_garbage():
            return jax.make_jaxpr(flat)(*leaves)
    except InputError:
        raise
    except Exception as error:
        if not watching:
            raise cannot_be_traced(error) from error
    # A value is kept, or JAX's own search for what keeps it has failed, as it does where a dictionary is.
    return _kept_by_caches(flat, leaves)


def _kept_by_caches(flat: Callable[..., Any], leaves: Sequence[Any]) -> Any:
    """The step traced again, if caches are all that kept values of it; raises InputError if the user's code did.

    JAX's caches keep a function under `jax.checkpoint` with the values that it closes over, which is no mistake of the
    user.  Libraries have caches of their own.
    """
    traces: list[weakref.ref[Any]] = []

    def noted(*given: Any) -> list[Any]:
        traces.append(weakref.ref(trace_of(given[0])))
        return flat(*given)

    closed = _traced(noted, leaves)
    jax.clear_caches()
    gc.collect()
    trace = traces[0]()
    kept = "" if trace is None else keeper(trace)
    if kept:
        raise InputError(
            f"the step keeps a value that it computes outside of itself ({kept}): return it among the metrics"
        )
    return closed


@contextlib.contextmanager
def _only_new_garbage() -> Iterator[None]:
    """Garbage collection looks at what is made from here on.

    A search for leaks collects garbage at each nested call.  Where large libraries are loaded, a step's trace would
    take minutes in place of seconds.
    """
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def _check_state(names: list[str], leaves: Sequence[Any], after: list[str], results: Sequence[Any]) -> None:
    """See that the new state is like the one before."""
    if names != after:
        odd = next((name for name in [*names, *after] if (name in names) != (name in after)), names[0])
        how = "loses" if odd in names else "adds"
        raise InputError(f"the step {how} the leaf {odd!r} of its state; expected the same leaves before and after")
    for name, leaf, result in zip(names, leaves, results, strict=False):
        kind = jax.dtypes.canonicalize_dtype(getattr(leaf, "dtype", None) or np.result_type(leaf))
        if (np.shape(leaf), kind) != (result.shape, result.dtype):
            before, now = (
                f"{dtype}{list(shape)}" for dtype, shape in ((kind, np.shape(leaf)), (result.dtype, result.shape))
            )
            raise InputError(f"the step changes {name!r} of its state from {before} to {now}; expected the same")


def _text(jaxpr: Any) -> str:
    return "\n".join(_lines(jaxpr))


def _lines(jaxpr: Any) -> list[str]:
    """A jaxpr as text, without addresses and names of variables, and whether or not its bodies are shared.

    Its arguments come first, then each equation, then its results.
    """
    numbers: dict[Any, int] = {}

    def atom(one: Any) -> str:
        return f"{one}" if is_literal(one) else f"{numbers.setdefault(one, len(numbers))}:{one.aval}"

    def param(value: Any) -> str:
        if isinstance(value, (tuple, list)):
            return f"[{' '.join(map(param, value))}]"
        if hasattr(value, "eqns"):
            body = opened(value)
            consts = [np.asarray(const).tobytes() for const in body.consts if not _is_key(const)]
            return f"{{{_text(body.jaxpr)} {consts}}}"
        return re.sub(r" at 0x[0-9a-f]+", "", str(value))

    lines = [" ".join(map(atom, [*jaxpr.constvars, *jaxpr.invars]))]
    for equation in jaxpr.eqns:
        params = " ".join(f"{key}={param(value)}" for key, value in equation.params.items())
        each = (" ".join(map(atom, atoms)) for atoms in (equation.outvars, equation.invars))
        lines.append(f"{next(each)} = {equation.primitive}[{params}] {next(each)}")
    return [*lines, " ".join(map(atom, jaxpr.outvars))]


def _where(one: Body, other: Body) -> str:
    """The line of the first equation that differs, in brackets; empty where none is known."""
    pairs = zip(one.jaxpr.eqns, other.jaxpr.eqns, _lines(one.jaxpr)[1:], _lines(other.jaxpr)[1:], strict=False)
    for mine, its, text, its_text in pairs:
        if text != its_text:
            inside = next(filter(None, map(_where, bodies(mine), bodies(its))), "")
            return inside or (f" ({at})" if (at := line(mine)) else "")
    return ""


def _same(ones: Sequence[Any], others: Sequence[Any]) -> bool:
    """Whether constants are equal bit by bit."""

    def word(one: Any) -> bytes:
        return np.asarray(jax.random.key_data(one) if _is_key(one) else one).tobytes()

    return len(ones) == len(others) and all(word(a) == word(b) for a, b in zip(ones, others, strict=True))
