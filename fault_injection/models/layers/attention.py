"""Causal attention; the operations of its two products are sites."""

from dataclasses import replace

import jax
import jax.numpy as jnp

from ..arrays import Cache, Initial, Key, Params, Shape, Stats
from ..combinators import added, forward_all, init_all
from ..layer import BackwardResult, Context, ForwardResult, Layer, merge
from ..operations.product import Product, ProductGradIn, ProductGradWt
from ..precision import wide
from ..strike import perform
from .heads import joined_heads


def causal_attention(name: str, query: Layer, key: Layer, value: Layer) -> Layer:
    """`softmax(mask(q·kᵀ/√D))·v` of each head, from [R,b,T,C] to [R,b,T,H·D].

    The sites `name_scores` and `name_mix` are the products q·kᵀ and P·v; each has its `_grad_in`
    and `_grad_wt`.  All are dense: elements above the diagonal are computed and multiplied.

    The mask is a select, as everywhere here: where(t ≥ s, score, the least float), and 0 for its
    gradient elsewhere.  So a wrong score above the diagonal is unseen, even if it is infinite or
    NaN.  P is not masked again: NaN in its gradient above the diagonal spreads, through Σ P·dP.
    The softmax subtracts each row's maximum, and divides by the sum (docs/backward.md, Attention).

    Args:
      query, key, value: what makes q, k and v [R,b,H,T,D] of the input, such as projection, heads,
        rotation and repetition.

    Reference: Vaswani et al., NeurIPS 2017, section 3.2.1.

    >>> from fault_injection.models.layers.heads import split_heads
    >>> attend, ctx = causal_attention("attn", *[split_heads(2)] * 3), Context(jax.random.key(0), jnp.arange(1))
    >>> attend.forward({}, {}, jnp.ones((1, 2, 3, 8)), ctx)[0].shape
    (1, 2, 3, 8)
    """
    branches = (query, key, value)

    def init(key: Key, shape: Shape) -> tuple[Initial, Initial]:
        return init_all(branches, key, [shape] * 3)

    def forward(params: Params, stats: Stats, x: jax.Array, ctx: Context) -> ForwardResult:
        (q, k, v), new_stats, caches, at_branches = forward_all(branches, params, stats, [x] * 3, ctx)  # [R,b,H,T,D]
        transposed = k.mT  # [R,b,H,D,T]
        scores, at_scores = perform(Product(), f"{name}_scores", q, transposed, ctx)  # [R,b,H,T,T]
        weights = wide(scores) * q.shape[-1] ** -0.5
        p = _softmax(jnp.where(_seen(scores), weights, float(jnp.finfo(weights.dtype).min))).astype(v.dtype)
        mixed, at_mix = perform(Product(), f"{name}_mix", p, v, ctx)  # [R,b,H,T,D]
        seen = merge([at_branches, at_scores, at_mix])
        return joined_heads(mixed), new_stats, (q, transposed, v, p, caches), seen

    def backward(params: Params, cache: Cache, dy: jax.Array, ctx: Context) -> BackwardResult:
        q, transposed, v, p, caches = cache
        ctx = replace(ctx, input_gradient=True)
        dmixed = dy.reshape(*dy.shape[:-1], q.shape[2], -1).swapaxes(2, 3)  # [R,b,H,T,D]
        dp, mix_in = perform(ProductGradIn(), f"{name}_mix_grad_in", dmixed, v, ctx)
        dv, mix_wt = perform(ProductGradWt(), f"{name}_mix_grad_wt", p, dmixed, ctx)
        dmasked = wide(p) * (wide(dp) - jnp.sum(wide(p) * wide(dp), -1, keepdims=True))
        dscores = jnp.where(_seen(dmasked), dmasked * q.shape[-1] ** -0.5, 0).astype(dp.dtype)
        dq, scores_in = perform(ProductGradIn(), f"{name}_scores_grad_in", dscores, transposed, ctx)
        dtransposed, scores_wt = perform(ProductGradWt(), f"{name}_scores_grad_wt", q, dscores, ctx)

        dx_value, dparams, at_value = value.backward(params, caches[2], dv, ctx)
        dx_key, of_key, at_key = key.backward(params, caches[1], dtransposed.mT, ctx)
        dx_query, of_query, at_query = query.backward(params, caches[0], dq, ctx)
        seen = merge([mix_in, mix_wt, scores_in, scores_wt, at_value, at_key, at_query])
        return dx_query + dx_key + dx_value, added(added(dparams, of_key), of_query), seen

    return Layer(init, forward, backward)


def _seen(scores: jax.Array) -> jax.Array:
    """Which scores [R,b,H,T,T] a position sees: its own and those before it."""
    return jnp.tril(jnp.ones(scores.shape, bool))


def _softmax(scores: jax.Array) -> jax.Array:
    """Softmax of each row [..., T]."""
    powers = jnp.exp(scores - jnp.max(scores, -1, keepdims=True))
    return powers / jnp.sum(powers, -1, keepdims=True)
