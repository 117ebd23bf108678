"""Whole numbers, narrow floats and scales: altered on request, one element at a time, and exactly."""

import json
import struct

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy
from checkpoints import WRITERS, some_arrays, written
from command_line import said
from hypothesis import given, settings
from hypothesis import strategies as st

from fault_injection.checkpoints.alteration import KINDS, Selection, draw_alteration
from fault_injection.checkpoints.difference import difference
from fault_injection.checkpoints.formats import open_checkpoint

BYTES = bytes(range(16, 40))


def quantised(path):
    """Packed floats of 4 bits, their scales, whole numbers and floats of 8 bits, as a quantised model has them."""
    entries, at = {}, 0
    for name, kind, shape, size in (
        *(("blocks", "F4", [3, 4], 6), ("scales", "F8_E8M0", [3], 3), ("e4m3", "F8_E4M3", [4], 4)),
        *(("e5m2", "F8_E5M2", [3], 3), ("i8", "I8", [2], 2), ("u8", "U8", [2], 2), ("flags", "BOOL", [4], 4)),
    ):
        entries[name] = {"dtype": kind, "shape": shape, "data_offsets": [at, at + size]}
        at += size
    header = json.dumps(entries).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header + BYTES[:20] + bytes([0, 1, 1, 0]))
    return path


def nibbles(content):
    """The elements of bytes that have two each, the first in the lower half."""
    return [half for byte in content for half in (byte & 15, byte >> 4)]


def test_packed_elements_are_read_and_altered_one_by_one(tmp_path):
    checkpoint = open_checkpoint(quantised(tmp_path / "a"))
    assert checkpoint.array("blocks").view(np.uint8).reshape(-1).tolist() == nibbles(BYTES[:6])
    assert checkpoint.array("blocks").dtype == ml_dtypes.float4_e2m1fn
    altered = draw_alteration(checkpoint, Selection(count=5, kinds=("narrow",), bits=(3, 3)))
    checkpoint.write(tmp_path / "b", altered)
    expected = nibbles(BYTES[:6])
    for place in altered["blocks"].places.tolist():
        expected[place] ^= 8
    content = (tmp_path / "b").read_bytes()[-24:]
    assert nibbles(content[:6]) == expected and content[6:] == (tmp_path / "a").read_bytes()[-18:]
    found = difference(checkpoint, open_checkpoint(tmp_path / "b"))
    assert [(one.name, one.changed, one.bits) for one in found.changed] == [("blocks", 5, (0, 0, 0, 5))]


@settings(max_examples=60)
@given(st.sets(st.sampled_from(KINDS), min_size=1), st.integers(0, 10**6))
def test_only_the_kinds_that_were_asked_for_are_altered(tmp_path_factory, kinds, seed):
    path = tmp_path_factory.mktemp("kinds") / "a"
    checkpoint = open_checkpoint(quantised(path))
    altered = draw_alteration(checkpoint, Selection(share=1.0, kinds=tuple(kinds), seed=seed))
    of_kind = {"float": {"e4m3", "e5m2"}, "int": {"i8", "u8"}, "narrow": {"blocks"}, "scale": {"scales"}}
    assert set(altered) == set().union(*(of_kind[kind] for kind in kinds))
    for name, one in altered.items():
        masks = one.before ^ one.after
        assert all(bin(mask).count("1") == 1 and mask < 1 << checkpoint.arrays[name].width for mask in masks.tolist())


CRITICAL = {"blocks": 2, "scales": 7, "e4m3": 6, "e5m2": 6}


def test_the_critical_bit_is_the_highest_of_each_exponent(tmp_path):
    checkpoint = open_checkpoint(quantised(tmp_path / "a"))
    found = draw_alteration(checkpoint, Selection(share=1.0, kinds=("float", "narrow", "scale"), critical=True))
    assert {name: set((one.before ^ one.after).tolist()) for name, one in found.items()} == {
        name: {1 << bit} for name, bit in CRITICAL.items()
    }


def test_the_log_undoes_every_kind_and_goes_to_other_formats(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    before = quantised(tmp_path / "a").read_bytes()
    command = ("alter", "a", "--out", "b", "--kinds", "all", "--share", "1", "--log", "log.json")
    assert said(capsys, *command)[0] == 0
    assert said(capsys, "alter", "b", "--in-place", "--replay", "log.json")[0] == 0
    assert (tmp_path / "b").read_bytes() == before
    arrays = {"i8": np.frombuffer(BYTES[16:18], np.int8), "u8": np.frombuffer(BYTES[18:20], np.uint8)}
    rows = [row for row in json.loads((tmp_path / "log.json").read_text())["alterations"] if row["name"] in arrays]
    (tmp_path / "ints.json").write_text(json.dumps({"version": 1, "alterations": rows}))
    safetensors.numpy.save_file(arrays, "c.safetensors")
    np.savez("c.npz", **arrays)
    for path in ("c.safetensors", "c.npz"):
        code, out, _ = said(capsys, "alter", path, "--in-place", "--replay", "ints.json", "--json")
        assert (code, json.loads(out)["as_before"]) == (0, 4)
    assert difference(open_checkpoint(tmp_path / "c.safetensors"), open_checkpoint(tmp_path / "c.npz")).changed == []


@pytest.mark.parametrize("kind", WRITERS)
def test_whole_numbers_are_altered_in_every_format(tmp_path, kind):
    checkpoint = open_checkpoint(written(tmp_path, kind))
    altered = draw_alteration(checkpoint, Selection(share=1.0, kinds=("int",), bits=(4, 4)))
    assert set(altered) == {"opt_state/step"}
    checkpoint.write(tmp_path / "new", altered)
    assert open_checkpoint(tmp_path / "new").array("opt_state/step") == some_arrays()["opt_state/step"] ^ 16


@pytest.mark.parametrize("how, expected", [({"value": 3.4}, 3), ({"value": 1e9}, 127), ({"factor": -2.0}, None)])
def test_whole_numbers_are_set_to_the_nearest_that_there_is(tmp_path, how, expected):
    values = np.array([-128, -3, 0, 5, 100], np.int8)
    np.savez(tmp_path / "a.npz", w=values)
    one = draw_alteration(open_checkpoint(tmp_path / "a.npz"), Selection(share=1.0, kinds=("int",), **how))["w"]
    wanted = np.clip(-2 * values.astype(int), -128, 127) if expected is None else np.full(5, expected)
    assert one.after.view(np.int8).tolist() == wanted.tolist()


MISTAKES = {
    "--kinds integer": "expected some of float, int, narrow, scale, or all",
    "--kinds int --critical": "which has no exponent; choose with --kinds",
    "--kinds narrow --bits 4": "blocks has 4 bits",
    "--kinds int --names blocks": "matches no array of numbers of the kind int",
    "--kinds int --replay log.json": "does not go with --replay",
}


@pytest.mark.parametrize("options", MISTAKES)
def test_a_mistake_is_answered_in_one_line(tmp_path, capsys, monkeypatch, options):
    monkeypatch.chdir(tmp_path)
    quantised(tmp_path / "a")
    code, out, err = said(capsys, "alter", "a", "--check", *options.split())
    assert (code, out, err.count("\n")) == (2, "", 1) and MISTAKES[options] in err
