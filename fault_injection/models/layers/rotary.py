"""Rotary embedding of positions."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from ..arrays import Cache, Params, Stats
from ..combinators import in_float32
from ..layer import BackwardResult, Context, ForwardResult, Layer, Observations, stateless

THETA = 10_000.0


def rotary(theta: float = THETA) -> Layer:
    """Turn the pairs of elements i and i + D/2 of [R,b,H,T,D] by the angle `t · theta^(−2i/D)` at position t.

    Raises:
      ValueError: when the layer is traced, for an odd D.

    Reference: Su et al., RoFormer, 2021; pairs as in GPT-NeoX and Hugging Face's Llama.

    >>> ctx = Context(jax.random.key(0), jnp.arange(1))
    >>> y, *_ = rotary().forward({}, {}, jnp.array([[[[[1.0, 0.0], [1.0, 0.0]]]]]), ctx)
    >>> y[0, 0, 0].round(3).tolist()
    [[1.0, 0.0], [0.5400000214576721, 0.8410000205039978]]
    """

    def forward(params: Params, stats: Stats, x: jax.Array, ctx: Context) -> ForwardResult:
        cos, sin = _angles(x.shape[-2:], theta, x.dtype)
        return _turned(x, cos, sin), {}, None, Observations()

    def backward(params: Params, cache: Cache, dy: jax.Array, ctx: Context) -> BackwardResult:
        cos, sin = _angles(dy.shape[-2:], theta, dy.dtype)
        return _turned(dy, cos, -sin), {}, Observations()  # the transpose of a rotation turns back

    return in_float32(Layer(stateless, forward, backward))


def _turned(x: jax.Array, cos: np.ndarray, sin: np.ndarray) -> jax.Array:
    """x [R,b,H,T,D], its pairs turned by the angles of which cos and sin [T,D/2] are given."""
    first, second = jnp.split(x, 2, axis=-1)
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)


@functools.cache
def _angles(shape: tuple[int, int], theta: float, dtype: np.dtype) -> tuple[np.ndarray, np.ndarray]:
    """Cosine and sine [T,D/2], computed on the host: the same numbers on every device."""
    positions, width = shape
    if width % 2:
        raise ValueError(
            f"rotary embedding of heads of width {width}; expected an even width, to turn pairs of elements"
        )
    angle = np.outer(np.arange(positions), theta ** (-np.arange(0, width, 2) / width))
    return np.cos(angle).astype(dtype), np.sin(angle).astype(dtype)
