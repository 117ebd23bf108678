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

    def init(key, shape):
        params = {"kernel": glorot_normal(key, name, (size, size, shape[-1], features))}
        if bias:
            params["bias"] = filled(0, features)
        return {name: params}, {}

    def forward(params, stats, x, ctx):
        _check_shape(name, x.shape[2:4], size, stride)
        y, observations = perform(Convolution(stride), name, x, params[name]["kernel"], ctx)
        if bias:
            y = y + params[name]["bias"]
        return y, {}, x, observations

    def backward(params, cache, dy, ctx):
        x = cache  # [R,b,H,W,I]
        grad_in = ConvolutionGradIn(stride, x.shape[2:4])
        kernel = params[name]["kernel"]
        dx, at_in = perform(grad_in, f"{name}_grad_in", dy, kernel, ctx, used=input_gradient)
        dkernel, at_wt = perform(ConvolutionGradWt(stride, size), f"{name}_grad_wt", x, dy, ctx)
        dparams = {"kernel": dkernel}
        if bias:
            dparams["bias"] = jnp.sum(dy, axis=(0, 1, 2, 3))
        return dx, {name: dparams}, merge([at_in, at_wt])

    return Layer(init, forward, backward)


def depthwise_convolution(name: str, size: int, stride: int = 1) -> Layer:
    """`size`×`size` convolution of each channel by itself, padded as TensorFlow's SAME, without bias.

    Parameter `kernel` [k,k,C,1], Glorot-normal.  Sites: `name`, `name_grad_in`, `name_grad_wt`.

    Raises:
      ValueError: as `convolution`.
    """

    def init(key, shape):
        return {name: {"kernel": glorot_normal(key, name, (size, size, shape[-1], 1))}}, {}

    def forward(params, stats, x, ctx):
        _check_shape(name, x.shape[2:4], size, stride)
        y, observations = perform(Depthwise(stride), name, x, params[name]["kernel"], ctx)
        return y, {}, x, observations

    def backward(params, cache, dy, ctx):
        x = cache  # [R,b,H,W,C]
        grad_in = DepthwiseGradIn(stride, x.shape[2:4])
        dx, at_in = perform(grad_in, f"{name}_grad_in", dy, params[name]["kernel"], ctx)
        dkernel, at_wt = perform(DepthwiseGradWt(stride, size), f"{name}_grad_wt", x, dy, ctx)
        return dx, {name: {"kernel": dkernel}}, merge([at_in, at_wt])

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
