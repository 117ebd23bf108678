"""Convolutions, and their gradients."""

import dataclasses
import math

import jax
import jax.numpy as jnp
from jax import lax

from .. import formulations
from ..fault import Operand
from ..formulations import VALID
from .operation import Checkable, Operation, Summed


@dataclasses.dataclass(frozen=True)
class Convolution(Operation, Checkable):
    """y = x * kernel. x [R,b,H,W,I], kernel [k,k,I,O] -> y [R,b,h,w,O], before any bias.

    >>> jax.eval_shape(Convolution(2).compute, jnp.ones((1, 4, 8, 8, 3)), jnp.ones((3, 3, 3, 5))).shape
    (1, 4, 4, 4, 5)
    """

    stride: int

    fast = staticmethod(formulations.fast_convolution)
    short = staticmethod(formulations.short_convolution)

    def compute(self, x: jax.Array, kernel: jax.Array) -> jax.Array:
        padding = formulations.same_padding(x.shape[2:4], kernel.shape[:2], self.stride)
        y = self.fast(x.reshape(-1, *x.shape[2:]), kernel, self.stride, padding)
        return y.reshape(*x.shape[:2], *y.shape[1:])

    def operands(self, x: jax.Array, kernel: jax.Array, r: jax.Array | int) -> tuple[jax.Array, jax.Array]:
        """x [b,H,W,I] of one worker; kernel [k,k,I,O]."""
        return x[r], kernel

    def product(self, x: jax.Array, kernel: jax.Array) -> jax.Array:
        """y [b,h,w,O] of one worker."""
        padding = formulations.same_padding(x.shape[1:3], kernel.shape[:2], self.stride)
        return self.short(x, kernel, self.stride, padding)


@dataclasses.dataclass(frozen=True)
class ConvolutionGradIn(Operation, Checkable):
    """dx from dy and kernel. dy [R,b,h,w,O], kernel [k,k,I,O] -> dx [R,b,H,W,I].

    >>> jax.eval_shape(ConvolutionGradIn(2, (8, 8)).compute, jnp.ones((1, 4, 4, 4, 5)), jnp.ones((3, 3, 3, 5))).shape
    (1, 4, 8, 8, 3)
    """

    gradient = Operand.INPUT
    columns = (-2,)

    stride: int
    size: tuple[int, int]  # H, W

    fast = staticmethod(formulations.input_gradient)
    short = staticmethod(formulations.short_convolution)

    def compute(self, dy: jax.Array, kernel: jax.Array) -> jax.Array:
        padding = formulations.same_padding(self.size, kernel.shape[:2], self.stride)
        shape = (dy.shape[0] * dy.shape[1], *self.size, kernel.shape[2])
        dx = self.fast(dy.reshape(-1, *dy.shape[2:]), kernel, self.stride, padding, shape)
        return dx.reshape(*dy.shape[:2], *dx.shape[1:])

    def operands(self, dy: jax.Array, kernel: jax.Array, r: jax.Array | int) -> tuple[jax.Array, jax.Array]:
        """dy of one worker, dilated and padded, [b,H',W',O]; the kernel rotated by 180°, channels exchanged."""
        k = kernel.shape[0]
        grad_y = _pad(_dilate(dy[r], self.stride, k), k)
        return grad_y, self.exchanged(kernel[::-1, ::-1])

    def exchanged(self, kernel: jax.Array) -> jax.Array:
        """[k,k,I,O] -> [k,k,O,I]."""
        return kernel.transpose(0, 1, 3, 2)

    def product(self, grad_y: jax.Array, rotated: jax.Array) -> jax.Array:
        """dx [b,H,W,I] of one worker."""
        return self.short(grad_y, rotated, 1, VALID)


@dataclasses.dataclass(frozen=True)
class ConvolutionGradWt(Summed, Checkable):
    """dkernel, summed over the workers. x [R,b,H,W,I], dy [R,b,h,w,O] -> [k,k,I,O].

    >>> jax.eval_shape(ConvolutionGradWt(2, 3).compute, jnp.ones((1, 4, 8, 8, 3)), jnp.ones((1, 4, 4, 4, 5))).shape
    (3, 3, 3, 5)
    """

    gradient = Operand.WEIGHT

    stride: int
    kernel_size: int

    fast = staticmethod(formulations.weight_gradient)

    def compute(self, x: jax.Array, dy: jax.Array) -> jax.Array:
        k = self.kernel_size
        padding = formulations.same_padding(x.shape[2:4], (k, k), self.stride)
        x, dy = (t.reshape(-1, *t.shape[2:]) for t in (x, dy))
        return self.fast(x, dy, self.stride, padding, k)

    def operands(self, x: jax.Array, dy: jax.Array, r: jax.Array | int) -> tuple[jax.Array, jax.Array]:
        """x of one worker, padded, [I,H',W',b]; its dy, dilated, [h',w',b,O]."""
        k = self.kernel_size
        padded = _pad(x[r], k).transpose(3, 1, 2, 0)
        grad_y = _dilate(dy[r], self.stride, k).transpose(1, 2, 0, 3)
        return padded, grad_y

    def product(self, padded: jax.Array, grad_y: jax.Array) -> jax.Array:
        """dkernel of one worker, [I,k,k,O]."""
        return formulations.short_convolution(padded, grad_y, 1, VALID)

    def from_published(self, output: jax.Array) -> jax.Array:
        """[I,k,k,O] -> [k,k,I,O]."""
        return output.transpose(1, 2, 0, 3)


class Depthwise(Convolution):
    """y = x * kernel, channel by channel. x [R,b,H,W,C], kernel [k,k,C,1] -> y [R,b,h,w,C].

    >>> jax.eval_shape(Depthwise(2).compute, jnp.ones((1, 4, 8, 8, 3)), jnp.ones((3, 3, 3, 1))).shape
    (1, 4, 4, 4, 3)
    """

    along = (1,)

    fast = staticmethod(formulations.fast_depthwise_convolution)
    short = staticmethod(formulations.short_depthwise_convolution)

    def added(self, x: jax.Array, kernel: jax.Array) -> tuple[Checkable, jax.Array, jax.Array]:
        """The images of a worker added up: a channel has no other output to be added to."""
        return self, jnp.sum(x, 1, keepdims=True), kernel

    def terms(self, x: jax.Array, kernel: jax.Array) -> int:
        """k·k."""
        return math.prod(kernel.shape[:2])


class DepthwiseGradIn(ConvolutionGradIn):
    """dx from dy and kernel. dy [R,b,h,w,C], kernel [k,k,C,1] -> dx [R,b,H,W,C].

    >>> jax.eval_shape(DepthwiseGradIn(2, (8, 8)).compute, jnp.ones((1, 4, 4, 4, 3)), jnp.ones((3, 3, 3, 1))).shape
    (1, 4, 8, 8, 3)
    """

    along = (1,)

    fast = staticmethod(formulations.depthwise_input_gradient)
    short = staticmethod(formulations.short_depthwise_convolution)

    def exchanged(self, kernel: jax.Array) -> jax.Array:
        """[k,k,C,1] as it is: each channel is its own input and output."""
        return kernel

    def added(self, dy: jax.Array, kernel: jax.Array) -> tuple[Checkable, jax.Array, jax.Array]:
        """The images of a worker added up."""
        return self, jnp.sum(dy, 1, keepdims=True), kernel

    def terms(self, dy: jax.Array, kernel: jax.Array) -> int:
        """k·k; fewer with a stride."""
        return math.prod(kernel.shape[:2])


class DepthwiseGradWt(ConvolutionGradWt):
    """dkernel, summed over the workers. x [R,b,H,W,C], dy [R,b,h,w,C] -> [k,k,C,1].

    >>> jax.eval_shape(DepthwiseGradWt(2, 3).compute, jnp.ones((1, 4, 8, 8, 3)), jnp.ones((1, 4, 4, 4, 3))).shape
    (3, 3, 3, 1)
    """

    along = (0, 1)

    fast = staticmethod(formulations.depthwise_weight_gradient)

    def operands(self, x: jax.Array, dy: jax.Array, r: jax.Array | int) -> tuple[jax.Array, jax.Array]:
        """x of one worker, padded, [b,H',W',C]; its dy, dilated, [b,h',w',C]."""
        k = self.kernel_size
        return _pad(x[r], k), _dilate(dy[r], self.stride, k)

    def product(self, padded: jax.Array, grad_y: jax.Array) -> jax.Array:
        """dkernel of one worker, [k,k,C,1]."""
        return formulations.short_depthwise_weight_gradient(padded, grad_y, 1, VALID, self.kernel_size)

    def from_published(self, output: jax.Array) -> jax.Array:
        """[k,k,C,1] as it is."""
        return output

    def added(self, x: jax.Array, dy: jax.Array) -> tuple[Checkable, jax.Array, jax.Array]:
        """What each dy meets in all kernel positions, added up, as if the kernel had one position."""
        k = self.kernel_size
        met = Depthwise(self.stride).compute(x, jnp.ones((k, k, x.shape[-1], 1), x.dtype))
        return DepthwiseGradWt(1, 1), met, dy


def _dilate(dy: jax.Array, stride: int, k: int) -> jax.Array:
    """Spread dy [b,h,w,O] by the stride: for k > 1 each value follows its zeros, for k = 1 it leads."""
    if stride == 1:
        return dy
    zeros = stride - 1
    before, after = (zeros, 0) if k > 1 else (0, zeros)
    spread = (before, after, zeros)
    return lax.pad(dy, jnp.zeros((), dy.dtype), [(0, 0, 0), spread, spread, (0, 0, 0)])


def _pad(tensor: jax.Array, k: int) -> jax.Array:
    """Pad [b,H,W,C] by (k-1)//2 on every side."""
    p = (k - 1) // 2
    return jnp.pad(tensor, [(0, 0), (p, p), (p, p), (0, 0)])
