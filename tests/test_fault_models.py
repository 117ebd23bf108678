"""Each fault model does what its definition says: counts, alignment, uniformity, bits."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from fault_injection.faults.element_bits import format_new_bits, from_masks, to_masks
from fault_injection.faults.element_bits import new_bits as read_bits
from fault_injection.faults.fault_models import (
    FAULT_MODELS,
    VALUES,
    Pattern,
    bit_flip,
    histogram,
    measured,
    read_histogram,
)
from fault_injection.faults.number_formats import format_of
from fault_injection.machine.errors import InputError
from fault_injection.models.fault import Operand
from fault_injection.models.site import Site, TensorSpec, make_fault

pytestmark = pytest.mark.law

DRAWS = 4000
UNLIKELY = 1e-6  # of a law's test statistic, were the law true


def drawn(name, size, seed=0, values=None):
    """Positions and bits of one fault of a model in an operand of `size` elements."""
    rng, model = np.random.default_rng([seed, 7]), FAULT_MODELS[name]
    index = model.places(rng, size)
    return index, (values or VALUES[model.values]())(rng, index, size)


def new_bits(index, bits, old):
    """What the elements become, as the step computes it."""
    return (old[bits.source] & bits.keep) ^ bits.flip


def fits(observed, expected):
    return stats.chisquare(observed, expected).pvalue > UNLIKELY


OPERANDS = {"INPUT": Operand.INPUT, "FLIPS": Operand.INPUT, "WT": Operand.WEIGHT}


@pytest.mark.parametrize("name", FAULT_MODELS)
def test_the_operand_is_in_the_name(name):
    said = name.removeprefix("N64_").split("_")[0]
    assert FAULT_MODELS[name].operand == OPERANDS.get(said, Operand.OUTPUT)


@given(name=st.sampled_from(list(FAULT_MODELS)), size=st.integers(1, 5000), seed=st.integers(0, 10**6))
def test_positions_are_distinct_and_inside_and_come_in_groups(name, size, seed):
    index, bits = drawn(name, size, seed)
    assert len(index) == len(set(index.tolist())) > 0
    assert index.min() >= 0 and index.max() < size
    assert bits.source.min() >= 0 and bits.source.max() < size
    assert all(len(part) == len(index) for part in vars(bits).values())
    group = FAULT_MODELS[name].group
    if name == "MEASURED":
        assert len(index) <= 16 and len(set(np.diff(index))) <= 1 and set(np.diff(index)) <= {2, 4, 8, 16}
    elif name.startswith("LANE_"):
        lanes = int(name.removeprefix("LANE_"))
        assert index.tolist() == list(range(index[0], size, lanes)) and index[0] < lanes
        affected = bits.flip | ~bits.keep
        assert len(set(affected.tolist())) == 1 and int(affected[0]).bit_count() == 1
    elif name.startswith("FLIPS_"):
        assert len(index) == min(size, int(name.removeprefix("FLIPS_")))
        assert all(int(mask).bit_count() == 1 for mask in bits.flip)
    elif size >= group:
        assert index[0] % group == 0 and len(index) % group == 0 and (np.diff(index) == 1).all()
        assert name.endswith("_GLB") or len(index) == group


def test_scattered_positions_are_each_as_likely():
    counts = np.bincount(np.concatenate([drawn("FLIPS_4", 10, seed)[0] for seed in range(DRAWS)]), minlength=10)
    # Four of ten without repetition vary less than independent draws, by the factor 2/3.
    assert stats.chi2.sf(np.sum((counts - DRAWS * 0.4) ** 2) / (DRAWS * 0.4) / (2 / 3), 9) > UNLIKELY


@pytest.mark.parametrize("name", ["INPUT", "WT_16", "RBFLIP"])
def test_a_bit_flip_inverts_one_bit_each_as_often(name):
    old = np.arange(100, dtype=np.uint32) * 0x01234567
    flips = []
    for seed in range(DRAWS):
        index, bits = drawn(name, old.size, seed)
        difference = int((new_bits(index, bits, old) ^ old[index])[0])
        assert difference.bit_count() == 1
        flips.append(difference.bit_length() - 1)
    assert fits(np.bincount(flips, minlength=32), np.full(32, DRAWS / 32))


def test_positions_are_uniform_over_groups():
    firsts = [drawn("N16_RD", 16 * 50 + 5, seed)[0][0] // 16 for seed in range(DRAWS)]
    assert fits(np.bincount(firsts, minlength=50), np.full(50, DRAWS / 50))


def test_a_run_starts_and_ends_as_published():
    groups = 6
    counts = np.zeros((groups, groups))
    for seed in range(DRAWS):
        index, _ = drawn("RD_GLB", groups * 16, seed)
        counts[index[0] // 16, (index[-1] + 1) // 16] += 1
    expected = np.zeros_like(counts)
    for start in range(groups - 1):
        expected[start, start + 1 : groups] = DRAWS / (groups - 1) / (groups - 1 - start)
    assert not counts[expected == 0].any()
    assert fits(counts[expected > 0], expected[expected > 0])


def test_random_values_are_finite_and_uniform_over_patterns():
    index = np.arange(100_000)
    values = VALUES["random_finite"]()(np.random.default_rng(1), index, index.size).flip
    assert np.isfinite(values.view(np.float32)).all()
    for shift, width, count in ((31, 2, 2), (23, 256, 255), (0, 16, 16)):
        seen = np.bincount((values >> shift) & (width - 1), minlength=count)[:count]
        assert fits(seen, np.full(count, index.size / count))


def test_a_copied_value_is_another_elements():
    old = np.arange(40, dtype=np.uint32)
    sources = []
    for seed in range(DRAWS):
        index, bits = drawn("RD_CORRECT", old.size, seed)
        assert new_bits(index, bits, old)[0] == bits.source[0] != index[0]
        sources.append((bits.source[0] - index[0]) % old.size)
    assert fits(np.bincount(sources, minlength=40)[1:], np.full(39, DRAWS / 39))


def test_zero_is_zero_and_the_worst_case_is_huge():
    index, bits = drawn("ZERO", 10)
    assert (new_bits(index, bits, np.full(10, 123, np.uint32)) == 0).all()
    values = VALUES["worst_case"]()(np.random.default_rng(1), np.arange(DRAWS), DRAWS).flip.view(np.float32)
    assert stats.kstest(values, stats.uniform(1e16, 1e18 - 1e16).cdf).pvalue > UNLIKELY


FORMATS = ("bool", "int4", "float8_e4m3fn", "bfloat16", "float16", "int32", "float32", "int64", "uint64", "float64")


@given(st.sampled_from(FORMATS), st.sampled_from([*VALUES]), st.integers(0, 10**6))
def test_masks_are_those_of_the_format_whatever_its_width(name, values, seed):
    """And a file that has them as text strikes with the same masks."""
    format, index = format_of(name), np.arange(3)
    patterns = (Pattern(True, 1 << format.width - 1, 1.0), Pattern(False, 1, 1.0))
    model = VALUES[values](*[patterns] * (values == "histogram"))
    drawn = model(np.random.default_rng(seed), index, 10, format)
    assert drawn.keep.dtype == drawn.flip.dtype == format.mask
    assert all(int(flip) >> format.width == 0 for flip in drawn.flip)
    if values == "random_finite":
        assert np.isfinite(format.values(drawn.flip).astype(float)).all()
    tensor = TensorSpec((10,), format.dtype)
    site, kind = Site("leaf", "leaf", "state", {Operand.INPUT: tensor}), read_bits(format.dtype)
    read = [kind.parse(format_new_bits(new, format.dtype)) for new in from_masks(drawn, tensor)]
    one = make_fault(site, Operand.INPUT, 0, **vars(drawn))
    other = make_fault(site, Operand.INPUT, 0, **vars(to_masks(read, index, tensor.shape)))
    low = format.mask((1 << format.width) - 1)
    assert (one.source == other.source).all() and one.keep.dtype == one.flip.dtype == format.mask
    assert all((getattr(one, mask) & low == getattr(other, mask) & low).all() for mask in ("keep", "flip"))


def test_each_of_64_bits_is_inverted_and_stuck():
    rng, index = np.random.default_rng(1), np.arange(2000)
    assert set(bit_flip()(rng, index, 2000, format_of("float64")).flip.tolist()) == {1 << bit for bit in range(64)}
    stuck = [VALUES["stuck"]()(rng, index[:2], 2, format_of("int64")) for _ in range(800)]
    assert {int(~one.keep[0]) for one in stuck} == {1 << bit for bit in range(64)}


def test_chosen_bits_only():
    bits = bit_flip((30, 3))(np.random.default_rng(1), np.arange(1000), 1000)
    assert set(bits.flip.tolist()) == {1 << 30, 1 << 3}


def test_measured_faults_have_the_measured_shares():
    kinds = {"zero": 0, "special": 0, "one bit": 0, "several bits": 0}
    for seed in range(DRAWS):
        bits = measured(np.random.default_rng(seed), np.arange(4), 4)
        if bits.keep[0]:
            flipped = [int(mask).bit_count() for mask in bits.flip]
            assert len(set(flipped)) == 1 and 1 <= flipped[0] <= 8
            kinds["one bit" if flipped[0] == 1 else "several bits"] += 1
        else:
            assert len(set(bits.flip.tolist())) == 1
            kinds["special" if bits.flip[0] else "zero"] += 1
            assert not bits.flip[0] or not np.isfinite(bits.flip.view(np.float32)[0])
    expected = np.array([0.5, 0.01, 0.49 * 0.38, 0.49 * 0.62]) * DRAWS
    assert fits(list(kinds.values()), expected)


def test_a_histogram_of_patterns(tmp_path):
    path = tmp_path / "patterns.csv"
    path.write_text("# from a beam test\nflip,00800000,3\n\nset,7fc00000, 1\nflip,ffffffff,0\n")
    bits = histogram(read_histogram(path))(np.random.default_rng(1), np.arange(DRAWS), DRAWS)
    flips = bits.keep != 0
    assert (bits.flip[flips] == 0x00800000).all() and (bits.flip[~flips] == 0x7FC00000).all()
    assert fits([flips.sum(), (~flips).sum()], [DRAWS * 0.75, DRAWS * 0.25])


@pytest.mark.parametrize(
    "row", ["flip,123456789abcdef01,1", "turn,00000001,1", "flip,00000001,-1", "flip,00000001", "set,0000000g,1"]
)
def test_a_row_that_is_no_pattern_is_named(tmp_path, row):
    path = tmp_path / "patterns.csv"
    path.write_text(f"set,00000000,1\n{row}\n")
    with pytest.raises(InputError, match=r"patterns.csv:2: .*expected a row such as"):
        read_histogram(path)


def test_a_histogram_needs_a_pattern(tmp_path):
    path = tmp_path / "patterns.csv"
    path.write_text("set,00000000,0\n")
    with pytest.raises(InputError, match="no pattern of positive weight"):
        read_histogram(path)
