"""What one reading of an array keeps, against what NumPy says of the whole; and the model of its tails."""

import tracemalloc

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given, settings
from hypothesis import strategies as st

from fault_injection.checkpoints.formats import open_checkpoint
from fault_injection.checkpoints.scan import scan
from fault_injection.checkpoints.summary import KEPT, LEAST_RUN, SHOWN, summarised
from fault_injection.checkpoints.tails import outermost

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
RNG = np.random.default_rng


def opened(folder, array):
    np.savez(folder / "c.npz", a=array)
    return open_checkpoint(folder / "c.npz")


@pytest.mark.parametrize("dtype", ["float16", BFLOAT16, "float32", "float64"])
@pytest.mark.parametrize("size", [0, 1, 79, 5000, (1 << 18) + 777])
def test_a_summary_is_what_the_whole_array_has(tmp_path, dtype, size):
    rng = RNG(size)
    values = rng.standard_t(2, size).astype(dtype)
    for what in (np.nan, np.inf, -np.inf, 0.0, -0.0, 2.0):
        values[rng.integers(size, size=size // 50)] = what
    safetensors.numpy.save_file({"a": values}, tmp_path / "c.safetensors")
    found = summarised(open_checkpoint(tmp_path / "c.safetensors"), "a")
    wide = values.astype(np.float64)
    for kept, expected in (
        (found.nan, np.isnan(wide)),
        (found.infinite, np.isinf(wide)),
        (found.negative, wide < 0),
        (found.huge, np.isfinite(wide) & (np.abs(wide) > 2.0**64)),
    ):
        assert kept.count == expected.sum() and kept.first == np.flatnonzero(expected)[:SHOWN].tolist()
    assert found.zeros == (wide == 0).sum()
    usual = np.flatnonzero(np.isfinite(wide) & (wide != 0))
    order = usual[np.argsort(-np.abs(wide[usual]), kind="stable")]
    assert found.magnitudes(found.largest).tolist() == np.abs(wide[order[:KEPT]]).tolist()
    assert found.magnitudes(found.smallest).tolist() == np.abs(wide[order[::-1][:KEPT]]).tolist()
    for extremes in (found.largest, found.smallest):
        assert np.abs(wide[extremes.places]).tolist() == found.magnitudes(extremes).tolist()
        assert len(set(extremes.places.tolist())) == len(extremes.places)
    words = values.view(f"u{values.itemsize}")[usual] & np.array((1 << (8 * values.itemsize - 1)) - 1, "u8").astype(
        f"u{values.itemsize}"
    )
    assert found.single == sum(int(word).bit_count() == 1 for word in words)


@given(st.lists(st.tuples(st.integers(0, 90), st.integers(1, 5)), max_size=12), st.integers(0, 90))
@settings(max_examples=150, deadline=None)
def test_runs_of_zeros_are_those_of_a_loop(tmp_path_factory, runs, last):
    values = [x for zeros, others in runs for x in (*([0.0] * zeros), *([1.5] * others))] + [0.0] * last
    lengths, begin = [], 0
    for k, value in enumerate([*values, 1.0]):
        if value:
            lengths.append((k - begin, -begin))
            begin = k + 1
    found = summarised(opened(tmp_path_factory.mktemp("r"), np.array(values, np.float32)), "a")
    length, start = max(lengths)
    assert found.run[1] == length and (not length or found.run[0] == -start)
    assert found.runs == sum(one >= LEAST_RUN for one, _ in lengths)


def test_a_run_of_zeros_and_a_repeat_may_go_across_pieces(tmp_path):
    values = RNG(0).normal(size=(3, 1 << 18)).astype(np.float32)
    flat = values.reshape(-1)
    flat[(1 << 18) - 100 : (1 << 18) + 60] = 0
    flat[128 * 5000 : 128 * 5002] = flat[128 * 7 : 128 * 9]
    found = summarised(opened(tmp_path, values), "a")
    assert found.run == ((1 << 18) - 100, 160) and found.runs == 1
    assert found.repeated == [(128 * 5000, 128 * 7, 256)]


def test_memory_does_not_grow_with_the_array(tmp_path):
    path = tmp_path / "c.safetensors"
    safetensors.numpy.save_file({"a": RNG(0).normal(size=(1 << 11, 1 << 13)).astype(np.float32)}, path)
    found = open_checkpoint(path)
    tracemalloc.start()
    scan(found)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < path.stat().st_size / 3  # 64 MiB


# The model of tails.


@pytest.mark.parametrize("limit", [0.1, 0.01])
def test_a_pareto_tail_gives_as_many_false_findings_as_its_limit(limit):
    """Where the model holds exactly, the probability of a single outermost element is exact."""
    rng, trials = RNG(1), 8000
    logs = -np.sort(-rng.exponential(0.7, (trials, 1000)), axis=1)[:, :80]
    rate = np.mean([outermost(one, 1, 1e-9, np.full(80, limit))[0] for one in logs])
    assert abs(rate - limit) < 4 * np.sqrt(limit / trials)


@pytest.mark.parametrize("limit", [0.1, 0.01])
def test_asking_for_several_and_a_floor_add_no_false_findings(limit):
    rng, trials = RNG(2), 4000
    logs = -np.sort(-rng.exponential(0.7, (trials, 1000)), axis=1)[:, :80]
    rate = np.mean([outermost(one, 16, 0.25, np.full(80, limit))[0] > 0 for one in logs])
    assert rate < 1.3 * limit + 4 * np.sqrt(limit / trials)
