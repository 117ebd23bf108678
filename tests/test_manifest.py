"""`manifest` and `verify`: every flip of any bit is named, and nothing else is."""

import hashlib
import json
import pathlib
import random
import shlex
import sys

import mutations
import numpy as np
import pytest
from checkpoints import WRITERS, some_arrays, written
from command_line import answer, said
from hypothesis import given, settings
from hypothesis import strategies as st

from fault_injection.checkpoints.alteration import Selection, draw_alteration
from fault_injection.checkpoints.formats import open_checkpoint
from fault_injection.checkpoints.manifest import read_manifest, verify, write_manifest
from fault_injection.commands.main import main


@pytest.mark.parametrize("kind", WRITERS)
def test_a_digest_is_that_of_the_arrays_bytes_in_every_format(tmp_path, kind):
    opened = open_checkpoint(written(tmp_path, kind))
    entries = write_manifest(tmp_path / "m.json", opened)
    assert read_manifest(tmp_path / "m.json") == entries
    for name, array in some_arrays().items():
        text = f"{array.dtype.name} {list(array.shape)}"
        assert entries[name] == (text, hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest())
    assert verify(opened, entries).sound


@pytest.mark.parametrize("kind", WRITERS)
def test_a_manifest_of_one_format_verifies_the_others(tmp_path, kind):
    expected = write_manifest(tmp_path / "m.json", open_checkpoint(written(tmp_path, "npz")))
    other = tmp_path / "other"
    other.mkdir()
    found = verify(open_checkpoint(written(other, kind)), expected)
    assert found.sound and found.same == len(some_arrays())


@given(st.integers(0, 10**6), st.integers(1, 4))
@settings(max_examples=40, deadline=None)
def test_flips_of_any_bits_name_the_arrays_that_have_them(tmp_path_factory, seed, count):
    folder = tmp_path_factory.mktemp("flips")
    opened = open_checkpoint(written(folder, "safetensors"))
    expected = write_manifest(folder / "m.json", opened)
    altered = draw_alteration(opened, Selection(count=count, seed=seed))
    opened.write(folder / "altered", altered)
    found = verify(open_checkpoint(folder / "altered"), expected)
    assert set(found.changed) == set(altered) and not (found.missing or found.new or found.unlike)
    assert found.same == len(some_arrays()) - len(altered)


def test_what_is_missing_new_or_of_another_type_is_named(tmp_path, capsys):
    arrays = some_arrays()
    path = written(tmp_path, "npz", arrays)
    assert main(["manifest", str(path)]) == 0
    manifest = tmp_path / f"{path.name}.manifest.json"
    assert main(["verify", str(path), str(manifest)]) == 0
    assert capsys.readouterr().out.endswith("6 arrays are as the manifest says; none differs\n")
    arrays["params/fc/bias"] = arrays["params/fc/bias"].astype(np.float32)
    arrays["new"] = arrays.pop("params/conv1/kernel")
    arrays["opt_state/step"] = arrays["opt_state/step"] + 1
    written(tmp_path, "npz", arrays)
    assert main(["verify", str(path), str(manifest)]) == 3
    assert capsys.readouterr().out.splitlines()[:-1] == [
        "changed: opt_state/step (int32 [])",
        "of another type or shape: params/fc/bias: float16 [7] in the manifest, float32 [7] here",
        "missing: params/conv1/kernel",
        "new: new",
    ]
    assert main(["verify", str(path), str(manifest), "--json"]) == 3
    found = json.loads(capsys.readouterr().out)
    assert not found["sound"] and (found["same"], found["missing"]) == (3, ["params/conv1/kernel"])


def test_what_has_no_digest_is_named(tmp_path, capsys):
    np.savez(tmp_path / "c.npz", a=np.ones(3), odd=np.array([{"a": 1}, None], object))
    assert main(["manifest", str(tmp_path / "c.npz")]) == 0
    assert "without a digest" in capsys.readouterr().out
    assert main(["verify", str(tmp_path / "c.npz"), str(tmp_path / "c.npz.manifest.json")]) == 0
    assert "not compared: 1: odd" in capsys.readouterr().out


def test_a_manifest_is_never_written_over_or_into_its_checkpoint(tmp_path, capsys):
    path = written(tmp_path, "npz")
    before = path.read_bytes()
    assert main(["manifest", str(path), "--out", str(path)]) == 2
    folder = written(tmp_path, "Orbax OCDBT")
    assert main(["manifest", str(folder), "--out", str(folder / "m.json")]) == 2
    assert path.read_bytes() == before and not (folder / "m.json").exists()
    assert len(capsys.readouterr().err.splitlines()) == 2


def test_a_damaged_manifest_accuses_nobody(tmp_path, capsys):
    """300 mutated manifests: one line and 2, or the answer of the sound one where nothing of what it says changed."""
    path = written(tmp_path, "safetensors")
    write_manifest(tmp_path / "m.json", open_checkpoint(path))
    content = (tmp_path / "m.json").read_bytes()
    codes = []
    for number in range(300):
        rng = random.Random(number)
        mutated = mutations.json_of(content, rng) if number % 2 else mutations.bytes_of(content, rng)
        (tmp_path / "n.json").write_bytes(mutated)
        codes.append(main(["verify", str(path), str(tmp_path / "n.json")]))
        out, err = capsys.readouterr()
        assert codes[-1] in (0, 2) and len(err.splitlines()) == (codes[-1] == 2) and bool(out) == (codes[-1] == 0)
    assert codes.count(2) > 250


@pytest.mark.parametrize("kind", ["npz", "safetensors", "HDF5", "msgpack"])
def test_a_damaged_checkpoint_is_refused_or_named(tmp_path, capsys, kind):
    (tmp_path / "sound").mkdir()
    sound = mutations.source(tmp_path / "sound", kind)
    manifest, path = tmp_path / "m.json", pathlib.Path(tmp_path / "mutated").with_suffix(sound.suffix)
    write_manifest(manifest, open_checkpoint(sound))
    codes = set()
    for number in range(300):
        mutations.mutate(sound, path, kind, number)
        before = path.read_bytes()
        codes.add(code := main(["verify", str(path), str(manifest)]))
        _, err = capsys.readouterr()
        assert code in (0, 2, 3) and len(err.splitlines()) == (code == 2) and path.read_bytes() == before
    assert {2, 3} <= codes


# Says no where a checkpoint is not, byte for byte, the one that it was told of.
SAME = """
import pathlib, sys
def files(path):
    path = pathlib.Path(path)
    return {one.name: one.read_bytes() for one in path.iterdir()} if path.is_dir() else {"": path.read_bytes()}
sys.exit(0 if files(sys.argv[1]) == files(sys.argv[2]) else 5)
"""


@pytest.mark.parametrize("kind", ["npy", "PyTorch", "sharded", "sharded PyTorch", "TensorFlow"])
def test_each_form_is_scanned_verified_and_challenged(tmp_path, capsys, kind):
    (tmp_path / "sound").mkdir()
    sound, manifest, altered = mutations.source(tmp_path / "sound", kind), tmp_path / "m.json", tmp_path / "altered"
    altered = altered.with_suffix(sound.suffix)
    scanned = answer(capsys, "scan", sound)
    assert scanned["arrays"] and not scanned["findings"]
    assert said(capsys, "manifest", sound, "--out", manifest)[0] == 0
    assert said(capsys, "verify", sound, manifest)[0] == 0
    huge = ("alter", sound, "--out", altered, "--names", "arr_0" if kind == "npy" else "*kernel*")
    log = tmp_path / "log.json"
    assert said(capsys, *huge, "--value", "3e30", "--log", log)[0] == 0
    (struck,) = json.loads(log.read_text())["alterations"]
    code, out, _ = said(capsys, "verify", altered, manifest, "--json")
    assert code == 3 and json.loads(out)["changed"] == [struck["name"]]
    code, out, _ = said(capsys, "scan", altered, "--fail", "--json")
    assert code == 3 and {one["array"] for one in json.loads(out)["findings"]} == {struck["name"]}
    (tmp_path / "same.py").write_text(SAME)
    command = f"{shlex.quote(sys.executable)} {shlex.quote(str(tmp_path / 'same.py'))} {{}} {shlex.quote(str(sound))}"
    found = answer(capsys, "challenge", sound, "--command", command, "--count", 3, "--out", tmp_path / "c")
    assert found["noticed"]["found"] == found["noticed"]["total"] == 3
