"""Operands as XLA multiplies them on CPUs are those of the step, and give its result."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax

from fault_injection.any_step.product_form import form_of
from fault_injection.models.overwrite import bits


@st.composite
def products(draw):
    """Dimension numbers of a product and the shapes of its operands, their axes in any order."""
    batch, summed, free, other = (draw(st.lists(st.integers(1, 3), max_size=2)) for _ in range(4))
    axes = [("batch", i) for i in range(len(batch))], [("summed", i) for i in range(len(summed))]
    sizes = dict(zip([*axes[0], *axes[1]], [*batch, *summed], strict=True))
    orders = []
    for name, own in (("free", free), ("other", other)):
        mine = [(name, i) for i in range(len(own))]
        sizes |= dict(zip(mine, own, strict=True))
        orders.append(draw(st.permutations([*axes[0], *axes[1], *mine])))
    numbers = tuple(tuple([order.index(axis) for axis in group] for order in orders) for group in reversed(axes))
    return numbers, [tuple(sizes[axis] for axis in order) for order in orders]


@settings(max_examples=20, deadline=None)
@given(products(), st.sampled_from(["float32", "bfloat16"]), st.integers(0, 2**32 - 1))
def test_operands_are_kept_bit_by_bit_and_give_the_products_result(product, dtype, seed):
    numbers, shapes = product
    random = np.random.default_rng(seed)
    # Small integers, so that every order of addition gives the same.
    a, b = (jnp.asarray(random.integers(-4, 5, shape), dtype) for shape in shapes)
    equation = jax.make_jaxpr(lambda a, b: lax.dot_general(a, b, numbers, preferred_element_type=a.dtype))(a, b).eqns[0]
    form = form_of(equation, as_written=False)
    kept = [one.of(tensor) for one, tensor in zip(form.operands, (a, b), strict=True)]
    assert all(tensor.ndim <= 3 or dtype == "float32" for tensor in kept)
    expected = lax.dot_general(a, b, numbers, preferred_element_type=a.dtype)
    assert form.compute(kept).tolist() == expected.tolist()
    # Any bits, NaNs among them.
    words = [
        random.integers(0, 2 ** (8 * a.dtype.itemsize), shape, dtype=f"uint{8 * a.dtype.itemsize}") for shape in shapes
    ]
    for one, word in zip(form.operands, words, strict=True):
        tensor = lax.bitcast_convert_type(jnp.asarray(word), dtype)
        assert bits(jax.jit(lambda x, one=one: one.back(one.of(x)))(tensor)).tolist() == word.tolist()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("axes", [("NHWC", "HWIO", "NHWC"), ("NCHW", "OIHW", "NCHW"), ("CHWN", "IHWO", "HWNC")])
def test_the_kernel_of_a_convolution_is_kept_as_a_matrix_and_gives_its_result(axes, dtype):
    random = np.random.default_rng(0)
    sizes = {"N": 2, "H": 5, "W": 4, "C": 3}, {"H": 3, "W": 2, "I": 3, "O": 6}
    x, kernel = (
        jnp.asarray(random.integers(-4, 5, [size[axis] for axis in order]), dtype)
        for size, order in zip(sizes, axes[:2], strict=True)
    )
    convolution = functools.partial(
        lax.conv_general_dilated, window_strides=(2, 1), padding="SAME", dimension_numbers=axes
    )
    form = form_of(jax.make_jaxpr(convolution)(x, kernel).eqns[0], as_written=False)
    kept = [one.of(tensor) for one, tensor in zip(form.operands, (x, kernel), strict=True)]
    assert kept[1].shape == (3 * 2 * 3, 6)
    assert [one.back(tensor).tolist() for one, tensor in zip(form.operands, kept, strict=True)] == [
        x.tolist(),
        kernel.tolist(),
    ]
    assert form.compute(kept).tolist() == convolution(x, kernel).tolist()


@pytest.mark.parametrize("dtype, widened", [("bfloat16", True), ("float16", False), ("float32", False)])
def test_what_xla_computes_in_float32_is_kept_in_float32(dtype, widened):
    x, w = jnp.ones((2, 3, 4), dtype), jnp.ones((4, 5), dtype)
    equation = jax.make_jaxpr(jnp.matmul)(x, w).eqns[0]
    for as_written, shape in ((False, (6, 4)), (True, (2, 3, 4))):
        kept = form_of(equation, as_written).operands[0]
        assert (kept.shape, kept.dtype == jnp.float32) == (shape, dtype == "float32" or (widened and not as_written))
