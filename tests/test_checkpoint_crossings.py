"""Formats × orders × types × links: what is drawn, written and said of a checkpoint does not depend on them."""

import os
import pathlib

import flax.serialization
import ml_dtypes
import numpy as np
import pytest
from checkpoints import written
from safetensors.numpy import save_file

from fault_injection.checkpoints.alteration import Selection, draw_alteration
from fault_injection.checkpoints.difference import difference
from fault_injection.checkpoints.formats import open_checkpoint
from fault_injection.checkpoints.scan import scan
from fault_injection.commands.main import main
from fault_injection.machine.files import read_arrays, write_arrays

RNG = np.random.default_rng


def drawn(path, **wanted):
    found = draw_alteration(open_checkpoint(path), Selection(**wanted))
    return {name: one.places.tolist() for name, one in found.items()}


def test_what_is_drawn_does_not_depend_on_the_order_of_a_file(tmp_path):
    arrays = {"b": RNG(0).normal(size=50).astype("f4"), "a": RNG(1).normal(size=70).astype("f4")}
    np.savez(tmp_path / "as given.npz", **arrays)
    np.savez(tmp_path / "sorted.npz", **dict(sorted(arrays.items())))
    save_file(arrays, tmp_path / "x.safetensors")  # which has an order of its own
    (tmp_path / "x.msgpack").write_bytes(flax.serialization.msgpack_serialize(arrays))
    found = [drawn(path, count=20, seed=5, by_tensor=each) for each in (False, True) for path in tmp_path.iterdir()]
    assert all(one == found[0] for one in found[:4]) and all(one == found[4] for one in found[4:])


def test_each_array_is_as_likely_as_any_other_however_small(tmp_path):
    """Twelve draws of an array of 12 elements and a large one: 6 of each in the mean, though places repeat."""
    np.savez(tmp_path / "x.npz", small=np.ones(12, "f4"), large=np.ones(10**5, "f4"))
    opened = open_checkpoint(tmp_path / "x.npz")
    counts = [
        len(one["small"].places) if "small" in one else 0
        for seed in range(800)
        for one in [draw_alteration(opened, Selection(count=12, by_tensor=True, seed=seed))]
    ]
    assert abs(np.mean(counts) - 6) < 4 * np.sqrt(3 / 800)


@pytest.mark.parametrize(
    "dtype", ["complex64", "int4", "float8_e4m3fn", "float8_e8m0fnu", "bfloat16", "float32", "bool"]
)
def test_our_own_checkpoints_may_have_leaves_of_any_type(tmp_path, dtype):
    kind = np.dtype(getattr(ml_dtypes, dtype, dtype))
    arrays = {"params/c": np.ones((2, 3), kind), "params/one": np.ones((), kind), "params/w": np.ones(3, np.float32)}
    write_arrays(tmp_path / "x.npz", arrays)
    for name, one in read_arrays(tmp_path / "x.npz").items():
        assert one.tobytes() == arrays[name].tobytes()
    assert open_checkpoint(tmp_path / "x.npz").ours
    damaged = bytearray((tmp_path / "x.npz").read_bytes())
    at = damaged.index(np.ones((2, 3), kind).tobytes())
    damaged[at] ^= 1
    (tmp_path / "x.npz").write_bytes(damaged)
    assert main(["scan", str(tmp_path / "x.npz")]) == 2


def test_a_leaf_may_be_called_nothing(tmp_path):
    (tmp_path / "e.msgpack").write_bytes(flax.serialization.msgpack_serialize({"": np.ones(5, "f4")}))
    assert main(["alter", str(tmp_path / "e.msgpack"), "--out", str(tmp_path / "o.msgpack")]) == 0
    found = difference(open_checkpoint(tmp_path / "e.msgpack"), open_checkpoint(tmp_path / "o.msgpack"))
    assert [one.changed for one in found.arrays] == [1]


@pytest.mark.parametrize("kind", ["Orbax plain", "Orbax OCDBT"])
@pytest.mark.parametrize("share", ["some", "all"])
def test_a_folder_of_links_is_copied_with_what_they_lead_to(tmp_path, kind, share):
    """So caches of models have them; a link that is copied as it is would lead nowhere."""
    path, blobs = written(tmp_path, kind), tmp_path / "blobs"
    blobs.mkdir()
    files = sorted(one for one in path.rglob("*") if one.is_file())
    for number, file in enumerate(files if share == "all" else files[::2]):
        moved = file.rename(blobs / str(number))
        file.symlink_to(os.path.relpath(moved, file.parent))
    assert main(["alter", str(path), "--out", str(tmp_path / "deeper" / "new"), "--count", "3"]) == 0
    found = difference(open_checkpoint(path), open_checkpoint(tmp_path / "deeper" / "new"))
    assert sum(one.changed for one in found.arrays) == 3 and found.complete


def test_what_cannot_be_copied_is_named(tmp_path, capsys):
    path = written(tmp_path, "Orbax plain")
    (path / "dangling").symlink_to(tmp_path / "nowhere")
    assert main(["alter", str(path), "--out", str(tmp_path / "new")]) == 2
    err = capsys.readouterr().err
    assert "dangling" in err and "cannot be copied" in err and err.count("\n") == 1 and not (tmp_path / "new").exists()


def test_a_log_is_not_written_into_the_checkpoint(tmp_path, capsys):
    path = written(tmp_path, "Orbax plain")
    assert main(["alter", str(path), "--out", str(tmp_path / "new"), "--log", str(path / "log.json")]) == 2
    assert "--log is in the checkpoint" in capsys.readouterr().err and not (path / "log.json").exists()


# ---- Numbers -------------------------------------------------------------------------------


def test_whole_numbers_of_64_bits_are_exact(tmp_path):
    np.savez(tmp_path / "x.npz", a=np.array([2**53 + 1, -(2**62) - 1, 7]), b=np.array([2**64 - 1], np.uint64))
    opened = open_checkpoint(tmp_path / "x.npz")

    def after(**wanted):
        found = draw_alteration(opened, Selection(share=1.0, kinds=("int",), **wanted))
        return [found[name].after.view(opened.arrays[name].dtype).tolist() for name in ("a", "b")]

    assert after(factor=1.0) == [[2**53 + 1, -(2**62) - 1, 7], [2**64 - 1]]
    assert after(factor=-3.0) == [[-3 * (2**53 + 1), 2**63 - 1, -21], [0]]
    assert after(value=1e300) == [[2**63 - 1] * 3, [2**64 - 1]] and after(value=2.5) == [[2] * 3, [2]]


def test_a_difference_of_huge_numbers_has_its_size(tmp_path):
    ones, other = RNG(0).normal(size=100), RNG(0).normal(size=100)
    other[3] = 1e307
    np.savez(tmp_path / "a.npz", w=ones)
    np.savez(tmp_path / "b.npz", w=other)
    (one,) = difference(open_checkpoint(tmp_path / "a.npz"), open_checkpoint(tmp_path / "b.npz")).arrays
    assert one.error == pytest.approx(1e307 / np.linalg.norm(ones)) and one.largest == 1e307


# ---- Scans ---------------------------------------------------------------------------------


def test_a_scale_that_is_no_number_is_found(tmp_path):
    scales = np.full(64, 0x7F, np.uint8)
    scales[40] = 0xFF
    save_file({"w_scale": scales}, tmp_path / "x.safetensors")
    head = (tmp_path / "x.safetensors").read_bytes()
    (tmp_path / "x.safetensors").write_bytes(head.replace(b'"U8"', b'"F8_E8M0"').replace(b"     ", b"", 1))
    content = (tmp_path / "x.safetensors").read_bytes()
    size = len(content) - 8 - 64
    (tmp_path / "x.safetensors").write_bytes(size.to_bytes(8, "little") + content[8:])
    (found,) = scan(open_checkpoint(tmp_path / "x.safetensors")).findings
    assert (found.kind, found.element, found.bits) == ("nan", (40,), "ff")


def sound(what):
    rng, arrays = RNG(3), {}
    for k in range(12):
        arrays[f"layer_{k}/kernel"] = rng.normal(0, 0.05, (64, 64)).astype("f4")
        arrays[f"layer_{k}/qkv.bias"] = rng.normal(0, 0.05, 192).astype("f4")
    match what:
        case "keys without a bias":
            for k in range(12):
                arrays[f"layer_{k}/qkv.bias"][64:128] = 0
        case "a padded vocabulary":
            arrays["head.bias"] = rng.normal(0, 0.05, 1024).astype("f4")
            arrays["head.bias"][-47:] = 0
        case "a mask of finite numbers":
            arrays = {letter: rng.normal(0, 0.05, (64, 64)).astype("f4") for letter in "abcdefghijklmnopqrstuvwx"}
            arrays["mask"] = np.triu(np.full((32, 32), np.finfo("f4").min, "f4"), 1)
        case "frequencies twice":
            arrays["inv_freq"] = np.tile(1 / 10000 ** (np.arange(128, dtype="f4") / 128), 2).astype("f4")
    return arrays


@pytest.mark.parametrize(
    "what", ["keys without a bias", "a padded vocabulary", "a mask of finite numbers", "frequencies twice"]
)
def test_what_networks_are_made_with_is_no_finding(tmp_path, what):
    np.savez(tmp_path / "x.npz", **sound(what))
    assert not scan(open_checkpoint(pathlib.Path(tmp_path / "x.npz"))).findings
