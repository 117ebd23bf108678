"""Alterations of a checkpoint: how they are drawn, what a log repeats, and what the command answers."""

import json
import os
import subprocess
import sys
import time

import numpy as np
import pytest
import scipy.stats
from checkpoints import WRITERS, some_arrays, written
from command_line import said
from hypothesis import given, settings
from hypothesis import strategies as st

from fault_injection.checkpoints.alteration import Selection, draw_alteration
from fault_injection.checkpoints.formats import open_checkpoint
from fault_injection.checkpoints.log import Mapped, apply, read_log, write_log
from fault_injection.machine.errors import InputError


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


# The command.


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    written(tmp_path, "npz").rename("a.npz")
    return tmp_path


def test_alter_and_its_log_give_the_file_back(place, capsys):
    before = (place / "a.npz").read_bytes()
    assert said(capsys, "alter", "a.npz", "--out", "b.npz", "--count", 10, "--log", "log.json")[0] == 0
    assert (place / "b.npz").read_bytes() != before
    code, out, _ = said(capsys, "diff", "a.npz", "b.npz", "--json", "--picture", "d.png")
    found = json.loads(out)
    assert (code, sum(one["changed"] for one in found["arrays"])) == (0, 10)
    assert (place / "d.png").stat().st_size > 5000
    assert said(capsys, "alter", "b.npz", "--in-place", "--replay", "log.json")[0] == 0
    assert (place / "b.npz").read_bytes() == before


def test_in_place_keeps_the_mode_and_replaces_what_a_link_leads_to(place, capsys):
    (place / "a.npz").chmod(0o400)
    (place / "link.npz").symlink_to("a.npz")
    before = (place / "a.npz").read_bytes()
    assert said(capsys, "alter", "link.npz", "--in-place", "--names", "params/fc/kernel")[0] == 0
    assert (place / "link.npz").is_symlink() and (place / "a.npz").read_bytes() != before
    assert (place / "a.npz").stat().st_mode & 0o777 == 0o400


def test_without_its_log_nothing_is_altered(place, capsys):
    (place / "f").touch()
    before = (place / "a.npz").read_bytes()
    code, _, err = said(capsys, "alter", "a.npz", "--in-place", "--log", "f/log.json")
    assert (code, err.count("\n")) == (2, 1) and (place / "a.npz").read_bytes() == before


def test_a_name_with_brackets_names_itself(place, capsys):
    name = "['opt_state'][0].mu['w']"
    np.savez(place / "keystr.npz", **{name: np.ones(3, np.float32), "['params']['w']": np.ones(3, np.float32)})
    for how in (["--names", name], ["--part", "optimizer"]):
        code, out, err = said(capsys, "alter", "keystr.npz", "--check", "--json", *how)
        assert (code, json.loads(out)["by_array"]) == (0, {name: 1}), err


def test_a_difference_from_zeros_is_finite(place, capsys):
    np.savez(place / "zeros.npz", w=np.zeros(3, np.float32))
    np.savez(place / "one.npz", w=np.float32([0, 1, 0]))
    assert "of zeros" in said(capsys, "diff", "zeros.npz", "one.npz")[1]


def test_differences_of_any_size_are_drawn(place, capsys):
    """Of 10³⁸ times the array, infinite, in one array, in none."""
    for number, how in enumerate((["--critical"], ["--value", "inf"], ["--bits", 0], [])):
        path = f"b{number}.npz" if how else "a.npz"
        if how:
            assert said(capsys, "alter", "a.npz", "--out", path, "--names", "params/fc/kernel", *how)[0] == 0
        assert said(capsys, "diff", "a.npz", path, "--picture", f"d{number}.png")[0] == 0
        assert (place / f"d{number}.png").stat().st_size > 5000


def test_check_writes_nothing(place, capsys):
    code, out, _ = said(capsys, "alter", "a.npz", "--check", "--share", 0.1, "--json")
    assert (code, json.loads(out)["altered"]) == (0, round(0.1 * json.loads(out)["elements"]))
    assert [path.name for path in place.iterdir()] == ["a.npz"]


MISTAKES = {
    "alter a.npz": "expected --out NEW, --in-place or --check",
    "alter a.npz --out a.npz": "exists already",
    "alter a.npz --out b.npz --in-place": "exclude each other",
    "alter b.npz --check": "no such file",
    "alter a.npz --check --names params/fc/kernle": "did you mean 'params/fc/kernel'?",
    "alter a.npz --check --names opt_state/step": "matches no array of floating-point numbers",
    "alter a.npz --check --bits 40": "has 32 bits",
    "alter a.npz --check --bits 4-2": "expected bits such as 0-22",
    "alter a.npz --check --bits 0-3 --burst 5": "only 4 bits",
    "alter a.npz --check --mask 1ffffffff": "has 32 bits",
    "alter a.npz --out b.npz --log ./a.npz": "--log exists already",
    "alter a.npz --out b.npz --log ./b.npz": "are the same file",
    "alter a.npz --check --critical --burst 2": "--burst belongs to bits that are drawn",
    "alter a.npz --check --count 1000000": "the arrays have",
    "alter a.npz --check --share 1.5": "at most 1 (one percent is 0.01)",
    "alter a.npz --check --bits 31 --keep-sign --names params/*kernel": "none of 200 draws is allowed",
    "alter a.npz --check --replay a.npz": "not a log of alterations",
    "alter a.npz --check --replay log.json --count 3": "does not go with --replay",
    "alter a.npz --check --mapping m.json": "belongs to --replay",
    "alter a.npz --check --most-significant-first": "says how --bits or --mask are counted",
    "alter a.npz --check --names opt_state/step --names params/*": "matches no array of floating-point numbers",
    "diff a.npz b.npz": "no such file",
    "diff a.npz a.npz --picture p.txt": "expected a file .png",
}


@pytest.mark.parametrize("command", MISTAKES)
def test_a_mistake_is_answered_in_one_line(place, capsys, command):
    before = (place / "a.npz").read_bytes()
    code, out, err = said(capsys, *command.split())
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert MISTAKES[command] in err
    assert (place / "a.npz").read_bytes() == before
    assert [path.name for path in place.iterdir()] == ["a.npz"]


BAD_LOGS = {
    '{"version": 2, "alterations": []}': "version 2, expected 1",
    "[]": "expected an object",
    '{"params/fc/kernel": [[[0, 3]], []]}': "1 indexes and 0 bits",
    '{"params/fc/kernel": [[[40, 3]], [1]]}': "an element beside it",
    '{"params/fc/bias": [[7], [1]]}': "alters element 7, there are 7",
    '{"params/fc/bias": [[1], [16]]}': "has 16 bits, and the log inverts a higher one",
    '{"params/fc/bias": [[1, 1], [1, 2]]}': "alters an element twice",
    '{"params/fc/bais": [[1], [1]]}': "did you mean 'params/fc/bias'?",
    '{"params/fc/bias": [[[], [1]], [[2], [1]]]}': "an entry has no index",
    '{"params/fc/bias": [[[1], [-2]]]}': "expected bits from 0 to 63",
    '{"opt_state/step": [[[], [1]]]}': "an entry has no index",
    '{"params/fc/bias": 3}': "expected what `alter --log` writes, or {location: [[indexes, bits], …]}",
    '{"version": 1, "alterations": [{"name": "params/fc/bias"}]}': "an alteration has no 'dtype'",
    "{}": "the log alters nothing",
}


@pytest.mark.parametrize("text", BAD_LOGS)
def test_a_wrong_log_is_answered_in_one_line(place, capsys, text):
    (place / "log.json").write_text(text)
    code, _, err = said(capsys, "alter", "a.npz", "--replay", "log.json", "--out", "b.npz")
    assert (code, err.count("\n")) == (2, 1)
    assert BAD_LOGS[text] in err
    assert not (place / "b.npz").exists()


@pytest.mark.parametrize("kind", ["npz", "npz compressed", "safetensors", "HDF5", "msgpack", "Orbax plain"])
def test_a_full_disk_leaves_nothing(tmp_path, kind):
    """A file may be no longer than a half of what it has to be: the system refuses to write on."""
    arrays = {"a": np.random.default_rng(0).normal(size=100_000).astype(np.float32)}
    source = written(tmp_path, kind, arrays)
    before = source.read_bytes() if source.is_file() else None
    alter = [sys.executable, "-m", "fault_injection", "alter", str(source), "--out", str(tmp_path / "out")]
    limited = ["sh", "-c", 'ulimit -f 300; exec "$@"', "sh", *alter]  # blocks of 512 bytes
    done = subprocess.run(limited, capture_output=True, text=True, check=False)
    assert done.returncode == 2, done.stderr
    assert done.stderr.count("\n") == 1
    assert {path.name for path in tmp_path.iterdir()} == {source.name}
    assert before is None or source.read_bytes() == before


@pytest.mark.parametrize("kind", ["npz", "Orbax plain"])
def test_killed_while_writing_the_next_command_finds_nothing_in_its_way(tmp_path, kind):
    arrays = {f"a{k}": np.random.default_rng(k).normal(size=1_000_000).astype(np.float32) for k in range(6)}
    source = written(tmp_path, kind, arrays)
    command = [sys.executable, "-m", "fault_injection", "alter", str(source), "--out", str(tmp_path / "out")]
    caught = 0
    for attempt in range(6):
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, env={**os.environ})
        deadline = time.monotonic() + 20
        while process.poll() is None and time.monotonic() < deadline:
            if any(path.name.startswith(".out.partial") for path in tmp_path.iterdir()):
                process.kill()
        process.wait()
        if (tmp_path / "out").exists():
            break
        caught += 1
    assert caught
    if not (tmp_path / "out").exists():
        subprocess.run(command, check=True, capture_output=True)
    assert {path.name for path in tmp_path.iterdir()} == {source.name, "out"}
    for name, array in arrays.items():
        assert np.array_equal(open_checkpoint(source).array(name), array)


def test_alterations_that_are_impossible_are_refused():
    with pytest.raises(InputError, match="no array of floating-point numbers of the optimizer"):
        from fault_injection.checkpoints.alteration import chosen
        from fault_injection.checkpoints.checkpoint import Described

        chosen({"params/a": Described((2,), np.dtype(np.float32))}, Selection(part="optimizer"))
