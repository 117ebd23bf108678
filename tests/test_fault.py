"""What a fault does to a tensor, and to the operation that reads it."""

# Above 400 lines: the laws of one function, each on the same operations.

import dataclasses
import functools

import hypothesis.extra.numpy as arrays
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fault_injection.explicit.sites import list_sites
from fault_injection.models.bits import ALL_ONES, rewritten
from fault_injection.models.combinators import chain, residual
from fault_injection.models.fault import INACTIVE, Operand, Struck, inactive_fault, padded_size
from fault_injection.models.formulations import CPU_OPTIONS
from fault_injection.models.layer import Context
from fault_injection.models.layers.activation import relu, swish
from fault_injection.models.layers.convolution import convolution, depthwise_convolution
from fault_injection.models.layers.dense import dense
from fault_injection.models.layers.normalisation import batch_norm
from fault_injection.models.layers.pooling import global_average
from fault_injection.models.loss import cross_entropy
from fault_injection.models.operations.convolution import (
    Convolution,
    ConvolutionGradIn,
    ConvolutionGradWt,
    Depthwise,
    DepthwiseGradIn,
    DepthwiseGradWt,
)
from fault_injection.models.operations.operation import Summed
from fault_injection.models.operations.product import Dense, DenseGradIn, DenseGradWt
from fault_injection.models.overwrite import fault_of, overwrite, struck_of, words_of
from fault_injection.models.site import Site, make_fault
from fault_injection.models.strike import perform

pytestmark = pytest.mark.law

WORDS = st.integers(0, 2**32 - 1)
TENSORS = arrays.arrays(np.uint32, (3, 5, 2), elements=WORDS).map(lambda words: words.view(np.float32))
POSITIONS = st.lists(st.integers(0, 29), min_size=1, max_size=8, unique=True)
OTHERS = (np.arange(6, dtype=np.float32), np.arange(40, dtype=np.float32))  # the operands not struck


@functools.cache
def compiled():
    return jax.jit(overwrite)


def struck(tensor, fault):
    """The tensor's words after the fault, which finds it at each operand; and the report."""
    found = []
    for operand in Operand:
        tensors = list(OTHERS)
        tensors.insert(operand, tensor)
        after, report = compiled()(tuple(tensors), dataclasses.replace(fault, operand=np.int32(operand)))
        for number, (one, other) in enumerate(zip(tensors, after, strict=True)):
            assert other.dtype == one.dtype and other.shape == one.shape
            assert number == operand or np.asarray(other).tobytes() == one.tobytes()
        found.append((words(np.asarray(after[operand])), jax.device_get(report)))
    for after, report in found[1:]:
        np.testing.assert_array_equal(after, found[0][0])
        jax.tree.map(np.testing.assert_array_equal, report, found[0][1])
    return found[0]


def site_of(name, *operands):
    """A site with the operands given, for one worker."""
    shapes = (jax.ShapeDtypeStruct(t.shape, t.dtype) for t in operands)
    return Site(name, name, "forward", dict(zip(Operand, shapes, strict=True)))


def fault_at(index, like=np.zeros((3, 5, 2), np.float32), **how):  # noqa: B008
    return make_fault(site_of("site", like, *OTHERS), Operand.INPUT, 0, index, size=8, **how)


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
    assert np.sum(report.old != report.new) == np.sum(words(tensor) != expected)


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


@given(TENSORS, POSITIONS, st.lists(st.integers(0, 29), min_size=8, max_size=8), WORDS, WORDS)
def test_the_host_and_the_device_give_the_same_new_bits(tensor, index, source, keep, flip):
    source = source[: len(index)]
    after, _ = struck(tensor, fault_at(index, source=source, keep=keep, flip=flip))
    new = rewritten(words(tensor)[source], np.uint32(keep), np.uint32(flip))
    np.testing.assert_array_equal(after[index], new)
    np.testing.assert_array_equal(new, (words(tensor)[source] & keep) ^ flip)


@given(TENSORS)
def test_an_inactive_fault_changes_no_bit(tensor):
    after, report = struck(tensor, inactive_fault(8))
    np.testing.assert_array_equal(after, words(tensor))
    assert not np.any(report.old) and not np.any(report.new)


@given(TENSORS, st.lists(st.integers(-(2**31), 2**31 - 1), min_size=8, max_size=8, unique=True), st.booleans())
def test_compiled_code_strikes_nothing_outside_the_operand(tensor, positions, reads):
    """Also where the next operand would be, were they end to end."""
    positions = [p for p in (30, 31, *positions) if not 0 <= p < 30][:8]
    fault = fault_at(range(len(positions)), flip=0xFFFFFFFF)
    outside = np.pad(np.array(positions, np.int32), (0, 8 - len(positions)), constant_values=-1)
    fault = dataclasses.replace(fault, source=outside) if reads else dataclasses.replace(fault, index=outside)
    after, report = struck(tensor, fault)
    np.testing.assert_array_equal(after, words(tensor))
    assert not np.any(report.old) and not np.any(report.new)


TYPES = ("float32", "bfloat16", "float16", "float8_e4m3fn", "float8_e5m2", "int32", "uint16", "int8")


@pytest.mark.parametrize("dtype", TYPES)
def test_elements_are_overwritten_in_their_own_type_and_width(dtype):
    tensor = np.asarray(jnp.arange(6).astype(dtype))
    flip = 0xC0FFEE91  # of which each width takes its low bits
    after, report = struck(tensor, fault_at([2, 5], tensor, source=[3, 2], keep=0xFFFFFFFF, flip=flip))
    expected = words(tensor).copy()
    expected[[2, 5]] = words(tensor)[[3, 2]] ^ np.array(flip, np.uint32).astype(expected.dtype)
    np.testing.assert_array_equal(after, expected)
    np.testing.assert_array_equal(report.old[:2], words(tensor)[[2, 5]])
    np.testing.assert_array_equal(report.new[:2], expected[[2, 5]])
    assert np.sum(report.old != report.new) == 2


MASKS = st.integers(0, 2**64 - 1)


@pytest.mark.parametrize("dtype", ["float64", "int64", "uint64"])
@settings(max_examples=10)
@given(st.lists(MASKS, min_size=6, max_size=6), MASKS, MASKS)
def test_elements_of_64_bits_are_overwritten_beside_narrower_operands(dtype, words_before, keep, flip):
    tensor = np.array(words_before, np.uint64).view(dtype)
    fault = fault_at([2, 5], tensor, source=[3, 2], keep=keep, flip=flip)
    assert fault.keep.dtype == fault.flip.dtype == np.uint64
    with jax.enable_x64(True):
        after, report = struck(tensor, fault)
        silent, told = struck(tensor, inactive_fault(8, mask=np.uint64))
    expected = words(tensor).copy()
    expected[[2, 5]] = (words(tensor)[[3, 2]] & np.uint64(keep)) ^ np.uint64(flip)
    np.testing.assert_array_equal(after, expected)
    np.testing.assert_array_equal(report.old[:2], words(tensor)[[2, 5]])
    np.testing.assert_array_equal(report.new[:2], expected[[2, 5]])
    np.testing.assert_array_equal(silent, words(tensor))
    assert not np.any(told.old) and not np.any(told.new)


@pytest.mark.parametrize("mask", [np.uint32, np.uint64])
def test_a_fault_and_what_it_did_are_one_vector_of_the_type_of_its_masks(mask):
    fault = fault_at([3], np.zeros(9, "float64" if mask is np.uint64 else "float32"), keep=ALL_ONES, flip=1 << 31)
    told = Struck(np.int32(1), fault.flip, ~fault.flip, np.int32(1), np.int32(2), None)
    with jax.enable_x64(True):
        for vector in (words_of(fault, told), np.asarray(words_of(fault, told))):
            assert vector.dtype == mask and vector.shape == (6 + 6 * 8,)
            jax.tree.map(np.testing.assert_array_equal, (fault_of(vector), struck_of(vector)), (fault, told))
        np.testing.assert_array_equal(struck_of(words_of(fault)).new, np.zeros(8, mask))


@pytest.mark.parametrize("count", [64, 4096])
def test_many_elements_are_overwritten_at_once(count):
    random = np.random.default_rng(0)
    tensor = random.standard_normal(10_000).astype(np.float32)
    index, source = random.permutation(10_000)[:count], random.integers(10_000, size=count)
    fault = make_fault(site_of("site", tensor, *OTHERS), Operand.INPUT, 0, index, source=source, keep=0xFFFFFFFF)
    after, _ = struck(tensor, fault)
    expected = tensor.copy()
    expected[index] = tensor[source]
    np.testing.assert_array_equal(after, words(expected))


@given(st.integers(1, 10**6))
def test_few_sizes_serve_all_counts(count):
    assert count <= padded_size(count) < 64 * count
    assert padded_size(count) in (1, 64, 4096, 262144, 64**4)


def test_positions_that_repeat_are_refused():
    with pytest.raises(ValueError, match="distinct; one in the input of site is listed twice"):
        fault_at([3, 3])


@pytest.mark.parametrize("index, source", [([-1], None), ([2, INACTIVE], None), ([30], None), ([3], [30]), ([3], [-1])])
def test_positions_outside_the_operand_are_refused(index, source):
    line = r"^position (-1|30) lies outside the input of site, which is \[3, 5, 2\]; expected 0 to 29$"
    with pytest.raises(ValueError, match=line):
        fault_at(index, source=source)


def test_operands_that_no_fault_reaches_are_refused():
    large = jax.ShapeDtypeStruct((2**16, 2**15), jnp.bfloat16)
    with pytest.raises(ValueError, match=r"^the input of site has 2147483648 elements; .* at most 2147483647$"):
        fault_at([0], large)
    with pytest.raises(ValueError, match=r"^the input of site is complex64, which consists of complex numbers"):
        fault_at([0], np.zeros(3, np.complex64))
    with pytest.raises(ValueError, match="keep is uint32; masks of the input of site, which is float64, are uint64"):
        fault_at([0], np.zeros(3), keep=np.uint32(0xFFFFFFFF))
    with pytest.raises(ValueError, match="9 elements does not fit the size 8"):
        fault_at(range(9))


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
    fault = make_fault(worker_site(name, operation, a, b), operand, worker, index, flip=value.view(np.uint32), size=4)

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
    fault = make_fault(worker_site(name, operation, a, b), Operand.INPUT, 1, [5], flip=value.view(np.uint32), size=4)
    with jax.default_matmul_precision(precision):
        result = np.asarray(jax.jit(lambda a, b: perform(operation, name, a, b, context(fault))[0])(a, b))
    if isinstance(operation, Summed):
        expected = sum(expected)
        expected = expected.transpose(1, 2, 0, 3) if type(operation) is ConvolutionGradWt else expected
    np.testing.assert_allclose(result, np.stack(expected), rtol=1e-5, atol=1e-5)


def context(fault, **options):
    return Context(key=jax.random.key(0), workers=jnp.arange(WORKERS), fault=fault, **options)


def worker_site(name, operation, a, b):
    """The site of an operation performed by itself."""
    _, seen = jax.eval_shape(lambda: perform(operation, name, a, b, context(None, observe=frozenset({"operands"}))))
    tensors = seen.tensors["operands"][name]
    each = [tensors[operand.name.lower()] for operand in Operand]
    return site_of(name, *(jax.ShapeDtypeStruct(t.shape[1:], t.dtype) for t in each))


@pytest.mark.parametrize("name", OPERATIONS)
def test_an_overwritten_nan_or_infinity_is_gone(name):
    """Striking the one non-finite element of a worker's operand makes everything finite again."""
    operation, a_shape, b_shape = OPERATIONS[name]
    a = np.ones((WORKERS, BATCH, *a_shape), np.float32)
    b = np.ones((*((WORKERS, BATCH) if isinstance(operation, Summed) else ()), *b_shape), np.float32)
    a.reshape(WORKERS, -1)[1, 0] = np.nan
    published = np.asarray(operation.operands(jnp.asarray(a), jnp.asarray(b), 1)[0])
    index = np.flatnonzero(np.isnan(published))
    fault = make_fault(worker_site(name, operation, a, b), Operand.INPUT, 1, index)
    result, _ = jax.jit(lambda a, b, fault: perform(operation, name, a, b, context(fault)))(a, b, fault)
    assert np.isfinite(np.asarray(result)).all()


@pytest.mark.parametrize("operand", Operand)
def test_a_narrow_operand_is_struck_as_it_is(operand):
    """In bfloat16, with its own 16 bits; nothing becomes float32."""
    x, kernel = jnp.ones((WORKERS, BATCH, 6), jnp.bfloat16), jnp.ones((6, 5), jnp.bfloat16)
    fault = make_fault(worker_site("d", Dense(), x, kernel), operand, 1, [3], flip=0x4120)  # 10
    y, seen = jax.jit(lambda fault: perform(Dense(), "d", x, kernel, context(fault)))(fault)
    assert y.dtype == jnp.bfloat16
    assert seen.struck.old[0] == (0x40C0 if operand == Operand.OUTPUT else 0x3F80)  # 6, 1
    assert seen.struck.new[0] == 0x4120
    expected = np.full((WORKERS, BATCH, 5), 6.0)
    at = {Operand.INPUT: np.s_[1, 0], Operand.WEIGHT: np.s_[1, :, 3], Operand.OUTPUT: np.s_[1, 0, 3]}[operand]
    expected[at] = 10 if operand == Operand.OUTPUT else 15
    np.testing.assert_array_equal(np.asarray(y, np.float64), expected)


# With the optimizations that quick tests do without: claims about bits are about rounding and fusion too.
AS_COMMANDS = {**CPU_OPTIONS, "xla_backend_optimization_level": 3}


def passes(network, shape, **options):
    """Everything that a pass of a network computes, compiled as the training step is."""
    params, stats = network.init((0,), shape)
    random = np.random.default_rng(0)
    x, labels = random.standard_normal(shape, np.float32), random.integers(10, size=shape[:2])

    @functools.partial(jax.jit, compiler_options=AS_COMMANDS if jax.default_backend() == "cpu" else None)
    def run(params, stats, x, fault):
        ctx = Context(jax.random.key(0), jnp.arange(shape[0]), fault=fault, input_gradient=False, **options)
        logits, stats, cache, forward = network.forward(params, stats, x, ctx)
        loss, _, dlogits = cross_entropy(logits, labels)
        _, grads, backward = network.backward(params, cache, dlogits, ctx)
        return (logits, loss, stats, grads), (forward.struck, backward.struck)

    return lambda fault: jax.device_get(run(params, stats, x, fault))


def test_only_supported_sites_are_struck():
    network, example = chain(dense("one", 6), dense("two", 5)), jax.ShapeDtypeStruct((BATCH, 4), "float32")
    sites = list_sites(network, example)
    run = passes(network, (WORKERS, *example.shape), supported=frozenset({"two", "two_grad_wt"}))
    for name, site in sites.items():
        _, (forward, backward) = run(make_fault(site, Operand.WEIGHT, 1, [3], flip=0x7F800000))
        assert forward.hits == (name == "two")
        assert backward.hits == (name == "two_grad_wt")
    assert passes(network, (WORKERS, *example.shape), supported=frozenset())(inactive_fault())[1] == (None, None)


WHOLE = (  # a network and the shape of its inputs
    chain(
        convolution("conv1", 4, 3, 2),
        batch_norm("bn1"),
        residual(chain(relu(), depthwise_convolution("dwconv", 3), batch_norm("bn2"), convolution("conv2", 4, 3))),
        swish(),
        global_average("pool"),
        dense("fc", 10),
    ),
    (2, 4, 8, 8, 3),
)


def test_the_bits_are_the_same_whichever_sites_are_supported():
    """An inactive fault with support for one site, for some and for all computes what the plain step computes."""
    network, shape = WHOLE
    sites = list(list_sites(network, jax.ShapeDtypeStruct(shape[1:], "float32")))
    plain, struck = passes(network, shape)(None)
    assert struck == (None, None)
    assert all(np.isfinite(leaf).all() and leaf.any() for leaf in plain[:2])
    for supported in (None, frozenset(sites[5:6]), frozenset(sites[1::3])):
        found, _ = passes(network, shape, supported=supported)(inactive_fault())
        for expected, leaf in zip(jax.tree.leaves(plain), jax.tree.leaves(found), strict=True):
            assert expected.tobytes() == leaf.tobytes()
