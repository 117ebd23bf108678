"""What a state of a user's training says of the test data, as a function of its parameters."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..machine.errors import InputError
from ..models.fault import Fault
from ..models.isolation import fence, isolated
from ..seam.leaves import Role, State
from ..seam.outputs import Outputs
from ..seam.state_spec import StateSpec
from .step_forms import loss_and_metric
from .step_mistakes import called, cannot_be_traced
from .traced_step import Flattening, flattened
from .training import Training


def outputs_of(
    training: Training, spec: StateSpec, form: Flattening, state: State, examples: int | None, by_measure: bool
) -> Outputs:
    """The logits of the test batches; or, by the measure, how bad the state is.

    Args:
      spec, form: of the state.
      examples: how many logits, the first ones; None for all.

    Raises:
      InputError: `tests` or `predict` raises, or gives something else than logits.
    """
    arrays = [np.asarray(leaf) for leaf in jax.device_get(jax.tree.leaves(state))]
    places = spec.places(Role.PARAMETER)
    names = [spec.leaves[place].name for place in places]
    batches: list[Any] = [] if by_measure else _batches(training)
    given = [flattened(batch) for batch in batches]

    def of(
        parameters: Mapping[str, jax.Array],
        others: Any,
        inputs: jax.Array | None,
        fault: Fault | None,
        sites: frozenset[str] | None,
    ) -> jax.Array:
        rest, tests = others

        def told(struck: Sequence[jax.Array], rest: Any, tests: Any) -> jax.Array:
            whole = dict(zip(places, struck, strict=True)) | rest
            user = form.joined([whole[place] for place in range(len(whole))])
            if by_measure:
                return badness(training, user)
            each = [forms.joined(leaves) for (_, forms), leaves in zip(given, tests, strict=True)]
            return logits_of(training, user, each)[:examples]

        # As by itself: nothing of it is compiled together with what strikes.
        with isolated("false"):
            struck = [parameters[name] for name in names]
            return fence(jax.jit(told)(struck, rest, tests))

    rest = {place: array for place, array in enumerate(arrays) if place not in places}
    tests = [jax.tree.leaves(arrays) for arrays, _ in given]
    return Outputs(
        {name: arrays[place] for name, place in zip(names, places, strict=True)}, (rest, tests), None, None, of
    )


def logits(training: Training, form: Flattening, arrays: Sequence[Any]) -> int | None:
    """How many logits an answer has; None where the training has no `predict`.

    Args:
      arrays: of a state.

    Raises:
      InputError: `predict` cannot be traced, or gives something else.
    """
    if training.predict is None:
        return None
    first = _batches(training)[:1]
    return int(_shape("predict", lambda given: logits_of(training, form.joined(given), first), arrays).shape[-1])


def check_evaluate(training: Training, form: Flattening, arrays: Sequence[Any]) -> None:
    """See that `evaluate` can be compiled together with what strikes; raises InputError."""
    _shape("evaluate", lambda given: badness(training, form.joined(given)), arrays)


def _shape(what: str, function: Callable[[Sequence[Any]], jax.Array], arrays: Sequence[Any]) -> Any:
    try:
        return jax.eval_shape(function, list(arrays))
    except InputError:
        raise
    except Exception as error:
        raise cannot_be_traced(error, what) from error


def badness(training: Training, state: Any) -> jax.Array:
    """The test metric of a user's state, float32 [1, 1], with the sign by which more is worse."""
    _, metric = loss_and_metric(training.evaluate(state), training.metric.name, "what evaluate returns")
    sign = 1 if training.metric.better == "lower" else -1
    return (sign * jnp.asarray(metric, jnp.float32)).reshape(1, 1)


def logits_of(training: Training, state: Any, batches: Sequence[Any]) -> jax.Array:
    """The logits of batches, one behind the other, [n,…,C]."""
    assert training.predict is not None
    found = [training.predict(state, batch) for batch in batches]
    for logits in found:
        if not hasattr(logits, "dtype") or not jnp.issubdtype(logits.dtype, jnp.floating) or np.ndim(logits) < 2:
            shape = f"{logits.dtype}{list(logits.shape)}" if hasattr(logits, "dtype") else type(logits).__name__
            raise InputError(f"predict returns {shape}; expected logits, one row for each answer")
    return jnp.concatenate(found)


def _batches(training: Training) -> list[Any]:
    if training.tests is None:
        raise InputError("a Training with predict needs tests, which gives its batches: tests=lambda: [batch]")
    tests = training.tests
    found = called("tests()", lambda: list(tests()))
    if not found:
        raise InputError("tests() gives no batch; expected one at least")
    return found
