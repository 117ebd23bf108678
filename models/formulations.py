import jax.numpy as jnp
from jax import lax

VALID = ((0, 0), (0, 0))
_NHWC = ("NHWC", "HWIO", "NHWC")


def same_padding(size, kernel, stride):
    def one(n, k):
        total = max((-(-n // stride) - 1) * stride + k - n, 0)
        return total // 2, total - total // 2

    return tuple(one(n, k) for n, k in zip(size, kernel))


def convolution(x, kernel, stride, padding):
    return lax.conv_general_dilated(x, kernel, (stride, stride), padding, dimension_numbers=_NHWC)


def input_gradient(dy, kernel, stride, padding, shape):
    pads = []
    for (lo, hi), n, h, k in zip(padding, shape[1:3], dy.shape[1:3], kernel.shape):
        left = k - 1 - lo
        pads.append((left, n - ((h - 1) * stride + 1) - left + k - 1))
    return lax.conv_general_dilated(
        dy,
        kernel[::-1, ::-1].transpose(0, 1, 3, 2),
        (1, 1),
        pads,
        lhs_dilation=(stride, stride),
        dimension_numbers=_NHWC,
    )


def weight_gradient(x, dy, stride, padding, size):
    pads = []
    for (lo, hi), n, h in zip(padding, x.shape[1:3], dy.shape[1:3]):
        pads.append((lo, (h - 1) * stride + size - n - lo))
    return lax.conv_general_dilated(
        x, dy, (1, 1), pads, rhs_dilation=(stride, stride), dimension_numbers=("CHWN", "IHWO", "HWNC")
    )
