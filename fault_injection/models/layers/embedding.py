"""Embeddings: of tokens, with the head that shares the table, and of categories; their operations are sites."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from ..arrays import Cache, Initial, Key, Params, Shape, Stats
from ..layer import BackwardResult, Context, ForwardResult, Layer, Observations, merge, observed, stateless
from ..operations.lookup import Lookup, LookupGradWt, SparseLookupGradWt
from ..operations.operation import SparseGradient
from ..operations.product import Dense, DenseGradIn, DenseGradWt
from ..strike import perform
from .initial import small_normal, uniform_by_rows


def embedding(name: str, vocabulary: int, features: int) -> Layer:
    """`y = table[tokens]` from tokens [R,b,…] to [R,b,…,features].

    Parameter `table` [V,C], normal of deviation 0.02.  Sites: `name` and `name_grad_wt`, each with
    the tokens as its input.  Tokens have no gradient: NaN stands in its place.

    Args:
      vocabulary: V; tokens are int32, from 0 to V − 1.

    >>> embed, ctx = embedding("embed_tokens", 5, 3), Context(jax.random.key(0), jnp.arange(1))
    >>> params, _ = embed.init((0,), (1, 2, 4))
    >>> embed.forward(params, {}, jnp.zeros((1, 2, 4), "int32"), ctx)[0].shape
    (1, 2, 4, 3)
    """
    draw = functools.partial(small_normal, name=name, shape=(vocabulary, features))
    return _embedding(name, draw, LookupGradWt(vocabulary))


def sparse_embedding(name: str, categories: int, features: int) -> Layer:
    """As `embedding`, with a gradient of the rows that are read alone: no step touches the whole table.

    Parameter `table` [V,C], uniform between ±√(1/V).  Its gradient is [n,C], n = R·b·…, the rows
    being `Observations.rows`: distinct, each with the sum over all that read it.  Sites as of
    `embedding`; in an injection file the output of `name_grad_wt` is the whole table's gradient.

    Args:
      categories: V; what comes in is int32, from 0 to V − 1.

    >>> embed, ctx = sparse_embedding("emb_0", 9, 3), Context(jax.random.key(0), jnp.arange(1))
    >>> params = {"emb_0": {"table": jnp.ones((9, 3))}}
    >>> _, _, cache, _ = embed.forward(params, {}, jnp.array([[4, 2, 4]]), ctx)
    >>> _, dparams, seen = embed.backward(params, cache, jnp.ones((1, 3, 3)), ctx)
    >>> seen.rows["emb_0/table"].tolist(), dparams["emb_0"]["table"][:, 0].tolist()
    ([2, 4, 9], [1.0, 2.0, 0.0])
    """
    draw = functools.partial(uniform_by_rows, name=name, shape=(categories, features))
    return _embedding(name, draw, SparseLookupGradWt(categories))


def _embedding(name: str, draw: Callable[[Key], Any], grad_wt: LookupGradWt) -> Layer:
    """A layer whose one parameter is the table that is drawn."""

    def init(key: Key, shape: Shape) -> tuple[Initial, Initial]:
        return {name: {"table": draw(key)}}, {}

    def forward(params: Params, stats: Stats, x: jax.Array, ctx: Context) -> ForwardResult:
        y, observations = perform(Lookup(), name, x, params[name]["table"], ctx)
        return y, {}, x, observations

    def backward(params: Params, cache: Cache, dy: jax.Array, ctx: Context) -> BackwardResult:
        read = cache  # [R,b,…]
        gradient: Any
        gradient, observations = perform(grad_wt, f"{name}_grad_wt", read, dy, ctx)
        seen = [observations, observed(ctx, "gradients", name, dy)]
        if isinstance(gradient, SparseGradient):
            seen.append(Observations(rows={f"{name}/table": gradient.rows}))
            gradient = gradient.values
        dtable = gradient.astype(params[name]["table"].dtype)
        return jnp.full(read.shape, jnp.nan, dy.dtype), {name: {"table": dtable}}, merge(seen)

    return Layer(init, forward, backward, "int32")


def tied_head(name: str, table: str) -> Layer:
    """`logits = x @ tableᵀ` from [R,b,…,C] to [R,b,…,V], with the table of the embedding `table` before it.

    It has no parameter of its own: its gradient, transposed, is a share of the table's.  Sites:
    `name`, `name_grad_in`, `name_grad_wt`, those of a dense layer whose kernel is tableᵀ [C,V].

    Reference: Press and Wolf, EACL 2017.

    >>> head, ctx = tied_head("lm_head", "embed_tokens"), Context(jax.random.key(0), jnp.arange(1))
    >>> params = {"embed_tokens": {"table": jnp.ones((5, 3))}}
    >>> head.forward(params, {}, jnp.ones((1, 2, 4, 3)), ctx)[0].shape
    (1, 2, 4, 5)
    """

    def forward(params: Params, stats: Stats, x: jax.Array, ctx: Context) -> ForwardResult:
        y, observations = perform(Dense(), name, x, params[table]["table"].T, ctx)
        return y, {}, x, observations

    def backward(params: Params, cache: Cache, dy: jax.Array, ctx: Context) -> BackwardResult:
        x = cache  # [R,b,…,C]
        kernel = params[table]["table"].T  # [C,V]
        dx, at_in = perform(DenseGradIn(), f"{name}_grad_in", dy, kernel, ctx, used=ctx.input_gradient)
        dkernel, at_wt = perform(DenseGradWt(), f"{name}_grad_wt", x, dy, ctx)
        return dx, {table: {"table": dkernel.T.astype(kernel.dtype)}}, merge([at_in, at_wt])

    return Layer(stateless, forward, backward)
