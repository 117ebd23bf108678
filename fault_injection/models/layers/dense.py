"""Dense layer, on vectors or on sequences; its three operations are sites, beyond the published artifact."""

import jax
import jax.numpy as jnp
import numpy as np

from ..arrays import Cache, Initial, Key, Params, Shape, Stats
from ..layer import BackwardResult, Context, ForwardResult, Layer, merge
from ..operations.product import Dense, DenseGradIn, DenseGradWt
from ..strike import perform
from .initial import filled, glorot_normal


def dense(name: str, features: int, *, bias: bool = True) -> Layer:
    """`y = x @ kernel + bias` from [R,b,…,I] to [R,b,…,features].

    Parameters `kernel` [I,O], Glorot-normal, and `bias` [O], zero, if there is one.  Sites: `name`,
    `name_grad_in`, `name_grad_wt`.  The input gradient is computed only if somebody reads it
    (`Context.input_gradient`), or if it is struck or observed.

    >>> params, _ = dense("fc", 10).init((0,), (1, 8, 64))
    >>> {name: leaf.shape for name, leaf in params["fc"].items()}
    {'kernel': (64, 10), 'bias': (10,)}
    """

    def init(key: Key, shape: Shape) -> tuple[Initial, Initial]:
        params: dict[str, np.ndarray | jax.ShapeDtypeStruct] = {
            "kernel": glorot_normal(key, name, (shape[-1], features))
        }
        if bias:
            params["bias"] = filled(0, features)
        return {name: params}, {}

    def forward(params: Params, stats: Stats, x: jax.Array, ctx: Context) -> ForwardResult:
        y, observations = perform(Dense(), name, x, params[name]["kernel"], ctx)
        return y + params[name]["bias"].astype(y.dtype) if bias else y, {}, x, observations

    def backward(params: Params, cache: Cache, dy: jax.Array, ctx: Context) -> BackwardResult:
        x = cache  # [R,b,…,I]
        kernel = params[name]["kernel"]
        dx, at_in = perform(DenseGradIn(), f"{name}_grad_in", dy, kernel, ctx, used=ctx.input_gradient)
        dkernel, at_wt = perform(DenseGradWt(), f"{name}_grad_wt", x, dy, ctx)
        dparams = {"kernel": dkernel.astype(kernel.dtype)}
        if bias:
            dparams["bias"] = jnp.sum(dy, axis=tuple(range(dy.ndim - 1)), dtype=kernel.dtype)
        return dx, {name: dparams}, merge([at_in, at_wt])

    return Layer(init, forward, backward)
