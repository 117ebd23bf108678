"""Which axis of each activation counts examples: the step is traced again with twice as many in the batch.

The axis whose size changed counts them.  Nothing is computed.
"""

import collections
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.sharding import NamedSharding

from ..machine.errors import InputError
from ..models.fault import Operand
from .instrument import Instrumented, instrumented
from .step_looks import Layers, is_activation
from .step_mistakes import first_line
from .step_site import StepSite
from .traced_step import Traced


def layers_of(program: Instrumented, step: Callable[[Any, Any], tuple[Any, Any]], leaves: Sequence[Any]) -> Layers:
    """The layers of a step, see `step_looks.Layers`.

    Examples lie along the first axis of a batch's arrays: its length is that of most of them, and of the longer ones
    where two lengths are as common.

    Args:
      step: as it was traced.
      leaves: of a state, then of a batch.

    Raises:
      InputError: the step cannot be traced with another number of examples, has other sites then, or has no layer.

    >>> import jax.numpy as jnp
    >>> from .instrument import instrument
    >>> def step(state, batch):
    ...     loss, grads = jax.value_and_grad(lambda w: jnp.mean((w @ batch.T) ** 2))(state["w"])
    ...     return {"w": state["w"] - 0.1 * grads}, {"loss": loss}
    >>> state, batch = {"w": jnp.ones((2, 3))}, jnp.ones((4, 3))
    >>> layers_of(instrument(step, state, batch), step, [state["w"], batch])
    Layers(examples=4, axes={'forward:w': 1})
    """
    examples = _examples(program.traced)
    twice = _sites_with(program, step, leaves, examples, 2 * examples)
    axes = {}
    for name, site in program.all_sites.items():
        if site.iterations or site.conditional or site.axes or not is_activation(site):
            continue
        axis = _axis(site.operands[Operand.OUTPUT].shape, twice[name].operands[Operand.OUTPUT].shape, examples)
        if axis is not None:
            axes[name] = axis
    if not axes:
        raise InputError(
            "no product of its forward pass outside of loops, branches and shard_map has one axis that counts examples"
        )
    return Layers(examples, axes)


def _examples(traced: Traced) -> int:
    lengths = collections.Counter(kind.shape[0] for _, kind in _of_examples(traced) if kind.shape)
    if not lengths:
        raise InputError("its batch has no array whose first axis could count examples")
    return max(lengths, key=lambda length: (lengths[length], length))


def _of_examples(traced: Traced) -> list[tuple[int, Any]]:
    """The arrays of a batch, by their places among all arguments; one key of random numbers is no array of examples."""
    first = len(traced.names)
    keys = {first + place for place, _ in traced.batch.keys}
    each = list(enumerate(traced.jaxpr.in_avals))[first:]
    return [(place, kind) for place, kind in each if not (place in keys and len(kind.shape) == 1)]


def _sites_with(
    program: Instrumented, step: Callable[[Any, Any], tuple[Any, Any]], leaves: Sequence[Any], examples: int, more: int
) -> dict[str, StepSite]:
    """The sites of the step with more examples."""
    traced = program.traced
    count, longer = len(traced.names), {place for place, kind in _of_examples(traced) if kind.shape[:1] == (examples,)}

    def flat(*given: Any) -> list[Any]:
        new, metrics = step(traced.state.joined(given[:count]), traced.batch.joined(given[count:]))
        return [*traced.state.arrays(new), *jax.tree.leaves(metrics)]

    def abstract(place: int, leaf: Any) -> jax.ShapeDtypeStruct:
        kind, sharding = traced.jaxpr.in_avals[place], getattr(leaf, "sharding", None)
        shape = (more, *kind.shape[1:]) if place in longer else kind.shape
        return jax.ShapeDtypeStruct(
            shape, kind.dtype, sharding=sharding if isinstance(sharding, NamedSharding) else None
        )

    try:
        closed = jax.make_jaxpr(flat)(*(abstract(*pair) for pair in enumerate(leaves)))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # which were given when the step was traced first
            found = instrumented(traced._replace(jaxpr=closed), program.interpreter.kinds, program.interpreter.turns)
    except Exception as error:
        raise InputError(
            "which axis of an activation counts examples shows only with another batch size, and the step cannot be "
            f"traced with {more} examples in place of {examples} ({type(error).__name__}: {first_line(error)})"
        ) from error
    if list(found.all_sites) != list(program.all_sites):
        raise InputError(
            "which axis of an activation counts examples shows only with another batch size, and the step has other "
            f"products with {more} examples than with {examples}"
        )
    return dict(found.all_sites)


def _axis(once: tuple[int, ...], twice: tuple[int, ...], examples: int) -> int | None:
    """The one axis that has become twice as long; None where there is none, or others have changed.

    >>> _axis((4, 8), (4, 16), 4), _axis((4, 4), (8, 8), 4), _axis((12, 2), (24, 2), 4), _axis((3, 2), (6, 2), 4)
    (1, None, 0, None)
    """
    if len(once) != len(twice):
        return None
    changed = [axis for axis, (a, b) in enumerate(zip(once, twice, strict=True)) if a != b]
    if len(changed) != 1 or twice[changed[0]] != 2 * once[changed[0]] or once[changed[0]] % examples:
        return None
    return changed[0]
