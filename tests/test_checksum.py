"""Checksums of products: their tolerances, steps without faults, and faults that they see and do not see."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from small import SITE
from small import small as small_resnet
from test_transformer import small as small_transformer
from whole import some

from fault_injection.any_step import step_checks
from fault_injection.detection.checksum import Checksum, VarianceChecksum, confirmed
from fault_injection.detection.detector import STOP
from fault_injection.detection.signals import SignalReader, reductions_of
from fault_injection.models.bits import ALL_ONES
from fault_injection.models.fault import Operand, inactive_fault
from fault_injection.models.layer import Context
from fault_injection.models.observe.checksum import DEVIATIONS, Performed, bound, deviation, ratio
from fault_injection.models.operations.convolution import (
    Convolution,
    ConvolutionGradIn,
    ConvolutionGradWt,
    Depthwise,
    DepthwiseGradIn,
    DepthwiseGradWt,
)
from fault_injection.models.operations.lookup import Lookup, LookupGradWt
from fault_injection.models.operations.operation import Checkable
from fault_injection.models.operations.product import (
    Dense,
    DenseGradIn,
    DenseGradWt,
    Product,
    ProductGradIn,
    ProductGradWt,
    ProductOfRows,
)
from fault_injection.models.site import make_fault
from fault_injection.models.strike import perform

DETECTORS = (Checksum(), VarianceChecksum())
KINDS = [kind for detector in DETECTORS for kind in detector.signals]
UP = "layers_0_mlp_up_proj"
STRUCK = {
    "transformer": (UP, f"{UP}_grad_in", f"{UP}_grad_wt", "layers_0_self_attn_scores"),
    "resnet18": (SITE,),
}
ELEMENTS = 64  # of every fault, so that one executable serves all
CASES = [("transformer", "float32"), ("transformer", "bfloat16"), ("resnet18", "float8")]
compiles = pytest.mark.slow  # a network with all its checksums


# ---- One product --------------------------------------------------------------------------

OPERATIONS = [
    (Convolution(2), (2, 3, 7, 8, 4), (3, 3, 4, 5)),
    (ConvolutionGradIn(2, (7, 8)), (2, 3, 4, 4, 5), (3, 3, 4, 5)),
    (ConvolutionGradWt(2, 3), (2, 3, 7, 8, 4), (2, 3, 4, 4, 5)),
    (Depthwise(2), (2, 3, 7, 8, 4), (5, 5, 4, 1)),
    (DepthwiseGradIn(2, (7, 8)), (2, 3, 4, 4, 4), (5, 5, 4, 1)),
    (DepthwiseGradWt(2, 5), (2, 3, 7, 8, 4), (2, 3, 4, 4, 4)),
    (Dense(), (2, 3, 6, 4), (4, 5)),
    (DenseGradIn(), (2, 3, 6, 5), (4, 5)),
    (DenseGradWt(), (2, 3, 6, 4), (2, 3, 6, 5)),
    (Product(), (2, 3, 6, 4), (2, 3, 4, 5)),
    (ProductOfRows(), (2, 3, 6, 4), (2, 3, 5, 4)),
    (ProductGradIn(), (2, 3, 6, 5), (2, 3, 4, 5)),
    (ProductGradWt(), (2, 3, 6, 4), (2, 3, 6, 5)),
    *(
        (step_checks.operation(jax.make_jaxpr(function)(*map(jnp.ones, shapes)).eqns[0]), *shapes)
        for function, *shapes in (  # as equations of a user's step
            (lambda a, b: lax.dot_general(a, b, (((1,), (1,)), ((), ()))), (6, 4), (5, 4)),
            (lambda a, b: lax.dot_general(a, b, (((3,), (1,)), ((0, 2), (0, 2)))), (2, 5, 3, 4), (2, 4, 3, 6)),
            (lambda a, b: lax.dot_general(a, b, (((2,), (0,)), ((), ()))), (2, 5, 4), (4, 3, 6)),
            (lambda a, b: lax.dot_general(a, b, (((0,), (0,)), ((), ()))), (6, 4), (6,)),
            (lambda a, b: lax.conv(a, b, (2, 2), "SAME"), (3, 4, 7, 8), (5, 4, 3, 3)),
            (lambda a, b: lax.conv_transpose(a, b, (2, 2), "SAME"), (3, 7, 8, 4), (3, 3, 4, 5)),
        )
    ),
]


def normal(*shapes):
    random = np.random.default_rng(0)
    return [jnp.asarray(random.normal(size=shape), jnp.float32) for shape in shapes]


@pytest.mark.parametrize(("operation", "of_a", "of_b"), OPERATIONS, ids=lambda case: type(case).__name__)
def test_sums_of_results_are_results_of_sums(operation, of_a, of_b):
    """So one wrong result is seen, wherever it is, and how many products there are is counted."""
    a, b = normal(of_a, of_b)
    compute = jax.jit(operation.compute)
    result = compute(a, b)
    other, *sums = operation.added(a, b)
    np.testing.assert_allclose(
        jnp.sum(result, operation.along, keepdims=True), jax.jit(other.compute)(*sums), atol=1e-4
    )
    assert jnp.max(compute(jnp.ones_like(a), jnp.ones_like(b))) <= operation.terms(a, b)
    for at in (0, result.size // 2, result.size - 1):
        wrong = result.reshape(-1).at[at].add(0.05).reshape(result.shape)
        for tolerance in (bound, deviation):
            assert ratio(tolerance, Performed(operation, a, b, None, result)) < 1
            assert ratio(tolerance, Performed(operation, a, b, None, wrong)) > 1


def test_a_lookup_is_no_product():
    assert not isinstance(Lookup(), Checkable) and not isinstance(LookupGradWt(2), Checkable)


def test_a_product_of_integers_and_a_convolution_in_groups_have_no_checksum():
    depthwise = functools.partial(
        lax.conv_general_dilated, window_strides=(1, 1), padding="SAME", feature_group_count=4
    )
    for function, *shapes in (
        (lambda a, b: a.astype(int) @ b.astype(int), (2, 3), (3, 4)),
        (depthwise, (2, 4, 5, 5), (4, 1, 3, 3)),
    ):
        assert step_checks.operation(jax.make_jaxpr(function)(*map(jnp.ones, shapes)).eqns[-1]) is None


@pytest.mark.parametrize("format", ["float32", "bfloat16", "float16"])
def test_the_ratio_is_the_one_of_the_page(format):
    """Both formulas, in float64, for a product with one wrong element."""
    a, b = (t.astype(format) for t in normal((1, 20, 100), (100, 48)))
    result = (a.astype(jnp.float32) @ b.astype(jnp.float32)).astype(format).at[0, 7, 5].add(30)
    x, y, c = (np.asarray(t[0] if t.ndim > 2 else t, np.float64) for t in (a, b, result))
    n, terms, u, unit = 48, 100, float(jnp.finfo(format).eps) / 2, 2.0**-24
    difference = np.abs(c.sum(1) - x @ y.sum(1))
    growth = 2 * unit * (DEVIATIONS * np.sqrt(terms) + n)  # 48 are few enough for the certain bound
    magnitudes = np.abs(x) @ np.abs(y).sum(1)
    worst = u * np.minimum(np.abs(c).sum(1), magnitudes) + growth * magnitudes
    products, sums = x**2 @ (y**2).sum(1), x**2 @ y.sum(1) ** 2
    squares, square = np.minimum((c**2).sum(1), terms * products), np.minimum(c.sum(1) ** 2, terms * sums)
    variance = (
        unit**2
        / 3
        * (
            (terms + n) / 2 * products
            + (terms / 2 + n / 3) * sums
            + (terms / 3 + n / 2) * squares
            + (terms + n) / 3 * square
        )
    )
    likely = u * np.minimum(np.abs(c).sum(1), np.sqrt(n * terms * products)) + DEVIATIONS * np.sqrt(variance)
    for tolerance, expected in ((bound, worst), (deviation, likely)):
        found = ratio(tolerance, Performed(Dense(), a, b, None, result))
        np.testing.assert_allclose(found, np.max(difference / expected), rtol=2e-3)


@pytest.mark.parametrize("tolerance", [bound, deviation])
@pytest.mark.parametrize("size", [1e-44, 1e-36, 1e-20, 1e15])
def test_no_size_of_numbers_raises_an_alarm(tolerance, size):
    """What underflows is no fault; a result of zeros neither."""
    a, b = normal((1, 20, 100), (100, 48))
    a = (a * np.float32(size)).at[0, 3].set(0)
    result = Dense().compute(a, b)
    assert ratio(tolerance, Performed(Dense(), a, b, None, result)) < 1
    assert ratio(tolerance, Performed(Dense(), a, b, None, result.at[0, 3, 1].set(max(size, 1e-30)))) > 1


@pytest.mark.parametrize("value", [np.nan, np.inf, 3e38])
def test_what_is_not_finite_is_infinitely_wrong(value):
    a, b = normal((1, 20, 100), (100, 48))
    result = Dense().compute(a, b).at[0, 2, 3:5].set(value)
    assert (
        ratio(bound, Performed(Dense(), a, b, None, result))
        == ratio(deviation, Performed(Dense(), a, b, None, result))
        == np.inf
    )


@pytest.mark.parametrize("rounding", ["bfloat16", "tensorfloat32", "highest"])
def test_operands_are_added_up_as_multipliers_read_them(rounding):
    a, b = normal((1, 20, 100), (100, 48))
    ctx = Context(jax.random.key(0), jnp.arange(1), reduce=reductions_of(KINDS))
    with jax.default_matmul_precision(rounding):
        _, seen = perform(Dense(), "fc", a, b, ctx)
    assert {name for name, found in seen.reduced.items() if 0 < found < 1} == {f"{kind}/fc" for kind in KINDS}


# ---- Steps --------------------------------------------------------------------------------


@functools.cache
def program(name, precision):
    """A small workload in a format, its program, and its state before the first step."""
    workload = {"transformer": small_transformer, "resnet18": small_resnet}[name](precision=precision)
    trained = workload.program(frozenset(STRUCK[name]), reductions=reductions_of(KINDS))
    return workload, trained, trained.place(trained.init())


def stepped(name, precision, fault=None, steps=1):
    """Checksums of the last of some steps by name, and what the fault did in it."""
    _, trained, state = program(name, precision)
    for step in range(steps):
        fault = inactive_fault(ELEMENTS) if fault is None else fault
        state, report = trained.faulty_step(state, trained.batch(0, step), 0, step, fault)
    return SignalReader(trained, KINDS).named(jax.device_get(report)), report.struck


@compiles
@pytest.mark.parametrize(("name", "precision"), some(CASES, CASES[:2]))
def test_no_product_of_a_step_without_a_fault_raises_an_alarm_and_none_is_missing(name, precision):
    workload, *_ = program(name, precision)
    products = [site for site in workload.sites() if not site.startswith("embed_tokens") and site != "conv1_grad_in"]
    for steps in (1, 4):
        found, _ = stepped(name, precision, steps=steps)
        assert found.keys() == {f"{kind}/{site}" for kind in KINDS for site in products}
        assert max(found.values()) < 1
    assert max(found.values()) > 0.1  # what is measured is not nothing


def flipped(site, precision, operand):
    """The fault that makes the largest of some elements 256 times as large: it inverts bits of its exponent."""
    workload, *_ = program("transformer", precision)
    site = workload.sites()[site]
    read = make_fault(site, operand, 1, np.arange(ELEMENTS), keep=ALL_ONES)
    dtype = np.dtype(site.operands[operand].dtype)
    unsigned = np.dtype(f"uint{dtype.itemsize * 8}")
    old = np.asarray(stepped("transformer", precision, read)[1].old).astype(unsigned)
    values = old.view(dtype)
    at = np.argmax(np.abs(values.astype(np.float32)))
    flip = int(old[at] ^ (values[at] * dtype.type(256)).view(unsigned))
    return make_fault(site, operand, 1, [at], keep=ALL_ONES, flip=flip, size=ELEMENTS)


def alarmed(found):
    """The sites with alarms of each detector, from the checksums of a step."""
    names = list(found)
    for detector in DETECTORS:
        of = [name for name in names if name.startswith(detector.signals[0])]
        _, alarms = detector.update(detector.init(of), np.array([found[name] for name in of]))
        yield {name.rpartition("/")[2] for name, level in zip(of, alarms.level, strict=True) if level == STOP}


@compiles
@pytest.mark.parametrize("operand", Operand)
@pytest.mark.parametrize("site", STRUCK["transformer"])
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_an_inverted_bit_of_an_exponent_is_seen_at_its_site_and_nowhere_else(precision, site, operand):
    found, struck = stepped("transformer", precision, flipped(site, precision, operand))
    assert struck.operand_changed == 1
    assert list(alarmed(found)) == [{site}, {site}]


@compiles
@pytest.mark.parametrize("site", STRUCK["transformer"][:3])
def test_a_nan_is_seen_where_it_is_made(site):
    workload, *_ = program("transformer", "float32")
    fault = make_fault(workload.sites()[site], Operand.OUTPUT, 1, [5], flip=0x7FC00000, size=ELEMENTS)
    assert all(site in sites for sites in alarmed(stepped("transformer", "float32", fault)[0]))


@compiles
def test_a_fault_that_keeps_the_sum_of_a_row_is_not_seen():
    """Two elements of a row that are exchanged."""
    workload, *_ = program("transformer", "float32")
    fault = make_fault(workload.sites()[UP], Operand.OUTPUT, 1, [4, 5], source=[5, 4], keep=ALL_ONES, size=ELEMENTS)
    found, struck = stepped("transformer", "float32", fault)
    assert struck.operand_changed == 2 and list(alarmed(found)) == [set(), set()]


@compiles  # test_formats.py has the same of steps without a fault
@pytest.mark.parametrize("precision", some(["float32", "float8"], ["float32"]))
def test_no_bit_of_a_training_depends_on_checksums(precision):
    """Neither of one that a fault strikes."""
    workload, trained, state = program("transformer", precision)
    plain = workload.program(frozenset(STRUCK["transformer"]))
    fault = flipped(UP, precision, Operand.OUTPUT)
    for each in (inactive_fault(ELEMENTS), fault):
        one, other = (p.faulty_step(state, p.batch(0, 0), 0, 0, each)[1] for p in (plain, trained))
        np.testing.assert_array_equal(one.digest, other.digest)
        assert not one.reductions and other.reductions


# ---- The detectors ------------------------------------------------------------------------


@pytest.mark.parametrize("detector", DETECTORS)
@pytest.mark.parametrize("xp", [np, jnp])
def test_an_alarm_is_a_value_above_one_or_not_finite(detector, xp):
    values = xp.asarray([0.0, 1.0, 1.25, np.inf, np.nan])
    memory, alarms = detector.update(detector.init("abcde"), values)
    assert memory == ()
    assert alarms.level.tolist() == [0, 0, STOP, STOP, STOP]
    assert alarms.threshold.tolist() == [1] * 5
    assert alarms.excess.tolist() == [0, 1, 1.25, np.inf, np.inf]


@pytest.mark.slow
def test_an_alarm_is_confirmed_if_the_step_gives_another_value_when_it_is_executed_again():
    fault = flipped(UP, "float32", Operand.OUTPUT)
    struck, clean, again = (stepped("transformer", "float32", each)[0] for each in (fault, None, None))
    name = f"checksum/products/{UP}"
    assert confirmed(struck[name], clean[name]) and not confirmed(clean[name], again[name])
