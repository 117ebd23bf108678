"""Alterations of a checkpoint: how they are drawn, what a log repeats, and what the command answers."""

import json

import numpy as np
import pytest
import scipy.stats
from checkpoints import WRITERS, some_arrays, written
from hypothesis import given, settings
from hypothesis import strategies as st

from fault_injection.checkpoints.alteration import Selection, draw_alteration
from fault_injection.checkpoints.formats import open_checkpoint
from fault_injection.checkpoints.log import Mapped, apply, read_log, write_log


@pytest.fixture(scope="module")
def uneven(tmp_path_factory):
    """A checkpoint of three arrays whose sizes differ by a million."""
    path = tmp_path_factory.mktemp("uneven") / "a.npz"
    rng = np.random.default_rng(0)
    np.savez(
        path,
        large=rng.normal(size=4_000_000).astype(np.float32),
        small=np.ones(4, np.float32),
        mid=np.ones(400, np.float32),
    )
    return open_checkpoint(path)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return open_checkpoint(written(tmp_path_factory.mktemp("some"), "npz"))


def drawn(checkpoint, **wanted):
    return draw_alteration(checkpoint, Selection(**wanted))


def inverted(one):
    """The bits that each alteration inverts, bool [n, width], the least significant first."""
    masks = (one.before ^ one.after)[:, None]
    return (masks >> np.arange(8 * one.before.itemsize, dtype=masks.dtype)) & 1 == 1


# Laws.


def test_elements_are_drawn_by_size(uneven):
    found = drawn(uneven, count=200_000, seed=1)
    counts = {name: len(one.places) for name, one in found.items()}
    expected = {name: 200_000 * array.size / 4_000_404 for name, array in uneven.arrays.items()}
    for name, mean in expected.items():
        assert abs(counts.get(name, 0) - mean) <= 5 * np.sqrt(mean) + 5
    assert scipy.stats.kstest(found["large"].places / 4_000_000, "uniform").pvalue > 1e-3
    assert all(len(np.unique(one.places)) == len(one.places) for one in found.values())


def test_tensors_are_drawn_alike_where_that_is_asked_for(uneven):
    """Of three arrays each is drawn a third of the time; the one of four elements is full by then."""
    found = drawn(uneven, count=600, by_tensor=True, seed=2)
    assert len(found["small"].places) == 4
    counts = [len(found[name].places) for name in ("large", "mid")]
    assert sum(counts) == 596
    first = [next(iter(drawn(uneven, count=1, by_tensor=True, seed=seed))) for seed in range(600)]
    assert scipy.stats.chisquare([first.count(name) for name in ("large", "mid", "small")]).pvalue > 1e-3


@pytest.mark.parametrize("how, mean", [({"share": 0.01}, 40_004), ({"probability": 0.01}, 40_004)])
def test_a_share_is_exact_and_a_probability_is_binomial(uneven, how, mean):
    counts = [sum(len(one.places) for one in drawn(uneven, seed=seed, **how).values()) for seed in range(3)]
    if "share" in how:
        assert set(counts) == {mean}
    else:
        assert all(abs(count - mean) < 6 * np.sqrt(mean) for count in counts)
        assert len(set(counts)) > 1


def test_every_set_of_elements_is_equally_likely(tmp_path):
    np.savez(tmp_path / "a.npz", a=np.ones(2, np.float32), b=np.ones(3, np.float32))
    small = open_checkpoint(tmp_path / "a.npz")
    seen: dict[tuple, int] = {}
    for seed in range(3000):
        found = drawn(small, count=2, seed=seed)
        chosen = tuple(sorted((name, int(at)) for name, one in found.items() for at in one.places))
        seen[chosen] = seen.get(chosen, 0) + 1
    assert len(seen) == 10
    assert scipy.stats.chisquare(list(seen.values())).pvalue > 1e-3


@settings(max_examples=40)
@given(st.integers(0, 20), st.integers(0, 11), st.integers(1, 12), st.booleans(), st.integers(0, 10**6))
def test_a_burst_is_of_distinct_bits_within_the_range(uneven, low, more, burst, theirs, seed):
    high = min(31, low + max(more, burst - 1))
    found = drawn(uneven, count=50, bits=(low, high), burst=burst, most_significant_first=theirs, seed=seed)
    for one in found.values():
        bits = inverted(one)[:, ::-1] if theirs else inverted(one)
        assert (bits.sum(1) == burst).all()
        assert not bits[:, :low].any()
        assert not bits[:, high + 1 :].any()


def test_bits_are_drawn_alike(uneven):
    counts = inverted(drawn(uneven, count=64_000, seed=3)["large"]).sum(0)
    assert scipy.stats.chisquare(counts).pvalue > 1e-3


def test_what_is_not_allowed_is_drawn_anew(uneven):
    """Of the bits of a normal number, the highest of the exponent alone may make it infinite or NaN."""
    free = drawn(uneven, count=64_000, names=("large",), seed=4)["large"]
    assert not np.isfinite(free.after.view(np.float32)).all()
    bounded = drawn(uneven, count=64_000, names=("large",), finite=True, keep_sign=True, seed=4)["large"]
    assert np.isfinite(bounded.after.view(np.float32)).all()
    assert not inverted(bounded)[:, 31].any()
    assert scipy.stats.chisquare(inverted(bounded).sum(0)[:23]).pvalue > 1e-3


def test_the_critical_bit_is_the_highest_of_the_exponent_in_every_format(checkpoint):
    found = drawn(checkpoint, share=1.0, critical=True)
    expected = {"float16": 14, "float32": 30, "float64": 62}
    for name, one in found.items():
        assert set((one.before ^ one.after).tolist()) == {1 << expected[checkpoint.arrays[name].dtype.name]}


@pytest.mark.parametrize("how, change", [({"value": -2.5}, lambda x: -2.5), ({"factor": 4.0}, lambda x: 4 * x)])
def test_elements_are_set_or_scaled(checkpoint, how, change):
    for name, one in drawn(checkpoint, share=1.0, names=("params/fc/*",), **how).items():
        values = one.before.view(checkpoint.arrays[name].dtype).astype(np.float64)
        expected = np.array([change(x) for x in values]).astype(checkpoint.arrays[name].dtype)
        assert np.array_equal(one.after.view(expected.dtype), expected)


def test_a_mask_counts_from_the_least_significant_bit_or_from_the_sign(checkpoint):
    for theirs, expected in ((False, 0x3), (True, 0xC0000000)):
        found = drawn(checkpoint, count=5, names=("params/fc/kernel",), mask=3, most_significant_first=theirs)
        assert set((found["params/fc/kernel"].before ^ found["params/fc/kernel"].after).tolist()) == {expected}


def test_names_and_parts_choose_arrays(checkpoint):
    assert set(drawn(checkpoint, share=1.0, part="optimizer")) == {"opt_state/m/fc/kernel", "opt_state/scale"}
    assert set(drawn(checkpoint, share=1.0, names=("*kernel",), part="model")) == {
        "params/conv1/kernel",
        "params/fc/kernel",
    }


def test_equal_seeds_give_equal_alterations_in_every_format(tmp_path):
    found = []
    for kind in WRITERS:
        one = draw_alteration(
            open_checkpoint(written(tmp_path, kind)), Selection(count=30, seed=7, names=("params/fc/kernel",))
        )
        found.append([part.tolist() for part in one["params/fc/kernel"]])
    assert all(one == found[0] for one in found)


# Logs.


def test_a_log_repeats_and_undoes_itself(tmp_path, checkpoint):
    altered = drawn(checkpoint, count=40, seed=5)
    write_log(tmp_path / "log.json", checkpoint, altered, {})
    applied = apply(read_log(tmp_path / "log.json"), checkpoint, {})
    assert applied.before == 40
    assert {n: [p.tolist() for p in one] for n, one in applied.altered.items()} == {
        n: [p.tolist() for p in one] for n, one in altered.items()
    }
    checkpoint.write(tmp_path / "b.npz", altered)
    undone = apply(read_log(tmp_path / "log.json"), open_checkpoint(tmp_path / "b.npz"), {})
    assert (undone.before, undone.after) == (0, 40)


def test_a_log_alters_every_format_alike(tmp_path, checkpoint):
    altered = drawn(checkpoint, count=40, seed=5)
    write_log(tmp_path / "log.json", checkpoint, altered, {})
    entries, found = read_log(tmp_path / "log.json"), []
    for kind in WRITERS:
        source = open_checkpoint(written(tmp_path, kind))
        applied = apply(entries, source, {})
        source.write(tmp_path / f"new {kind}", applied.altered)
        new = open_checkpoint(tmp_path / f"new {kind}")
        found.append({name: new.array(name).tobytes() for name in sorted(new.arrays)})
    assert all(one == found[0] for one in found)


def test_a_log_is_mapped_to_another_layout(tmp_path, checkpoint):
    """As PyTorch has them: another name, and the axes of a kernel in another order."""
    kernel = some_arrays()["params/conv1/kernel"]
    np.savez(tmp_path / "theirs.npz", **{"conv1.weight": kernel.transpose(3, 2, 0, 1)})
    altered = drawn(checkpoint, count=9, seed=6, names=("params/conv1/kernel",))
    write_log(tmp_path / "log.json", checkpoint, altered, {})
    theirs = open_checkpoint(tmp_path / "theirs.npz")
    mapping = {"params/conv1/kernel": Mapped("conv1.weight", (3, 2, 0, 1))}
    applied = apply(read_log(tmp_path / "log.json"), theirs, mapping)
    assert applied.before == 9
    theirs.write(tmp_path / "new.npz", applied.altered)
    checkpoint.write(tmp_path / "b.npz", altered)
    ours = open_checkpoint(tmp_path / "b.npz").array("params/conv1/kernel")
    found = open_checkpoint(tmp_path / "new.npz").array("conv1.weight")
    assert np.array_equal(found.transpose(2, 3, 1, 0).view(np.uint32), ours.view(np.uint32))


@pytest.mark.parametrize(
    "sequence",
    [
        {"/params/fc/kernel": [[[0, 3], [1]], [[7, 1], [0, 31]]], "/params/fc/bias": [[[2], [1]]]},
        {"params/fc/kernel": [[[0, 3], [7, 1]], [1, [0, 31]]], "params/fc/bias": [[2], [1]]},
    ],
    ids=["pairs", "two columns"],
)
def test_the_published_tools_sequences_are_read(tmp_path, checkpoint, sequence):
    """Its bits are counted from the sign: 1 is the highest of the exponent."""
    (tmp_path / "theirs.json").write_text(json.dumps(sequence))
    altered = apply(read_log(tmp_path / "theirs.json"), checkpoint, {}).altered
    kernel, bias = altered["params/fc/kernel"], altered["params/fc/bias"]
    assert kernel.places.tolist() == [3, 211]
    assert (kernel.before ^ kernel.after).tolist() == [0x40000000, 0x80000001]
    assert bias.places.tolist() == [2]
    assert (bias.before ^ bias.after).tolist() == [0x4000]
