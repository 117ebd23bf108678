"""Convolution and its two gradients, each in the formulation that is fastest for its shape.

On accelerators these are plain `lax.conv_general_dilated`.  XLA's CPU convolution is nearly as fast
as a matrix product on most shapes, and far slower on some.  So on CPUs the static shapes choose
between

  convolution  as on accelerators;
  products     one matrix product per kernel position, over the outputs that it reaches;
  columns      one product for all kernel positions, whose slices are then added up (col2im);
  shifts       for depthwise convolutions: the sum of shifted images, each times its weights.

Images are [N,H,W,C], kernels [k,l,I,O], depthwise ones [k,l,C,1]; `padding` is that of the
forward convolution, ((top, bottom), (left, right)).  benchmarks/convolutions.py measures the choice
on ResNet-18's shapes.
"""

from functools import partial

import jax
import jax.numpy as jnp
from jax import lax

from .isolation import isolated, on_cpus

# For the outermost `jit` on CPUs.  By default XLA hands convolutions and reductions to YNNPACK.  It ran a
# convolution of 16×16×64 at 100 GFLOP/s where XLA's own reached 170 (2 cores, JAX 0.10.2), but made
# reductions five times faster: leave it the reductions.  (XLA's fusion emitters must stay on: without
# them, effnet's programs with and without fault support differed in bits.)
CPU_OPTIONS = {"xla_cpu_experimental_ynn_fusion_type": "LIBRARY_FUSION_TYPE_REDUCE"}

VALID = ((0, 0), (0, 0))
LAYOUT = ("NHWC", "HWIO", "NHWC")
Padding = tuple[tuple[int, int], tuple[int, int]]
Shape = tuple[int, ...]
Reach = tuple[int, slice, slice]
Position = tuple[int, int, tuple[slice, ...], tuple[slice, ...]]


def same_padding(image: tuple[int, ...], size: tuple[int, ...], stride: int) -> Padding:
    """TensorFlow's SAME: just enough padding to cover the image, the smaller half before it.

    >>> same_padding((32, 32), (3, 3), 2)
    ((0, 1), (0, 1))
    """
    top_bottom, left_right = (_missing(n, k, stride) for n, k in zip(image, size, strict=True))
    return top_bottom, left_right


def _missing(n: int, k: int, stride: int) -> tuple[int, int]:
    total = max((-(-n // stride) - 1) * stride + k - n, 0)
    return total // 2, total - total // 2


def fast_convolution(x: jax.Array, kernel: jax.Array, stride: int, padding: Padding) -> jax.Array:
    """x [N,H,W,I], kernel [k,l,I,O] -> y [N,h,w,O].

    >>> x, kernel = jnp.ones((2, 8, 8, 3)), jnp.ones((3, 3, 3, 5))
    >>> jax.eval_shape(lambda: fast_convolution(x, kernel, 2, ((0, 1), (0, 1)))).shape
    (2, 4, 4, 5)
    """
    if _by_products(x.shape[1:3], kernel.shape, stride, padding):
        return _output_by_products(x, kernel, stride, padding)
    return lax.conv_general_dilated(x, kernel, (stride, stride), padding, dimension_numbers=LAYOUT)


def short_convolution(x: jax.Array, kernel: jax.Array, stride: int, padding: Padding) -> jax.Array:
    """As `fast_convolution`, in few instructions: for code that is compiled at every site and run at one."""
    if _few_positions(kernel.shape) and _exceeds(x.shape[1:3], kernel.shape):
        return _output_by_products(x, kernel, stride, padding)
    return lax.conv_general_dilated(x, kernel, (stride, stride), padding, dimension_numbers=LAYOUT)


def input_gradient(
    dy: jax.Array, kernel: jax.Array, stride: int, padding: Padding, shape: tuple[int, ...]
) -> jax.Array:
    """dy [N,h,w,O], kernel [k,l,I,O] -> dx of `shape` [N,H,W,I]."""
    if stride > 1 and _few_positions(kernel.shape):
        return _input_gradient_by_columns(dy, kernel, stride, padding, shape)
    if _by_products(shape[1:3], kernel.shape, stride, padding):
        return _input_gradient_by_products(dy, kernel, stride, padding, shape)
    rotated = jnp.flip(kernel, (0, 1)).swapaxes(2, 3)
    edges = _input_gradient_edges(dy, kernel, stride, padding, shape)
    dilation = (stride, stride)
    return lax.conv_general_dilated(dy, rotated, (1, 1), edges, lhs_dilation=dilation, dimension_numbers=LAYOUT)


def weight_gradient(x: jax.Array, dy: jax.Array, stride: int, padding: Padding, size: int) -> jax.Array:
    """x [N,H,W,I], dy [N,h,w,O] -> dw [size,size,I,O]."""
    if _weights_by_products(dy.shape[1:3], size, stride):
        return _weight_gradient_by_products(x, dy, stride, padding, size)
    edges = _weight_gradient_edges(x, dy, stride, padding, size)
    # The batch is contracted, the channels of x become the batch.
    images, window = x.transpose(3, 1, 2, 0), dy.transpose(1, 2, 0, 3)
    dilation = (stride, stride)
    dw = lax.conv_general_dilated(images, window, (1, 1), edges, rhs_dilation=dilation, dimension_numbers=LAYOUT)
    return dw.transpose(1, 2, 0, 3)


def fast_depthwise_convolution(x: jax.Array, kernel: jax.Array, stride: int, padding: Padding) -> jax.Array:
    """x [N,H,W,C], kernel [k,l,C,1] -> y [N,h,w,C]."""
    if on_cpus():
        with isolated("false"):
            return _output_by_shifts(x, kernel, stride, padding)
    return short_depthwise_convolution(x, kernel, stride, padding)


def short_depthwise_convolution(x: jax.Array, kernel: jax.Array, stride: int, padding: Padding) -> jax.Array:
    """As `fast_depthwise_convolution`, in few instructions."""
    grouped, strides = kernel.swapaxes(2, 3), (stride, stride)  # [k,l,1,C]
    return lax.conv_general_dilated(
        x, grouped, strides, padding, dimension_numbers=LAYOUT, feature_group_count=x.shape[3]
    )


def depthwise_input_gradient(
    dy: jax.Array, kernel: jax.Array, stride: int, padding: Padding, shape: tuple[int, ...]
) -> jax.Array:
    """dy [N,h,w,C], kernel [k,l,C,1] -> dx of `shape` [N,H,W,C]."""
    top_bottom, left_right = _input_gradient_edges(dy, kernel, stride, padding, shape)
    between = (0, 0, stride - 1)
    dilated = lax.pad(dy, jnp.zeros((), dy.dtype), [(0, 0, 0), between, between, (0, 0, 0)])
    return fast_depthwise_convolution(dilated, jnp.flip(kernel, (0, 1)), 1, (top_bottom, left_right))


def depthwise_weight_gradient(x: jax.Array, dy: jax.Array, stride: int, padding: Padding, size: int) -> jax.Array:
    """x [N,H,W,C], dy [N,h,w,C] -> dw [size,size,C,1]."""
    if on_cpus():
        with isolated("false"):
            return _weight_gradient_by_shifts(x, dy, stride, padding, size)
    return short_depthwise_weight_gradient(x, dy, stride, padding, size)


def short_depthwise_weight_gradient(x: jax.Array, dy: jax.Array, stride: int, padding: Padding, size: int) -> jax.Array:
    """As `depthwise_weight_gradient`, in few instructions."""
    edges = _weight_gradient_edges(x, dy, stride, padding, size)
    layout = ("CHWN", "IHWO", "HWNC")  # the batch is contracted, each channel a group of its own
    dw = lax.conv_general_dilated(
        x,
        dy,
        (1, 1),
        edges,
        rhs_dilation=(stride, stride),
        dimension_numbers=layout,
        batch_group_count=x.shape[3],
    )
    return dw.swapaxes(2, 3)


# ---- The rules


def _few_positions(kernel_shape: Shape) -> bool:
    """Whether this is a CPU and the kernel positions are few enough to write out: 49 take seconds to compile."""
    return on_cpus() and kernel_shape[0] * kernel_shape[1] <= 9


def _by_products(image: Shape, kernel_shape: Shape, stride: int, padding: Padding) -> bool:
    """Whether a convolution is slow or multiplies much padding.

    That is so for a 1×1 kernel (one product is up to 1.6 times as fast); for a kernel larger than
    the image, where XLA falls back to a loop a hundred times slower; and for wide channels on outputs
    up to 4×4, where much of the kernel lies over padding (1.4 times as fast).
    """
    size, (features, filters) = kernel_shape[:2], kernel_shape[2:]
    small_and_wide = max(_output_size(image, size, stride, padding)) <= 4 and min(features, filters) >= 128
    return _few_positions(kernel_shape) and (size == (1, 1) or _exceeds(image, kernel_shape) or small_and_wide)


def _exceeds(image: Shape, kernel_shape: Shape) -> bool:
    return any(k > n for k, n in zip(kernel_shape[:2], image, strict=True))


def _weights_by_products(outputs: Shape, size: int, stride: int) -> bool:
    """True for stride 2 (1.6 times as fast), 1×1 kernels (1.6 to 3 times), outputs up to 4×4 (1.1 to 1.4 times)."""
    return _few_positions((size, size)) and (stride > 1 or size == 1 or max(outputs) <= 4)


# ---- The formulations


def _output_by_products(x: jax.Array, kernel: jax.Array, stride: int, padding: Padding) -> jax.Array:
    n, (features, filters) = x.shape[0], kernel.shape[2:]
    h, w = _output_size(x.shape[1:3], kernel.shape[:2], stride, padding)
    y = jnp.zeros((n, h, w, filters), _accumulator(x))
    for i, j, outputs, inputs in _positions(x.shape[1:3], (h, w), kernel.shape[:2], stride, padding):
        part = x[inputs]
        product = jnp.matmul(part.reshape(-1, features), kernel[i, j], preferred_element_type=y.dtype)
        y = y.at[outputs].add(product.reshape(*part.shape[:3], filters))
    return y.astype(x.dtype)


def _input_gradient_by_products(
    dy: jax.Array, kernel: jax.Array, stride: int, padding: Padding, shape: Shape
) -> jax.Array:
    features, filters = kernel.shape[2:]
    dx = jnp.zeros(shape, _accumulator(dy))
    for i, j, outputs, inputs in _positions(shape[1:3], dy.shape[1:3], kernel.shape[:2], stride, padding):
        part = dy[outputs]
        product = jnp.matmul(part.reshape(-1, filters), kernel[i, j].T, preferred_element_type=dx.dtype)
        dx = dx.at[inputs].add(product.reshape(*part.shape[:3], features))
    return dx.astype(dy.dtype)


def _input_gradient_by_columns(
    dy: jax.Array, kernel: jax.Array, stride: int, padding: Padding, shape: Shape
) -> jax.Array:
    height, width, features, filters = kernel.shape
    n, h, w, _ = dy.shape
    weights = kernel.transpose(3, 0, 1, 2).reshape(filters, -1)
    columns = jnp.matmul(dy.reshape(-1, filters), weights, preferred_element_type=_accumulator(dy))
    columns = columns.reshape(n, h, w, height, width, features)
    zero = jnp.zeros((), columns.dtype)

    def spread(i: int, j: int) -> jax.Array:  # where kernel position (i, j) puts its column; negative padding crops
        edges = [
            (at - low, size + low - at - _dilated(out, stride), stride - 1)
            for at, size, out, (low, _) in zip((i, j), shape[1:3], (h, w), padding, strict=True)
        ]
        return lax.pad(columns[:, :, :, i, j], zero, [(0, 0, 0), *edges, (0, 0, 0)])

    dx = jnp.asarray(sum(spread(i, j) for i in range(height) for j in range(width)))
    return dx.astype(dy.dtype)


def _weight_gradient_by_products(x: jax.Array, dy: jax.Array, stride: int, padding: Padding, size: int) -> jax.Array:
    features, filters = x.shape[3], dy.shape[3]
    dw = {
        (i, j): (dy[outputs].reshape(-1, filters).T @ x[inputs].reshape(-1, features)).T
        for i, j, outputs, inputs in _positions(x.shape[1:3], dy.shape[1:3], (size, size), stride, padding)
    }
    unreached = jnp.zeros((features, filters), x.dtype)
    parts = [dw.get((i, j), unreached) for i in range(size) for j in range(size)]
    return jnp.stack(parts).reshape(size, size, features, filters)


# XLA fuses the products and sums of the next two, and rounds them as one.  So what else is fused with
# them must not depend on whether a conditional follows.


@partial(jax.jit, static_argnums=(2, 3))
@isolated("true")
def _output_by_shifts(x: jax.Array, kernel: jax.Array, stride: int, padding: Padding) -> jax.Array:
    h, w = _output_size(x.shape[1:3], kernel.shape[:2], stride, padding)
    shifts = _shifts(x, (h, w), kernel.shape[:2], stride, padding)
    return jnp.asarray(sum(part * kernel[i, j, :, 0] for (i, j), part in shifts.items()))


@partial(jax.jit, static_argnums=(2, 3, 4))
@isolated("true")
def _weight_gradient_by_shifts(x: jax.Array, dy: jax.Array, stride: int, padding: Padding, size: int) -> jax.Array:
    shifts = _shifts(x, dy.shape[1:3], (size, size), stride, padding)
    products = tuple(part * dy for part in shifts.values())
    zeros = (jnp.zeros((), x.dtype),) * len(products)
    # All kernel positions in one pass over the images, which a sum for each would read again.
    sums = lax.reduce(products, zeros, lambda one, other: tuple(map(jnp.add, one, other)), (0, 1, 2))
    dw = dict(zip(shifts, sums, strict=True))
    unreached = jnp.zeros(x.shape[3], x.dtype)
    parts = [dw.get((i, j), unreached) for i in range(size) for j in range(size)]
    return jnp.stack(parts).reshape(size, size, -1, 1)


def _shifts(
    x: jax.Array, outputs: Shape, size: Shape, stride: int, padding: Padding
) -> dict[tuple[int, int], jax.Array]:
    """For each kernel position (i, j) that reaches the image, the inputs [N,h,w,C] that it meets."""
    padded = jnp.pad(x, [(0, 0), *padding, (0, 0)])
    h, w = (_dilated(out, stride) for out in outputs)
    reached = [(i, j) for i, j, _, _ in _positions(x.shape[1:3], outputs, size, stride, padding)]
    return {(i, j): padded[:, i : i + h : stride, j : j + w : stride] for i, j in reached}


# ---- Geometry


def _input_gradient_edges(
    dy: jax.Array, kernel: jax.Array, stride: int, padding: Padding, shape: Shape
) -> list[tuple[int, int]]:
    """The padding of the dilated dy."""
    axes = zip(kernel.shape[:2], shape[1:3], dy.shape[1:3], padding, strict=True)
    return [(k - 1 - low, size + low - _dilated(out, stride)) for k, size, out, (low, _) in axes]


def _weight_gradient_edges(
    x: jax.Array, dy: jax.Array, stride: int, padding: Padding, size: int
) -> list[tuple[int, int]]:
    """The padding of x."""
    axes = zip(x.shape[1:3], dy.shape[1:3], padding, strict=True)
    return [(low, size - 1 + _dilated(out, stride) - low - n) for n, out, (low, _) in axes]


def _output_size(image: Shape, size: Shape, stride: int, padding: Padding) -> Shape:
    return tuple((n + low + high - k) // stride + 1 for n, k, (low, high) in zip(image, size, padding, strict=True))


def _dilated(size: int, stride: int) -> int:
    return (size - 1) * stride + 1


def _positions(image: Shape, outputs: Shape, size: Shape, stride: int, padding: Padding) -> list[Position]:
    """(i, j, index into outputs, index into inputs) of the kernel positions that reach the image."""
    rows, columns = (_reach(*axis, stride) for axis in zip(image, outputs, size, padding, strict=True))
    return [
        (i, j, (slice(None), to_y, to_x), (slice(None), from_y, from_x))
        for i, to_y, from_y in rows
        for j, to_x, from_x in columns
    ]


def _reach(image: int, outputs: int, size: int, padding: tuple[int, int], stride: int) -> list[Reach]:
    """`_positions` along one axis: kernel position i meets output a at input a·stride + i − low, if it exists."""
    found = []
    for i in range(size):
        first = max(0, -((i - padding[0]) // stride))
        last = min(outputs - 1, (image - 1 - i + padding[0]) // stride)
        if first <= last:
            start = first * stride + i - padding[0]
            found.append((i, slice(first, last + 1), slice(start, start + (last - first) * stride + 1, stride)))
    return found


def _accumulator(x: jax.Array) -> jnp.dtype:
    """Sums of several products of narrow types are kept in float32."""
    return x.dtype if x.dtype.itemsize >= 4 else jnp.dtype(jnp.float32)
