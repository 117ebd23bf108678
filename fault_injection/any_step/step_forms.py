"""The forms that steps of trainings have, made one: `(state, batch) -> (state, metrics)`.

A step takes the state and the batch, or their parts.  It returns the new state, or its parts, and perhaps metrics, in
any order; or it changes modules of Flax NNX.  Which of these it does shows in its signature and in its results.
"""

import dataclasses
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..machine.errors import InputError, did_you_mean

Arguments = Callable[[Any, Any], Sequence[Any]]  # of a step, made of the state and the batch
Step = Callable[[Any, Any], tuple[Any, Any]]

TOLD = {  # how a step may take a state and a batch, and how a user says so
    "lambda state, batch: (state, batch)": lambda state, batch: (state, batch),
    "lambda state, batch: (*state, batch)": lambda state, batch: (*state, batch),
    "lambda state, batch: (state, *batch)": lambda state, batch: (state, *batch),
    "lambda state, batch: (*state, *batch)": lambda state, batch: (*state, *batch),
}


def one_form(step: Callable[..., Any], state: Any, batch: Any, arguments: Arguments | None = None) -> Step:
    """A step of any usual form, as one of a state and a batch that returns the new state and metrics.

    Args:
      step: takes the state and the batch, or the elements of either where it is a tuple.  It returns the state, or
        the elements of one that is a tuple, next to each other; and metrics before or behind them, or none.
      arguments: makes what the step takes of a state and a batch, where that does not show.

    Raises:
      InputError: the step takes something else.  When it is called: its results may be read in several ways.

    >>> step = one_form(lambda w, m, x: (x.sum(), w + x, m), (np.ones(2), 0.5), np.ones(2))
    >>> new, metrics = step((np.ones(2), 0.5), np.ones(2))
    >>> new, float(metrics)
    ((array([2., 2.]), 0.5), 2.0)
    """
    taken = arguments or taken_by(step, state, batch)
    return lambda state, batch: _state_and_rest(step(*taken(state, batch)), state)


def taken_by(step: Callable[..., Any], state: Any, batch: Any) -> Arguments:
    """How the step takes a state and a batch, by its signature."""
    try:
        signature = inspect.signature(step)
    except (TypeError, ValueError):
        return next(iter(TOLD.values()))
    fitting, reason = [], ""
    for said, taken in TOLD.items():
        if ("*state" in said and type(state) is not tuple) or ("*batch" in said and type(batch) is not tuple):
            continue
        try:
            signature.bind(*taken(state, batch))
        except TypeError as error:
            reason = reason or f" ({error})"
            continue
        fitting.append(said)
    if len(fitting) > 1 and fitting[0] != next(iter(TOLD)):
        working = [said for said in fitting if _works(step, TOLD[said], state, batch)]
        fitting = working or fitting[:1]  # what is wrong with it is said when it is traced
    if len(fitting) == 1 or (fitting and fitting[0] == next(iter(TOLD))):
        return TOLD[fitting[0]]
    found = f"the step is called as step(state, batch), and takes {signature}{'' if fitting else reason}"
    if fitting:
        raise InputError(f"{found}, which may be {' or '.join(fitting)}: say which, as arguments=…")
    raise InputError(
        f"{found}: put what it learns into one state, and say how it takes it, such as "
        "arguments=lambda state, batch: (*state, batch); a number that does not change goes in by functools.partial"
    )


def _works(step: Callable[..., Any], taken: Arguments, state: Any, batch: Any) -> bool:
    """Whether a step takes what it would be given; nothing is computed."""
    leaves, structure = jax.tree.flatten((state, batch))
    places = [place for place, leaf in enumerate(leaves) if isinstance(leaf, (jax.Array, np.ndarray))]

    def abstractly(arrays: Sequence[Any]) -> None:
        whole = [*leaves]
        for place, array in zip(places, arrays, strict=True):
            whole[place] = array
        step(*taken(*jax.tree.unflatten(structure, whole)))

    try:
        jax.eval_shape(abstractly, [leaves[place] for place in places])
    except Exception:
        return False
    return True


def _state_and_rest(results: Any, state: Any) -> tuple[Any, Any]:
    """The new state among a step's results, and what is beside it: None for nothing, a tuple for several.

    Where nothing is like the state, the results are given back as they are: `step_mistakes` says what is wrong.
    """
    if isinstance(results, tuple) and len(results) == 2 and _alike(results[0], state, shapes=True):
        return results
    if _alike(results, state, shapes=True):
        return results, None
    if not isinstance(results, tuple):
        return results
    for shapes in (True, False):  # a state of other shapes is a mistake that is told later
        found = dict.fromkeys(_places(results, state, shapes))
        if len(found) > 1:
            names = "abcdefghijkl"[: len(results)]
            count = len(state) if type(state) is tuple else 1
            ours, others = (", ".join(part) for part in (names[:count], names[count:]))
            pair = f"({ours}), {others}" if count > 1 else f"{ours}, ({others})"
            raise InputError(
                f"{len(found)} parts of what the step returns are like its state; expected (state, metrics): wrap it, "
                f"as in `lambda state, batch: (lambda {', '.join(names)}: ({pair}))(*step(state, batch))`"
            )
        for start, stop in found:
            rest = [*results[:start], *results[stop:]]
            new = results[start] if stop == start + 1 and _alike(results[start], state) else tuple(results[start:stop])
            return new, (rest[0] if len(rest) == 1 else tuple(rest) if rest else None)
    return results


def _places(results: Sequence[Any], state: Any, shapes: bool) -> Iterator[tuple[int, int]]:
    """From where to where the results are like the state, or like the elements of a state that is a tuple."""
    for start, one in enumerate(results):
        if _alike(one, state, shapes):
            yield start, start + 1
    if type(state) is tuple and state:
        for start in range(len(results) - len(state) + 1):
            if _alike(tuple(results[start : start + len(state)]), state, shapes):
                yield start, start + len(state)


def _alike(one: Any, state: Any, shapes: bool = False) -> bool:
    """Whether a tree has the structure of the state, and its shapes and types where these are asked for."""
    if jax.tree.structure(one) != jax.tree.structure(state):  # type: ignore[operator]
        return False
    return not shapes or all(map(_same_kind, jax.tree.leaves(one), jax.tree.leaves(state)))


def _same_kind(one: Any, other: Any) -> bool:
    kinds = [getattr(leaf, "dtype", None) for leaf in (one, other)]
    return np.shape(one) == np.shape(other) and (None in kinds or kinds[0] == kinds[1])


# ---- Modules that change ------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Modules:
    """Modules of Flax NNX, which a step changes in place, and their arrays, which it does not.

    Attributes:
      graph: what the modules are, but for their arrays; a variable that two of them share is one.
    """

    graph: Any

    @classmethod
    def among(cls, state: Any) -> "Modules | None":
        """Of a user's state; None where no modules are in it."""
        nnx = sys.modules.get("flax.nnx")
        if nnx is None:
            return None
        parts = jax.tree.leaves(state, is_leaf=nnx.graph.is_graph_node)
        return cls(nnx.graphdef(state)) if any(map(nnx.graph.is_graph_node, parts)) else None

    def arrays(self, state: Any) -> Any:
        """The variables of the modules, each once."""
        return sys.modules["flax.nnx"].state(state)

    def joined(self, arrays: Any) -> Any:
        """Modules with these variables."""
        return sys.modules["flax.nnx"].merge(self.graph, arrays)

    def changed_by(self, step: Callable[..., Any], taken: Arguments) -> Step:
        """A step of the arrays: they are put into modules, and what it has changed or returned is taken out again."""

        def of_arrays(arrays: Any, batch: Any) -> tuple[Any, Any]:
            state = self.joined(arrays)
            results = step(*taken(state, batch))
            if _alike(results, state) or (isinstance(results, tuple) and any(_places(results, state, False))):
                state, results = _state_and_rest(results, state)
            return self.arrays(state), results

        return of_arrays


# ---- Metrics ------------------------------------------------------------------------------


def fields(metrics: Any) -> dict[str, Any]:
    """Metrics by their names: those of a mapping, a dataclass or a named tuple.

    One number without a name is the loss, also beside others that have names.

    Raises:
      InputError: several numbers have no name.

    >>> fields((0.5, {"accuracy": 0.75}))
    {'accuracy': 0.75, 'loss': 0.5}
    >>> fields(0.5), fields(None)
    ({'loss': 0.5}, {})
    """
    if isinstance(metrics, Mapping):
        return {str(name): value for name, value in metrics.items()}
    if dataclasses.is_dataclass(metrics) and not isinstance(metrics, type):
        return {field.name: getattr(metrics, field.name) for field in dataclasses.fields(metrics)}
    if hasattr(metrics, "_asdict"):
        return dict(metrics._asdict())
    if isinstance(metrics, (tuple, list)):
        unnamed = [part for part in metrics if _is_number(part)]
        if len(unnamed) > 1:
            raise InputError(
                f"the step returns {len(unnamed)} numbers beside its state, and which is the loss does not show; "
                'expected (state, metrics), such as {"loss": ..., "accuracy": ...}'
            )
        others = [fields(part) for part in metrics if not _is_number(part)]
        return {name: value for each in [*others, *map(fields, unnamed)] for name, value in each.items()}
    return {"loss": metrics} if _is_number(metrics) else {}


def is_numeric(metric: Any) -> bool:
    """Whether it is a number or an array of numbers; truth values are none.

    >>> is_numeric(0.5), is_numeric(np.ones(2)), is_numeric("0.5"), is_numeric(True)
    (True, True, False, False)
    """
    if hasattr(metric, "dtype"):
        return bool(jnp.issubdtype(metric.dtype, np.number))
    return isinstance(metric, (int, float)) and not isinstance(metric, bool)


def _is_number(part: Any) -> bool:
    return is_numeric(part) and np.shape(part) == ()


def as_number(metric: Any) -> Any:
    """A metric as one number: the mean of several, such as those of each device or example."""
    return metric if np.shape(metric) == () else jnp.mean(metric)


def loss_and_metric(metrics: Any, name: str, of: str) -> tuple[Any, Any]:
    """The loss and the metric by which runs are compared; the mean, where one of them is an array.

    >>> loss_and_metric({"loss": 0.5, "accuracy": 0.75}, "accuracy", "the metrics")
    (0.5, 0.75)

    Raises:
      InputError: they are not there, or no numbers.
    """
    found = fields(metrics)
    for wanted in ("loss", name):
        if wanted not in found:
            expected = f'; expected {{"loss": ..., "{name}": ...}}'
            hint = (did_you_mean(wanted, found) or expected) if found else f", which is {metrics!r:.60}{expected}"
            raise InputError(f"there is no {wanted!r} in {of}{hint}")
        if not is_numeric(found[wanted]):
            raise InputError(f"{wanted!r} of {of} is {found[wanted]!r:.60}; expected a number")
    return as_number(found["loss"]), as_number(found[name])
