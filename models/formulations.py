"""Convolution and its two gradients, each in the formulation that is fastest for its shape.

Everywhere but on CPUs these are plain `lax.conv_general_dilated`. XLA's CPU convolution is near the
speed of a matrix product on most shapes and far from it on some, so there the static shapes choose:

  products    one matrix product per kernel position, over the outputs which that position reaches
  columns     one product for all kernel positions, whose slices are then added up (col2im)
  convolution everything else

The timings behind the rules were taken on 2 cores (AVX-512, about 210 GFLOP/s) for ResNet-18 at
batch 128. They hold with XLA's YNNPACK fusions switched off (`CPU_OPTIONS`): these run a 16x16x64
3x3 convolution at 100 GFLOP/s on one core, an unpadded one at 38, and a weight gradient at 68, where
XLA's own convolution reaches 160, 180 and 140.

Layouts: images [N,H,W,C], kernels [k,l,I,O]; `padding` is ((top,bottom),(left,right)) of the forward.
"""
import jax
import jax.numpy as jnp
from jax import lax

CPU_OPTIONS = {"xla_cpu_experimental_ynn_fusion_type": ""}  # compiler_options of the outermost jit

VALID = ((0, 0), (0, 0))
FORWARD = ("NHWC", "HWIO", "NHWC")
WEIGHTS = ("CHWN", "IHWO", "HWNC")  # the batch is contracted, the channels of x become the batch


def convolution(x, kernel, stride, padding):
    """x [N,H,W,I], kernel [k,l,I,O] -> y [N,h,w,O]."""
    if by_products(x.shape[1:3], kernel.shape, stride, padding):
        return output_by_products(x, kernel, stride, padding)
    return lax.conv_general_dilated(x, kernel, (stride, stride), padding, dimension_numbers=FORWARD)


def input_gradient(dy, kernel, stride, padding, shape):
    """dy [N,h,w,O], kernel [k,l,I,O] -> dx of `shape` [N,H,W,I]."""
    if few_positions(kernel.shape) and stride > 1:
        return input_gradient_by_columns(dy, kernel, stride, padding, shape)
    if by_products(shape[1:3], kernel.shape, stride, padding):
        return input_gradient_by_products(dy, kernel, stride, padding, shape)
    rotated = jnp.flip(kernel, (0, 1)).swapaxes(2, 3)
    before = [k - 1 - low for k, (low, _) in zip(kernel.shape, padding)]
    after = [size + low - dilated(out, stride)
             for size, (low, _), out in zip(shape[1:3], padding, dy.shape[1:3])]
    return lax.conv_general_dilated(dy, rotated, (1, 1), list(zip(before, after)),
                                    lhs_dilation=(stride, stride), dimension_numbers=FORWARD)


def weight_gradient(x, dy, stride, padding, size):
    """x [N,H,W,I], dy [N,h,w,O] -> dw [k,l,I,O]; `size` is k, or (k,l)."""
    size = (size, size) if isinstance(size, int) else tuple(size)
    if weights_by_products(dy.shape[1:3], size, stride):
        return weight_gradient_by_products(x, dy, stride, padding, size)
    after = [k - 1 + dilated(out, stride) - low - n
             for k, out, (low, _), n in zip(size, dy.shape[1:3], padding, x.shape[1:3])]
    pads = [(low, high) for (low, _), high in zip(padding, after)]
    dw = lax.conv_general_dilated(x.transpose(3, 1, 2, 0), dy.transpose(1, 2, 0, 3), (1, 1), pads,
                                  rhs_dilation=(stride, stride), dimension_numbers=FORWARD)
    return dw.transpose(1, 2, 0, 3)


# ---- The rules

def few_positions(kernel_shape):
    """On a CPU, and few enough kernel positions to unroll: each costs compile time, 49 cost seconds."""
    return jax.default_backend() == "cpu" and kernel_shape[0] * kernel_shape[1] <= 9


def by_products(image, kernel_shape, stride, padding):
    """For a 1x1 kernel (one product, up to 1.6 x), for a kernel larger than the image, where XLA's
    convolution runs a hundred times slower, and for wide channels on outputs up to 4x4: there much of
    a kernel lies over padding, which a convolution multiplies and products leave out (1.4 x)."""
    k, l, features, filters = kernel_shape
    outputs = output_size(image, (k, l), stride, padding)
    exceeds = k > image[0] or l > image[1]
    small_and_wide = max(outputs) <= 4 and min(features, filters) >= 128
    return few_positions(kernel_shape) and (k * l == 1 or exceeds or small_and_wide)


def weights_by_products(outputs, size, stride):
    """For stride 2 (1.6 x), 1x1 kernels (1.6 to 3 x) and outputs up to 4x4 (1.1 to 1.4 x)."""
    return few_positions(size) and (stride > 1 or size == (1, 1) or max(outputs) <= 4)


# ---- The formulations

def output_by_products(x, kernel, stride, padding):
    n, features, filters = x.shape[0], *kernel.shape[2:]
    h, w = output_size(x.shape[1:3], kernel.shape[:2], stride, padding)
    y = jnp.zeros((n, h, w, filters), accumulator(x))
    for i, j, outputs, inputs in positions(x.shape[1:3], (h, w), kernel.shape[:2], stride, padding):
        part = x[inputs]
        product = jnp.matmul(part.reshape(-1, features), kernel[i, j], preferred_element_type=y.dtype)
        y = y.at[outputs].add(product.reshape(*part.shape[:3], filters))
    return y.astype(x.dtype)


def input_gradient_by_products(dy, kernel, stride, padding, shape):
    features, filters = kernel.shape[2:]
    dx = jnp.zeros(shape, accumulator(dy))
    for i, j, outputs, inputs in positions(shape[1:3], dy.shape[1:3], kernel.shape[:2], stride, padding):
        part = dy[outputs]
        product = jnp.matmul(part.reshape(-1, filters), kernel[i, j].T, preferred_element_type=dx.dtype)
        dx = dx.at[inputs].add(product.reshape(*part.shape[:3], features))
    return dx.astype(dy.dtype)


def input_gradient_by_columns(dy, kernel, stride, padding, shape):
    k, l, features, filters = kernel.shape
    n, h, w, _ = dy.shape
    columns = jnp.matmul(dy.reshape(-1, filters), kernel.transpose(3, 0, 1, 2).reshape(filters, -1),
                         preferred_element_type=accumulator(dy)).reshape(n, h, w, k, l, features)
    zero = jnp.zeros((), columns.dtype)

    def spread(i, j):  # where kernel position (i,j) puts its column; negative padding crops
        edges = [(i - low, size + low - i - dilated(out, stride), stride - 1)
                 for i, (low, _), size, out in zip((i, j), padding, shape[1:3], (h, w))]
        return lax.pad(columns[:, :, :, i, j], zero, [(0, 0, 0), *edges, (0, 0, 0)])

    return sum(spread(i, j) for i in range(k) for j in range(l)).astype(dy.dtype)


def weight_gradient_by_products(x, dy, stride, padding, size):
    features, filters = x.shape[3], dy.shape[3]
    parts = {(i, j): (x[inputs].reshape(-1, features), dy[outputs].reshape(-1, filters))
             for i, j, outputs, inputs in positions(x.shape[1:3], dy.shape[1:3], size, stride, padding)}
    unreached = jnp.zeros((features, filters), x.dtype)
    products = [(parts[i, j][1].T @ parts[i, j][0]).T if (i, j) in parts else unreached
                for i in range(size[0]) for j in range(size[1])]
    return jnp.stack(products).reshape(*size, features, filters)


# ---- Geometry

def same_padding(image, size, stride):
    """TensorFlow's SAME: what is missing to cover the image, the smaller half before it."""
    missing = [max((-(-n // stride) - 1) * stride + k - n, 0) for n, k in zip(image, size)]
    return tuple((total // 2, total - total // 2) for total in missing)


def output_size(image, size, stride, padding):
    return tuple((n + low + high - k) // stride + 1 for n, k, (low, high) in zip(image, size, padding))


def dilated(size, stride):
    return (size - 1) * stride + 1


def positions(image, outputs, size, stride, padding):
    """(i, j, index into outputs, index into inputs) of the kernel positions that reach the image."""
    rows, columns = (reach(*axis, stride) for axis in zip(image, outputs, size, padding))
    return [(i, j, (slice(None), to_y, to_x), (slice(None), from_y, from_x))
            for i, to_y, from_y in rows for j, to_x, from_x in columns]


def reach(image, outputs, size, padding, stride):
    """Along one axis, kernel position i meets output a at input a*stride + i - low, if there is one."""
    found = []
    for i in range(size):
        first = max(0, -((i - padding[0]) // stride))
        last = min(outputs - 1, (image - 1 - i + padding[0]) // stride)
        if first <= last:
            start = first * stride + i - padding[0]
            found.append((i, slice(first, last + 1), slice(start, start + (last - first) * stride + 1, stride)))
    return found


def accumulator(x):
    return jnp.promote_types(x.dtype, jnp.float32)
