"""A detector as an Optax transformation, so that anyone's training loop has one in a line."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from ..models.largest import largest
from .detector import STOP, WARN, Detector, Memory


class WatchState(NamedTuple):
    """What `watch` keeps in the optimizer's state.  Every leaf is an array, so any checkpoint holds it.

    Attributes:
      memory: of the detector, its floating point parts in float32.
      steps: int32 scalar, steps seen.
      alarms: int32 scalar, steps with an alarm of any level.
      withheld: int32 scalar, steps whose gradients or updates became zero.
      level: int32 scalar, the gravest level in the last step: 0 for no alarm, `STOP` or `WARN`.
      excess: float32 scalar, the largest excess in the last step (`Alarms.excess`).
      first: int32 scalar, the step of the first alarm, from 0; −1 while there is none.
      inner: state of the inner transformation; `()` where there is none.
    """

    memory: Memory
    steps: jax.Array
    alarms: jax.Array
    withheld: jax.Array
    level: jax.Array
    excess: jax.Array
    first: jax.Array
    inner: optax.OptState


def watch(
    detector: Detector,
    inner: optax.GradientTransformation | None = None,
    *,
    level: int = STOP,
    signals: Sequence[str] | None = None,
) -> optax.GradientTransformationExtraArgs:
    """Measures the gradients, asks a detector, and lets nothing of a step with an alarm through.

    Without `inner` it stands in a chain, and the gradients of a step with an alarm become zero for
    what comes after it.  With `inner`, the whole step is withheld: the state of `inner` stays as it
    was, and the updates are zero.  Without an alarm, gradients pass as they are.

    Signals are measured in float32 from what the transformation is given, whatever its type:

    - `loss`: the extra argument `value` of `update`, as for `optax.contrib.reduce_on_plateau`;
    - `gradient_norm`: the L2 norm of all leaves together;
    - `norm/gradients`: the L2 norm of each leaf;
    - `largest/gradients`, `largest/gradients_of_parameters`: the largest absolute value of each leaf;
    - `largest/local_gradients`: the same, of leaves with two or more axes.

    Leaves are named by their paths, such as `norm/gradients/dense/kernel`.  Leaves without floating
    point or complex numbers are not measured.

    Args:
      detector: what raises alarms.
      inner: what makes updates of the gradients, such as `optax.adamw(1e-3)`; None in a chain.
      level: which alarms withhold: `STOP`, only those; `WARN`, warnings too; 0, none, so that the
        state tells of alarms and nothing else changes.
      signals: which of the detector's signals to measure; all where None.

    Returns:
      A transformation, whose state is a `WatchState`.  Its `update` raises a `ValueError` where the
      detector watches the loss and `value` is missing or no scalar, and where the gradients have
      other leaves than what `init` was given.

    Raises:
      ValueError: for a level that is none, and where a signal is not the detector's, or cannot be
        seen from a transformation.

    >>> import jax.numpy as jnp, optax
    >>> from fault_injection.detection.nonfinite import NonFinite
    >>> optimizer = watch(NonFinite(), optax.sgd(0.5), signals=["largest/gradients_of_parameters"])
    >>> params = {"w": jnp.float32([1.0, 2.0])}
    >>> state = optimizer.init(params)
    >>> for gradient in ([4.0, 2.0], [jnp.nan, 2.0]):
    ...     updates, state = optimizer.update({"w": jnp.float32(gradient)}, state, params)
    ...     print(updates["w"], alarms(state).alarms)
    [-2. -1.] 0
    [0. 0.] 1
    """
    kinds = _checked_kinds(detector, signals)
    if level not in (0, STOP, WARN):
        raise ValueError(f"level {level!r}, expected STOP ({STOP}), WARN ({WARN}), or 0 to withhold nothing")
    watching = _Watching(detector, kinds, level, None if inner is None else optax.with_extra_args_support(inner))
    return optax.GradientTransformationExtraArgs(watching.init, watching.update)


def _checked_kinds(detector: Detector, signals: Sequence[str] | None) -> tuple[str, ...]:
    """The kinds of signals to watch; raises ValueError as `watch` does."""
    name = type(detector).__name__
    kinds = tuple(detector.signals if signals is None else signals)
    for kind in kinds:
        if kind not in detector.signals:
            raise ValueError(f"{kind!r} is no signal of {name}; its signals are {_listed(detector.signals)}")
        if kind not in WHOLE and kind not in EACH:
            seen = [own for own in detector.signals if own in WHOLE or own in EACH]
            raise ValueError(
                f"{name} watches {kind!r}, which a transformation of gradients cannot see; "
                + (f"choose with signals= from {_listed(seen)}" if seen else "watch it beside the run")
            )
    if not kinds:
        raise ValueError(f"no signals to watch, expected some of {_listed(detector.signals)}")
    return kinds


class _Watching(NamedTuple):
    """The two functions of the transformation `watch`, whose arguments these are."""

    detector: Detector
    kinds: tuple[str, ...]
    level: int
    inner: optax.GradientTransformationExtraArgs | None

    def init(self, params: optax.Params) -> WatchState:
        def own(part: Any) -> jax.Array:
            # A copy, because a step may donate the state, and detectors may use one array twice.
            floating = jnp.issubdtype(np.result_type(part), np.floating)
            return jnp.array(part, jnp.float32 if floating else None, copy=True)

        return WatchState(
            memory=jax.tree.map(own, self.detector.init(_names(self.kinds, params))),
            steps=jnp.zeros((), jnp.int32),
            alarms=jnp.zeros((), jnp.int32),
            withheld=jnp.zeros((), jnp.int32),
            level=jnp.zeros((), jnp.int32),
            excess=jnp.zeros((), jnp.float32),
            first=jnp.full((), -1, jnp.int32),
            inner=() if self.inner is None else self.inner.init(params),
        )

    def update(
        self, updates: optax.Updates, state: WatchState, params: optax.Params | None = None, **extra: Any
    ) -> tuple[optax.Updates, WatchState]:
        self._check(updates, state, extra)
        values = _values(self.kinds, _floating(updates), extra.get("value"))
        memory, found = self.detector.update(state.memory, values)
        raised = found.level > 0
        alarm = jnp.any(raised)
        gravest = jnp.where(alarm, jnp.min(found.level, where=raised, initial=WARN), 0)
        withhold = alarm & (gravest <= self.level)
        new = WatchState(
            # Types as they were, because what a scan carries must not change them.
            memory=jax.tree.map(lambda part, old: jnp.asarray(part, old.dtype), memory, state.memory),
            steps=optax.safe_increment(state.steps),
            alarms=state.alarms + alarm.astype(jnp.int32),
            withheld=state.withheld + withhold.astype(jnp.int32),
            level=gravest.astype(jnp.int32),
            excess=largest(jnp.maximum(found.excess, 0)).astype(jnp.float32),
            first=jnp.where((state.first < 0) & alarm, state.steps, state.first),
            inner=state.inner,
        )
        if self.inner is not None:
            updates, inner_state = self.inner.update(updates, state.inner, params, **extra)
            new = new._replace(inner=inner_state)
        if self.level:  # a select, because 0 · NaN is NaN
            updates = jax.tree.map(lambda leaf: _either(withhold, None, leaf), updates)
            if self.inner is not None:
                kept = jax.tree.map(lambda old, leaf: _either(withhold, old, leaf), state.inner, new.inner)
                new = new._replace(inner=kept)
        return updates, new

    def _check(self, updates: optax.Updates, state: WatchState, extra: dict[str, Any]) -> None:
        """See that the gradients and the loss are what the detector has a memory for; raises ValueError."""
        name, names = type(self.detector).__name__, _names(self.kinds, updates)
        if jax.tree.map(np.shape, self.detector.init(names)) != jax.tree.map(np.shape, state.memory):
            raise ValueError(
                f"{name} has a memory for other leaves than the gradients have: {_listed(names)}; "
                "init needs parameters with the same floating point leaves as the gradients"
            )
        if "loss" in self.kinds and "value" not in extra:
            raise ValueError(f"{name} watches the loss: call update(gradients, state, params, value=loss)")
        if "loss" in self.kinds and np.shape(extra["value"]) != ():
            raise ValueError(f"value has shape {np.shape(extra['value'])}, expected one number, the loss")


def alarms(opt_state: Any) -> WatchState:
    """The state of `watch`, wherever in an optimizer's state it is.

    Args:
      opt_state: of any nesting of transformations, or any pytree that contains it.  Of a `watch`
        within another, the outer one is found.

    Raises:
      ValueError: if there is none, or more than one: then give the part that has one.

    >>> import optax
    >>> from fault_injection.detection.spike import GradientNorm
    >>> optimizer = optax.chain(optax.clip(1.0), optax.chain(watch(GradientNorm()), optax.sgd(0.1)))
    >>> int(alarms(optimizer.init({"w": 0.0})).first)
    -1
    """

    def is_watch(node: object) -> bool:
        return isinstance(node, WatchState)

    found = [pair for pair in jax.tree_util.tree_flatten_with_path(opt_state, is_leaf=is_watch)[0] if is_watch(pair[1])]
    if not found:
        raise ValueError("no watch() in this state; is it that of an optimizer made with watch(…)?")
    if len(found) > 1:
        places = _listed([jax.tree_util.keystr(path) for path, _ in found])
        raise ValueError(f"{len(found)} states of watch(), at {places}; give the part that has one")
    state: WatchState = found[0][1]
    return state


# ---- What is measured ---------------------------------------------------------------------


def _squares(leaf: jax.Array) -> jax.Array:
    sizes = jnp.abs(leaf).astype(jnp.float32)
    return jnp.sum(sizes * sizes)


def _largest(leaf: jax.Array) -> jax.Array:
    return largest(jnp.abs(leaf)).astype(jnp.float32)


# By kind of signal (`signals.KINDS`): of all leaves together or beside them, and of each leaf.
WHOLE: dict[str, Callable[[Sequence[jax.Array], Any], jax.Array]] = {
    "loss": lambda leaves, value: jnp.asarray(value).astype(jnp.float32),
    "gradient_norm": lambda leaves, value: jnp.sqrt(sum(map(_squares, leaves), start=jnp.zeros((), jnp.float32))),
}
EACH: dict[str, Callable[[jax.Array], jax.Array]] = {
    "norm/gradients": lambda leaf: jnp.sqrt(_squares(leaf)),
    "largest/gradients": _largest,
    "largest/gradients_of_parameters": _largest,
    "largest/local_gradients": _largest,
}


def _floating(tree: Any) -> dict[str, jax.Array]:
    """The leaves with floating point or complex numbers, by path."""
    leaves = ((path, leaf) for path, leaf in jax.tree_util.tree_leaves_with_path(tree) if not _is_float0(leaf))
    found = {jax.tree_util.keystr(path, simple=True, separator="/"): jnp.asarray(leaf) for path, leaf in leaves}
    return {path: leaf for path, leaf in found.items() if jnp.issubdtype(leaf.dtype, jnp.inexact)}


def _names(kinds: Sequence[str], tree: Any) -> list[str]:
    """Names of the signals, in the order of `_values`."""
    leaves = _floating(tree)
    each = ([kind] if kind in WHOLE else [f"{kind}/{path}" for path in _watched(kind, leaves)] for kind in kinds)
    return [name for names in each for name in names]


def _watched(kind: str, leaves: dict[str, jax.Array]) -> dict[str, jax.Array]:
    """The leaves that signals of one kind are made of: of local gradients, those with two or more axes."""
    return {path: leaf for path, leaf in leaves.items() if leaf.ndim > 1 or kind != "largest/local_gradients"}


def _values(kinds: Sequence[str], leaves: dict[str, jax.Array], value: Any) -> jax.Array:
    """The signals of one step, float32 [N]."""
    found: list[jax.Array] = []
    for kind in kinds:
        one = kind in WHOLE
        every = _watched(kind, leaves).values()
        found += [WHOLE[kind]([*every], value)] if one else [EACH[kind](leaf) for leaf in every]
    return jnp.stack(found) if found else jnp.zeros(0, jnp.float32)


def _either(condition: jax.Array, some: Any, other: Any) -> Any:
    """`some`, or zeros where it is None, under the condition; else `other`; in the type of `other`."""
    if _is_float0(other):  # what `jax.grad` gives for integers: no numbers at all
        return other
    other = jnp.asarray(other)
    some = jnp.zeros_like(other) if some is None else jnp.asarray(some)
    return jnp.where(condition, some if some.dtype == other.dtype else some.astype(other.dtype), other)


def _is_float0(leaf: Any) -> bool:
    return getattr(leaf, "dtype", None) == jax.dtypes.float0


def _listed(names: Sequence[str]) -> str:
    shown = [*names[:8], *([f"… ({len(names)})"] if len(names) > 8 else [])]
    return ", ".join(shown) or "none"
