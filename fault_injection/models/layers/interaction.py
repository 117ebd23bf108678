"""What a recommendation model makes of its columns: numbers and categories as vectors, and their dot products."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ..arrays import Cache, Initial, Key, Params, Shape, Stats
from ..combinators import forward_all, init_all
from ..layer import BackwardResult, Context, ForwardResult, Layer, merge, stateless
from ..operations.product import ProductGradIn, ProductGradWt, ProductOfRows
from ..strike import perform


def columns(dense: int, bottom: Layer, tables: Sequence[Layer]) -> Layer:
    """Rows of a data table to vectors: [R,b,D+S] int32 -> [R,b,1+S,C], the numbers' first.

    One array holds both kinds of columns: the first D are the bits of float32 numbers, the other S
    are indices.  (Float32 holds no index above 2²⁴, and 32-bit integers hold every number's bits.)
    What comes in has no gradient: NaN stands in its place.

    Args:
      dense: D, the number of columns with numbers.
      bottom: [R,b,D] -> [R,b,C].
      tables: of each other column, [R,b] int32 -> [R,b,C].

    >>> from fault_injection.models.layers.dense import dense
    >>> from fault_injection.models.layers.embedding import sparse_embedding
    >>> layer = columns(2, dense("bot_0", 4), [sparse_embedding("emb_0", 9, 4), sparse_embedding("emb_1", 5, 4)])
    >>> params, ctx = layer.init((0,), (1, 3, 4))[0], Context(jax.random.key(0), jnp.arange(1))
    >>> layer.forward(params, {}, jnp.zeros((1, 3, 4), "int32"), ctx)[0].shape
    (1, 3, 3, 4)
    """
    parts = [bottom, *tables]

    def init(key: Key, shape: Shape) -> tuple[Initial, Initial]:
        return init_all(parts, key, [(*shape[:-1], dense), *[shape[:-1]] * len(tables)])

    def forward(params: Params, stats: Stats, x: jax.Array, ctx: Context) -> ForwardResult:
        width = jax.tree.leaves(params)[0].dtype  # float32, but where a test computes in float64
        numbers = lax.bitcast_convert_type(x[..., :dense], jnp.float32).astype(width)
        inputs = [numbers, *(x[..., dense + k] for k in range(len(tables)))]
        vectors, new_stats, caches, observations = forward_all(parts, params, stats, inputs, ctx)
        return jnp.stack(vectors, axis=-2), new_stats, (x.shape, caches), observations

    def backward(params: Params, cache: Cache, dy: jax.Array, ctx: Context) -> BackwardResult:
        shape, caches = cache
        dparams: Params = {}
        observations = []
        for k, part in enumerate(parts):
            _, d, o = part.backward(params, caches[k], dy[..., k, :], ctx)
            dparams |= d
            observations.append(o)
        return jnp.full(shape, jnp.nan, dy.dtype), dparams, merge(observations)

    return Layer(init, forward, backward, "int32")


def dot_interaction(name: str) -> Layer:
    """The first vector, then the dot product of each two different ones: [R,b,F,C] -> [R,b,C + F(F−1)/2].

    All are one product, Z = T·Tᵀ [R,b,F,F], of which Z[i,j] for i > j are read, row after row.
    Sites: `name`, `name_grad_in`, `name_grad_wt`, those of a product: T stands on both sides of it,
    and its gradient is the sum of the two shares (docs/backward.md, Dot interaction).

    Reference: Naumov et al., arXiv 1906.00091, section 2.1.

    >>> ctx = Context(jax.random.key(0), jnp.arange(1))
    >>> vectors = jnp.array([[[[1.0, 0.0], [2.0, 3.0], [4.0, 5.0]]]])
    >>> dot_interaction("interaction").forward({}, {}, vectors, ctx)[0].tolist()
    [[[1.0, 0.0, 2.0, 4.0, 23.0]]]
    """

    def forward(params: Params, stats: Stats, x: jax.Array, ctx: Context) -> ForwardResult:
        z, observations = perform(ProductOfRows(), name, x, x, ctx)  # [R,b,F,F]
        i, j = np.tril_indices(x.shape[-2], -1)
        return jnp.concatenate([x[..., 0, :], z[..., i, j]], -1), {}, x, observations

    def backward(params: Params, cache: Cache, dy: jax.Array, ctx: Context) -> BackwardResult:
        x = cache  # [R,b,F,C]
        vectors, width = x.shape[-2:]
        # Where each element of dz is found in dy: those that nothing reads, in a zero behind its end.
        place = np.full((vectors, vectors), dy.shape[-1])
        place[np.tril_indices(vectors, -1)] = np.arange(width, dy.shape[-1])
        dz = jnp.pad(dy, [(0, 0), (0, 0), (0, 1)])[..., place]  # [R,b,F,F]
        dx, at_in = perform(ProductGradIn(), f"{name}_grad_in", dz, x.mT, ctx)
        dtransposed, at_wt = perform(ProductGradWt(), f"{name}_grad_wt", x, dz, ctx)
        dx = dx + dtransposed.mT
        dfirst = dx[..., :1, :] + dy[..., None, :width]
        return jnp.concatenate([dfirst, dx[..., 1:, :]], -2), {}, merge([at_in, at_wt])

    return Layer(stateless, forward, backward)
