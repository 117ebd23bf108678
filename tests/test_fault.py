"""What a fault does to a tensor, and to the operation that reads it."""

import functools

import hypothesis.extra.numpy as arrays
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.fault import INACTIVE, Operand, inactive_fault, make_fault, overwrite, padded_size
from models.layer import Context
from models.operations import (
    Convolution,
    ConvolutionGradIn,
    ConvolutionGradWt,
    Dense,
    DenseGradIn,
    DenseGradWt,
    Depthwise,
    DepthwiseGradIn,
    DepthwiseGradWt,
    Summed,
    perform,
)

WORDS = st.integers(0, 2**32 - 1)
TENSORS = arrays.arrays(np.uint32, (3, 5, 2), elements=WORDS).map(lambda words: words.view(np.float32))
POSITIONS = st.lists(st.integers(0, 29), min_size=1, max_size=8, unique=True)


@functools.cache
def compiled():
    return jax.jit(overwrite)


def struck(tensor, fault, active=True):
    after, report = compiled()(tensor, fault, active)
    return np.asarray(after).view(f"u{tensor.dtype.itemsize}").reshape(-1), report


def fault_at(index, **how):
    return make_fault("site", Operand.INPUT, 0, index, size=8, **how)


def words(tensor):
    return tensor.view(f"u{tensor.dtype.itemsize}").reshape(-1)


@given(TENSORS, POSITIONS, st.lists(WORDS, min_size=8, max_size=8))
def test_listed_elements_take_the_listed_bits_and_no_others_change(tensor, index, values):
    values = np.array(values[: len(index)], np.uint32)
    after, report = struck(tensor, fault_at(index, flip=values))
    expected = words(tensor).copy()
    expected[index] = values
    np.testing.assert_array_equal(after, expected)
    np.testing.assert_array_equal(np.asarray(report.old)[: len(index)], words(tensor)[index])
    np.testing.assert_array_equal(np.asarray(report.new)[: len(index)], values)
    assert report.operand_changed == np.sum(words(tensor) != expected)


@given(TENSORS, POSITIONS, WORDS)
def test_flipping_twice_changes_nothing(tensor, index, mask):
    fault = fault_at(index, keep=0xFFFFFFFF, flip=mask)
    once, _ = struck(tensor, fault)
    twice, _ = struck(once.view(np.float32).reshape(tensor.shape), fault)
    np.testing.assert_array_equal(twice, words(tensor))
    np.testing.assert_array_equal(once[index], words(tensor)[index] ^ np.uint32(mask))


@given(TENSORS, POSITIONS, st.lists(st.integers(0, 29), min_size=8, max_size=8))
def test_copied_elements_are_read_before_any_is_written(tensor, index, source):
    source = source[: len(index)]
    after, _ = struck(tensor, fault_at(index, source=source, keep=0xFFFFFFFF))
    np.testing.assert_array_equal(after[index], words(tensor)[source])


@given(TENSORS, POSITIONS)
def test_an_inactive_fault_changes_no_bit(tensor, index):
    for after, report in (struck(tensor, fault_at(index), active=False), struck(tensor, inactive_fault(8))):
        np.testing.assert_array_equal(after, words(tensor))
        assert report.operand_changed == 0
        assert not np.any(report.old) and not np.any(report.new)


def test_half_width_elements_take_the_low_bits():
    tensor = np.asarray(jnp.arange(6, dtype=jnp.bfloat16))
    after, report = struck(tensor, fault_at([2], keep=0xFFFFFFFF, flip=0x8001))
    assert after[2] == words(tensor)[2] ^ 0x8001
    assert report.operand_changed == 1


@given(st.integers(1, 10**6))
def test_few_sizes_serve_all_counts(count):
    assert count <= padded_size(count) < 64 * count
    assert padded_size(count) in (1, 64, 4096, 262144, 64**4)


@pytest.mark.parametrize("index", [[3, 3], [-1], [2, INACTIVE]])
def test_positions_that_repeat_or_are_negative_are_refused(index):
    with pytest.raises(ValueError, match="distinct"):
        fault_at(index)


WORKERS, BATCH = 3, 2
OPERATIONS = {
    "convolution": (Convolution(2), (8, 8, 4), (3, 3, 4, 5)),
    "convolution_1x1": (Convolution(2), (8, 8, 4), (1, 1, 4, 5)),
    "grad_in": (ConvolutionGradIn(2, (8, 8)), (4, 4, 5), (3, 3, 4, 5)),
    "grad_in_1x1": (ConvolutionGradIn(2, (8, 8)), (4, 4, 5), (1, 1, 4, 5)),
    "grad_wt": (ConvolutionGradWt(2, 3), (8, 8, 4), (4, 4, 5)),
    "depthwise": (Depthwise(2), (8, 8, 4), (3, 3, 4, 1)),
    "depthwise_grad_in": (DepthwiseGradIn(2, (8, 8)), (4, 4, 4), (3, 3, 4, 1)),
    "depthwise_grad_wt": (DepthwiseGradWt(2, 3), (8, 8, 4), (4, 4, 4)),
    "dense": (Dense(), (6,), (6, 5)),
    "dense_grad_in": (DenseGradIn(), (5,), (6, 5)),
    "dense_grad_wt": (DenseGradWt(), (6,), (5,)),
}


def drawn(name):
    """An operation, its random arguments for all workers, and the generator."""
    operation, a_shape, b_shape = OPERATIONS[name]
    random = np.random.default_rng(0)
    b_lead = (WORKERS, BATCH) if isinstance(operation, Summed) else ()
    a, b = (random.standard_normal(s).astype(np.float32) for s in ((WORKERS, BATCH, *a_shape), (*b_lead, *b_shape)))
    return operation, a, b, random


def reference(operation, a, b):
    """The operation's published operands for each worker, and its product in float64 NumPy."""
    operands = [operation.operands(jnp.asarray(a), jnp.asarray(b), r) for r in range(WORKERS)]
    return [[np.asarray(t, np.float64) for t in pair] for pair in operands]


def product(operation, a, b):
    """Output operand of one worker, by direct summation in float64."""
    if a.ndim == 2:
        return a @ b
    if isinstance(operation, Depthwise | DepthwiseGradIn):  # the convolution by a kernel that mixes no channels
        full = np.zeros((*b.shape[:3], b.shape[2]))
        full[:, :, np.arange(b.shape[2]), np.arange(b.shape[2])] = b[..., 0]
        same = Convolution(2) if isinstance(operation, Depthwise) else ConvolutionGradIn(2, (8, 8))
        return product(same, a, full)
    if isinstance(operation, DepthwiseGradWt):  # of the gradient of such a kernel, the diagonal
        full = product(ConvolutionGradWt(2, 3), a.transpose(3, 1, 2, 0), b.transpose(1, 2, 0, 3))
        return np.einsum("cijc->ijc", full)[..., None]
    stride = operation.stride if isinstance(operation, Convolution) else 1
    k, out = b.shape[:2], [(n - m) // stride + 1 for n, m in zip(a.shape[1:3], b.shape[:2], strict=True)]
    if isinstance(operation, Convolution):  # pads as TensorFlow's SAME
        out = [-(-n // stride) for n in a.shape[1:3]]
        total = [max((o - 1) * stride + m - n, 0) for o, m, n in zip(out, k, a.shape[1:3], strict=True)]
        a = np.pad(a, [(0, 0), *((t // 2, t - t // 2) for t in total), (0, 0)])
    result = np.zeros((a.shape[0], *out, b.shape[3]))
    for i in range(out[0]):
        for j in range(out[1]):
            window = a[:, i * stride : i * stride + k[0], j * stride : j * stride + k[1]]
            result[:, i, j] = np.tensordot(window, b, 3)
    return result


@pytest.mark.parametrize("operand", Operand)
@pytest.mark.parametrize("name", OPERATIONS)
def test_a_fault_acts_on_one_operand_of_one_worker(name, operand):
    """Against the same operation with that operand altered, summed directly in float64."""
    operation, a, b, random = drawn(name)
    operands = reference(operation, a, b)
    worker, value = 1, np.float32(37.5)
    clean = [product(operation, *pair) for pair in operands]
    shape = (*[t.shape for t in operands[worker]], clean[worker].shape)[operand]
    index = random.choice(np.prod(shape), 3, replace=False)
    fault = make_fault(name, operand, worker, index, flip=value.view(np.uint32), size=4)

    expected = [c.copy() for c in clean]
    target = [*operands[worker], expected[worker]][operand]
    target.reshape(-1)[index] = value
    if operand != Operand.OUTPUT:
        expected[worker] = product(operation, *operands[worker])

    run = jax.jit(lambda fault: perform(operation, name, jnp.asarray(a), jnp.asarray(b), context(fault)))
    result, seen = run(fault)
    control, _ = run(inactive_fault(4))
    result, control = np.asarray(result), np.asarray(control)
    if isinstance(operation, Summed):
        total = sum(expected)
        total = total.transpose(1, 2, 0, 3) if type(operation) is ConvolutionGradWt else total
        np.testing.assert_allclose(result, total, rtol=1e-4, atol=1e-4)
    else:
        np.testing.assert_allclose(result, np.stack(expected), rtol=1e-4, atol=1e-4)
        others = [r for r in range(WORKERS) if r != worker]
        np.testing.assert_array_equal(result[others], control[others])
    assert seen.struck.hits == 1
    assert seen.struck.operand_changed == 3
    changed = np.sum(np.abs(expected[worker] - clean[worker]) > 1e-6)
    assert abs(int(seen.struck.output_changed) - changed) <= 0.02 * changed


def rounded(tensor, digits):
    """float32 with its mantissa rounded to so many bits, ties to even."""
    bits, drop = np.float32(tensor).view(np.uint32), 23 - digits
    half = np.uint32((1 << drop - 1) - 1) + (bits >> drop & 1)
    return ((bits + half) >> drop << drop).view(np.float32)


@pytest.mark.parametrize(("precision", "digits"), [("tensorfloat32", 10), ("bfloat16", 7)])
@pytest.mark.parametrize("name", OPERATIONS)
def test_operations_read_operands_in_the_matrix_precision(name, precision, digits):
    """What a fault has written too; float32 operands would be off by hundreds of times the tolerance."""
    operation, a, b, _ = drawn(name)
    operands = reference(operation, a, b)
    operands[1][0].reshape(-1)[5] = value = np.float32(1.2345678)
    expected = [product(operation, *(rounded(t, digits).astype(np.float64) for t in pair)) for pair in operands]
    fault = make_fault(name, Operand.INPUT, 1, [5], flip=value.view(np.uint32), size=4)
    with jax.default_matmul_precision(precision):
        result = np.asarray(jax.jit(lambda a, b: perform(operation, name, a, b, context(fault))[0])(a, b))
    if isinstance(operation, Summed):
        expected = sum(expected)
        expected = expected.transpose(1, 2, 0, 3) if type(operation) is ConvolutionGradWt else expected
    np.testing.assert_allclose(result, np.stack(expected), rtol=1e-5, atol=1e-5)


def context(fault):
    return Context(key=jax.random.key(0), workers=jnp.arange(WORKERS), fault=fault)


@pytest.mark.parametrize("name", OPERATIONS)
def test_an_overwritten_nan_or_infinity_is_gone(name):
    """Striking the one non-finite element of a worker's operand makes everything finite again."""
    operation, a_shape, b_shape = OPERATIONS[name]
    a = np.ones((WORKERS, BATCH, *a_shape), np.float32)
    b = np.ones((*((WORKERS, BATCH) if isinstance(operation, Summed) else ()), *b_shape), np.float32)
    a.reshape(WORKERS, -1)[1, 0] = np.nan
    published = np.asarray(operation.operands(jnp.asarray(a), jnp.asarray(b), 1)[0])
    index = np.flatnonzero(np.isnan(published))
    fault = make_fault(name, Operand.INPUT, 1, index)
    result, _ = jax.jit(lambda a, b, fault: perform(operation, name, a, b, context(fault)))(a, b, fault)
    assert np.isfinite(np.asarray(result)).all()
