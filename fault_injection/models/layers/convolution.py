"""Convolution and depthwise convolution; their three operations are sites (docs/science.md, Sites and operands)."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from ..arrays import Cache, Initial, Key, Params, Shape, Stats
from ..layer import BackwardResult, Context, ForwardResult, Layer, merge
from ..operations.convolution import (
    Convolution,
    ConvolutionGradIn,
    ConvolutionGradWt,
    Depthwise,
    DepthwiseGradIn,
    DepthwiseGradWt,
)
from ..strike import perform
from .initial import filled, glorot_normal


def convolution(name: str, features: int, size: int, stride: int = 1, *, bias: bool = True) -> Layer:
    """`size`×`size` convolution to `features` channels, padded as TensorFlow's SAME.

    Parameters `kernel` [k,k,I,O], Glorot-normal, and `bias` [O], zero.  Sites: `name`,
    `name_grad_in`, `name_grad_wt`.  The input gradient is computed only if somebody reads it
    (`Context.input_gradient`), or if it is struck or observed.

    Raises:
      ValueError: when the layer is traced, for shapes whose gradients have no published form.

    >>> params, _ = convolution("conv1", 16, 3, 2).init((0,), (1, 8, 32, 32, 3))
    >>> {name: leaf.shape for name, leaf in params["conv1"].items()}
    {'kernel': (3, 3, 3, 16), 'bias': (16,)}
    """
    return _layer((Convolution, ConvolutionGradIn, ConvolutionGradWt), name, features, size, stride, bias)


def depthwise_convolution(name: str, size: int, stride: int = 1) -> Layer:
    """`size`×`size` convolution of each channel by itself, padded as TensorFlow's SAME, without bias.

    Parameter `kernel` [k,k,C,1], Glorot-normal.  Sites: `name`, `name_grad_in`, `name_grad_wt`.

    Raises:
      ValueError: as `convolution`.

    >>> params, _ = depthwise_convolution("dwconv", 5).init((0,), (1, 8, 32, 32, 6))
    >>> {name: leaf.shape for name, leaf in params["dwconv"].items()}
    {'kernel': (5, 5, 6, 1)}
    """
    return _layer((Depthwise, DepthwiseGradIn, DepthwiseGradWt), name, 1, size, stride, bias=False)


def _layer(
    operations: tuple[
        Callable[[int], Convolution],
        Callable[[int, tuple[int, int]], ConvolutionGradIn],
        Callable[[int, int], ConvolutionGradWt],
    ],
    name: str,
    filters: int,
    size: int,
    stride: int,
    bias: bool,
) -> Layer:
    """A layer of an operation and its two gradients; its kernel is [size,size,C,filters] for C input channels."""
    operation, grad_in, grad_wt = operations

    def init(key: Key, shape: Shape) -> tuple[Initial, Initial]:
        params: dict[str, np.ndarray | jax.ShapeDtypeStruct] = {
            "kernel": glorot_normal(key, name, (size, size, shape[-1], filters))
        }
        if bias:
            params["bias"] = filled(0, filters)
        return {name: params}, {}

    def forward(params: Params, stats: Stats, x: jax.Array, ctx: Context) -> ForwardResult:
        _check_shape(name, x.shape[2:4], size, stride)
        y, observations = perform(operation(stride), name, x, params[name]["kernel"], ctx)
        if bias:
            y = y + params[name]["bias"].astype(y.dtype)
        return y, {}, x, observations

    def backward(params: Params, cache: Cache, dy: jax.Array, ctx: Context) -> BackwardResult:
        x = cache  # [R,b,H,W,I]
        kernel = params[name]["kernel"]
        height, width = x.shape[2:4]
        operation_in = grad_in(stride, (height, width))
        dx, at_in = perform(operation_in, f"{name}_grad_in", dy, kernel, ctx, used=ctx.input_gradient)
        dkernel, at_wt = perform(grad_wt(stride, size), f"{name}_grad_wt", x, dy, ctx)
        dparams = {"kernel": dkernel.astype(kernel.dtype)}
        if bias:
            dparams["bias"] = jnp.sum(dy, axis=(0, 1, 2, 3), dtype=kernel.dtype)
        return dx, {name: dparams}, merge([at_in, at_wt])

    return Layer(init, forward, backward)


def _check_shape(name: str, image: tuple[int, ...], size: int, stride: int) -> None:
    """The published forms of the gradients exist for these shapes (docs/backward.md, The published forms)."""
    supported_stride = stride in (1, 2) or (size == 1 and stride > 0)
    if size % 2 == 0 or not supported_stride or any(n % stride for n in image):
        height, width = image
        raise ValueError(
            f"convolution {name!r}: a {size}×{size} kernel with stride {stride} on a {height}×{width} map is not "
            "supported: its gradients have no published form, to which the positions of a fault refer. Supported "
            "are odd kernel sizes with stride 1 or 2, and size 1 with any stride, on maps that the stride divides"
        )
