"""Convolution and depthwise convolution; their three operations are sites (docs/science.md, Sites and operands)."""

import jax.numpy as jnp

from ..layer import Layer, merge
from ..operations import (
    Convolution,
    ConvolutionGradIn,
    ConvolutionGradWt,
    Depthwise,
    DepthwiseGradIn,
    DepthwiseGradWt,
    perform,
)
from .initial import filled, glorot_normal


def convolution(
    name: str, features: int, size: int, stride: int = 1, *, bias: bool = True, input_gradient: bool = True
) -> Layer:
    """`size`×`size` convolution to `features` channels, padded as TensorFlow's SAME.

    Parameters `kernel` [k,k,I,O], Glorot-normal, and `bias` [O], zero.  Sites: `name`,
    `name_grad_in`, `name_grad_wt`.

    Args:
      input_gradient: False for the first layer of a network, whose input gradient nothing
        reads: it is computed only when struck or observed.

    Raises:
      ValueError: where it is traced, for shapes whose gradients have no published form.
    """
    operations = Convolution, ConvolutionGradIn, ConvolutionGradWt
    return _layer(operations, name, features, size, stride, bias, input_gradient)


def depthwise_convolution(name: str, size: int, stride: int = 1) -> Layer:
    """`size`×`size` convolution of each channel by itself, padded as TensorFlow's SAME, without bias.

    Parameter `kernel` [k,k,C,1], Glorot-normal.  Sites: `name`, `name_grad_in`, `name_grad_wt`.

    Raises:
      ValueError: as `convolution`.
    """
    operations = Depthwise, DepthwiseGradIn, DepthwiseGradWt
    return _layer(operations, name, 1, size, stride, bias=False, input_gradient=True)


def _layer(operations, name, filters, size, stride, bias, input_gradient):
    """A layer of an operation and its two gradients; its kernel is [size,size,C,filters] for C input channels."""
    operation, grad_in, grad_wt = operations

    def init(key, shape):
        params = {"kernel": glorot_normal(key, name, (size, size, shape[-1], filters))}
        if bias:
            params["bias"] = filled(0, filters)
        return {name: params}, {}

    def forward(params, stats, x, ctx):
        _check_shape(name, x.shape[2:4], size, stride)
        y, observations = perform(operation(stride), name, x, params[name]["kernel"], ctx)
        if bias:
            y = y + params[name]["bias"]
        return y, {}, x, observations

    def backward(params, cache, dy, ctx):
        x = cache  # [R,b,H,W,I]
        kernel = params[name]["kernel"]
        dx, at_in = perform(grad_in(stride, x.shape[2:4]), f"{name}_grad_in", dy, kernel, ctx, used=input_gradient)
        dkernel, at_wt = perform(grad_wt(stride, size), f"{name}_grad_wt", x, dy, ctx)
        dparams = {"kernel": dkernel}
        if bias:
            dparams["bias"] = jnp.sum(dy, axis=(0, 1, 2, 3))
        return dx, {name: dparams}, merge([at_in, at_wt])

    return Layer(init, forward, backward)


def _check_shape(name, image, size, stride):
    """The published forms of the gradients exist for these shapes (docs/backward.md, The published forms)."""
    supported_stride = stride in (1, 2) or (size == 1 and stride > 0)
    if size % 2 == 0 or not supported_stride or any(n % stride for n in image):
        height, width = image
        raise ValueError(
            f"convolution {name!r}: a {size}×{size} kernel with stride {stride} on a {height}×{width} map is not "
            "supported: its gradients have no published form, to which the positions of a fault refer. Supported "
            "are odd kernel sizes with stride 1 or 2, and size 1 with any stride, on maps that the stride divides"
        )
