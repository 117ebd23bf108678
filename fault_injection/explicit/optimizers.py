"""Optimizers in Optax's shape: Keras's forms, and AdamW of Optax's own parts.  Any other can take their place."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax


class Invertible(NamedTuple):
    """An optimizer whose step can be inverted.

    Attributes:
      init, update: as of `optax.GradientTransformation`.
      inverse: `(gradients, state, params) -> state, params`: those before the step that the
        gradients were given to, from those after it, up to rounding.
    """

    init: optax.TransformInitFn
    update: optax.TransformUpdateFn
    inverse: Callable[[optax.Updates, optax.OptState, optax.Params], tuple[optax.OptState, optax.Params]]


class KerasAdamState(NamedTuple):
    """`iterations` steps done, first moment `m` and second moment `v`, shaped as the parameters."""

    iterations: jax.Array
    m: optax.Params
    v: optax.Params


def keras_adam(
    learning_rate: optax.ScalarOrSchedule, b1: float = 0.9, b2: float = 0.999, eps: float = 1e-7
) -> Invertible:
    """Adam as Keras computes it.

    .. math::
      m_t &= m_{t-1} + (g_t - m_{t-1}) (1-β_1), \\qquad v_t = v_{t-1} + (g_t^2 - v_{t-1}) (1-β_2) \\\\
      p_t &= p_{t-1} - α_t \\frac{\\sqrt{1-β_2^t}}{1-β_1^t} \\frac{m_t}{\\sqrt{v_t} + ε}

    with t from 1 and α_t the schedule at t − 1.  Here ε is not scaled by the bias correction:
    `optax.adam` and PyTorch add it to the corrected root instead.

    The form of the moments decides outcomes.  A gradient beyond 1.8e19 makes v infinite, and the
    update of that step 0.  The next step computes ∞ − ∞: v and the parameter are NaN, and the loss
    is NaN one step later.  In the form β_2 v + (1-β_2) g², which Optax has, v would stay infinite
    and the parameter would stand still from then on (docs/science.md, Arithmetic).  1-β is rounded
    from float64, as Keras does it.

    >>> adam = keras_adam(0.1)
    >>> updates, state = adam.update({"w": jnp.float32([2.0])}, adam.init({"w": jnp.float32([0.0])}))
    >>> print(f"{updates['w'][0]:.4f} {state.m['w'][0]:.4f}")
    -0.1000 0.2000

    Reference: Kingma and Ba, ICLR 2015, the form before section 2.1; Keras `Adam`.
    """

    def init(params: optax.Params) -> KerasAdamState:
        # Two separate trees: a step consumes the buffers of its state.
        m, v = (jax.tree.map(jnp.zeros_like, params) for _ in range(2))
        return KerasAdamState(jnp.zeros((), jnp.int32), m, v)

    def update(
        updates: optax.Updates, state: KerasAdamState, params: optax.Params | None = None
    ) -> tuple[optax.Updates, KerasAdamState]:
        del params
        m = jax.tree.map(lambda m, g: m + (g - m) * (1 - b1), state.m, updates)
        v = jax.tree.map(lambda v, g: v + (g * g - v) * (1 - b2), state.v, updates)
        return steps(m, v, state.iterations), KerasAdamState(state.iterations + 1, m, v)

    def steps(m: optax.Params, v: optax.Params, done: jax.Array) -> optax.Updates:
        t = (done + 1).astype(jnp.float32)
        rate = _rate(learning_rate, done) * jnp.sqrt(1 - b2**t) / (1 - b1**t)
        return jax.tree.map(lambda m, v: -rate * m / (jnp.sqrt(v) + eps), m, v)

    def inverse(
        gradients: optax.Updates, state: KerasAdamState, params: optax.Params
    ) -> tuple[KerasAdamState, optax.Params]:
        done = state.iterations - 1
        params = jax.tree.map(jnp.subtract, params, steps(state.m, state.v, done))
        m = jax.tree.map(lambda m, g: (m - (1 - b1) * g) / b1, state.m, gradients)
        # A root of what rounding has made negative would be NaN.
        v = jax.tree.map(lambda v, g: jnp.maximum((v - (1 - b2) * g * g) / b2, 0.0), state.v, gradients)
        return KerasAdamState(done, m, v), params

    return Invertible(init, update, inverse)


class KerasSgdState(NamedTuple):
    """`iterations` steps done; plain SGD keeps no history."""

    iterations: jax.Array


def keras_sgd(learning_rate: optax.ScalarOrSchedule) -> Invertible:
    """Plain gradient descent, `p_t = p_{t-1} − α_t g_t`, with α_t the schedule at t − 1."""

    def init(params: optax.Params) -> KerasSgdState:
        del params
        return KerasSgdState(jnp.zeros((), jnp.int32))

    def update(
        updates: optax.Updates, state: KerasSgdState, params: optax.Params | None = None
    ) -> tuple[optax.Updates, KerasSgdState]:
        del params
        rate = _rate(learning_rate, state.iterations)
        return jax.tree.map(lambda g: -rate * g, updates), KerasSgdState(state.iterations + 1)

    def inverse(
        gradients: optax.Updates, state: KerasSgdState, params: optax.Params
    ) -> tuple[KerasSgdState, optax.Params]:
        rate = _rate(learning_rate, state.iterations - 1)
        params = jax.tree.map(lambda p, g: p + rate * g, params, gradients)
        return KerasSgdState(state.iterations - 1), params

    return Invertible(init, update, inverse)


def clipped_adamw(learning_rate: optax.ScalarOrSchedule) -> optax.GradientTransformation:
    """AdamW with weight decay 0.1 on every parameter, after clipping the gradient's global norm to 1.

    .. math::
      p_t = p_{t-1} - α_t \\left( \\frac{\\hat m_t}{\\sqrt{\\hat v_t} + ε} + 0.1 p_{t-1} \\right)

    with betas 0.9 and 0.95, ε = 1e-8 and α_t the schedule at t − 1.  Its moments are Optax's,
    `β m + (1-β) g`: what overflows stays infinite (compare `keras_adam`).  A gradient of infinite
    norm is clipped to 0, but for its infinite elements, which become NaN.

    Reference: Loshchilov and Hutter, ICLR 2019; the numbers are those of Touvron et al., LLaMA, 2023.

    >>> adamw = clipped_adamw(0.1)
    >>> params = {"w": jnp.float32([1.0])}
    >>> updates, _ = adamw.update({"w": jnp.float32([2.0])}, adamw.init(params), params)
    >>> print(f"{updates['w'][0]:.4f}")
    -0.1100
    """
    chained = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(learning_rate, 0.9, 0.95, 1e-8, weight_decay=0.1))

    def update(
        updates: optax.Updates, state: optax.OptState, params: optax.Params | None = None
    ) -> tuple[optax.Updates, optax.OptState]:
        with jax.numpy_dtype_promotion("standard"):  # Optax raises floats to integer powers
            return chained.update(updates, state, params)

    return optax.GradientTransformation(chained.init, update)


def _rate(learning_rate: optax.ScalarOrSchedule, count: jax.Array) -> Any:
    return learning_rate(count) if callable(learning_rate) else learning_rate


def history(opt_state: optax.OptState, params: optax.Params) -> dict[str, optax.Params]:
    """The optimizer's gradient history: every part of its state shaped as the parameters.

    Returns:
      `{name: tree}`, the name being the path within the state (`m`, `v`; `0.mu` for a
      chained Optax optimizer); empty for an optimizer without history.
    """

    def is_history(node: object) -> bool:
        return isinstance(node, dict) and node.keys() == params.keys()

    found = jax.tree_util.tree_flatten_with_path(opt_state, is_leaf=is_history)[0]
    return {jax.tree_util.keystr(path, simple=True, separator="."): tree for path, tree in found if is_history(tree)}
