"""Published checkpoints: every array finds its place, or is named; a golden run goes on from one as from its own."""

import dataclasses
import hashlib
import http.server
import json
import os
import re
import subprocess
import sys
import threading
import types
import urllib.parse
import venv
from functools import cache

import jax
import numpy as np
import pytest
import recipe
from conftest import FIXTURES, HERE
from write_tensorflow import slot_key, value

from fault_injection import drive, upstream
from fault_injection.cli import main
from fault_injection.errors import InputError
from fault_injection.faulty_run import same_bits
from fault_injection.files import write_json
from fault_injection.golden import Golden
from fault_injection.injection import Injection, write_injection
from fault_injection.replay import prepare, replay
from fault_injection.session import Session
from fault_injection.store import RunStore
from fault_injection.tf_checkpoint import mismatches, name_variables, state_name, to_state
from fault_injection.training import leaf_names
from fault_injection.workloads import WORKLOADS, make_workload

LAYOUT = json.loads((HERE / "fixtures" / "published_checkpoint_layout.json").read_text())["workloads"]
END = "/.ATTRIBUTES/VARIABLE_VALUE"
STEPS = 49  # of an epoch


@cache
def abstract(workload):
    return Session(make_workload(workload)).program.abstract


def checkpoint(workload, epoch=19, optimizer=True):
    """What TensorFlow would read from a published checkpoint."""
    variables = {"_CHECKPOINTABLE_OBJECT_GRAPH": np.asarray(b"\n\x04"), f"save_counter{END}": np.int64(1)}
    moments = WORKLOADS[workload].optimizer == "adam" and optimizer
    for key, shape in LAYOUT[workload]:
        if not key.startswith("optimizer/"):
            variables[key] = np.zeros(shape, np.float32)
            if moments and (state_name(key) or "").startswith("params/"):
                variables |= {slot_key(key, slot): np.zeros(shape, np.float32) for slot in "mv"}
        elif optimizer:
            variables[key] = np.int64(epoch * STEPS) if "iter" in key else np.float32(0.1)
    return variables


# ---- Names --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "variable, name",
    [
        ("conv1/kernel", "params/conv1/kernel"),
        ("layer2/basics/0/conv1/bias_layer/bias", "params/basicblock_2_basic_0_conv1/bias"),
        ("layer2/basics/0/downsample_conv/kernel", "params/basicblock_2_basic_0_downsample/kernel"),
        ("layer2/basics/0/bn3/moving_variance", "stats/basicblock_2_basic_0_bn3/var"),
        ("block4/layers/mbconv_0/dwconv/depthwise_kernel", "params/block4_mbconv_0_dwconv/kernel"),
        ("block4/layers/mbconv_0/se/expand_conv/bias_layer/bias", "params/block4_mbconv_0_se_expand_conv/bias"),
        ("conv/bias_layer/bias", "params/densenet_conv/bias"),
        ("bn/moving_mean", "stats/densenet_bn/mean"),
        ("conv_p/kernel", "params/densenet_conv_p/kernel"),
        ("dense_block_4/bottle_necks/15/bn2/gamma", "params/densenet_dense_block_4_bottleneck_15_bn2/gamma"),
        ("transition_1/conv_p/bias_layer/bias", "params/densenet_transition_1_conv_p/bias"),
        ("fc/kernel/.OPTIMIZER_SLOT/optimizer/m", "opt_state/m/fc/kernel"),
        ("conv/bias_layer/bias/.OPTIMIZER_SLOT/optimizer/v", "opt_state/v/densenet_conv/bias"),
        ("optimizer/iter", "opt_state/iterations"),
        ("optimizer/learning_rate", None),
        ("data_augmentation/layer-0/_rng/_state_var", None),
        ("save_counter", None),
    ],
)
def test_a_key_names_an_array_of_ours(variable, name):
    assert state_name(variable + END) == name


@pytest.mark.parametrize("workload", LAYOUT)
def test_every_published_key_is_a_parameter_or_statistic_of_the_parity_fixture(workload, pytestconfig):
    path = pytestconfig.stash[FIXTURES] / f"{workload}.json.gz"
    if not path.exists():
        pytest.skip(f"no {path.name} among the fixtures")
    fixture = recipe.load(path)
    expected = {f"params/{entry['name']}": entry["shape"] for entry in fixture["manifest"]}
    ours = {"moving_mean": "mean", "moving_variance": "var"}
    for name in fixture["golden"].get("bn_moving") or {}:
        layer, _, statistic = name.rpartition("/")
        expected[f"stats/{layer}/{ours[statistic]}"] = expected[f"params/{layer}/gamma"]
    found = {state_name(key): shape for key, shape in LAYOUT[workload] if not key.startswith("optimizer/")}
    found.pop(None)
    assert found == expected


@pytest.mark.parametrize("workload", [workload for workload in LAYOUT if workload in WORKLOADS])
@pytest.mark.parametrize("optimizer", [True, False])
def test_a_published_checkpoint_fits_its_workload_and_no_other(workload, optimizer):
    named = name_variables(checkpoint(workload, optimizer=optimizer))
    assert mismatches(named, abstract(workload)) == []
    twins = {"resnet18", "resnet18_sgd"}  # the optimizer is all that tells them apart
    assert set(upstream.fitting(named)) == (twins if workload in twins and not optimizer else {workload})


def test_each_mismatch_is_named():
    variables = checkpoint("resnet18")
    del variables[f"conv1/kernel{END}"], variables[slot_key(f"fc/kernel{END}", "v")]
    variables[f"fc/bias{END}"] = np.zeros(100, np.float32)
    variables[f"bn1/beta{END}"] = np.zeros(64, np.float64)
    variables[f"layer5/basics/0/conv1/kernel{END}"] = np.zeros((3, 3, 64, 64), np.float32)
    variables[slot_key(f"bn1/moving_mean{END}", "m")] = np.zeros(64, np.float32)
    variables[f"optimizer/iter{END}"] = np.int64(-1)
    variables["conv9"] = np.zeros(3, np.float32)
    assert mismatches(name_variables(variables), abstract("resnet18")) == [
        f"bn1/beta{END}: float64 [64], expected float32 [64] as params/bn1/beta",
        f"bn1/moving_mean/.OPTIMIZER_SLOT/optimizer/m{END}: the state has no opt_state/m/bn1/mean",
        "conv9: unknown",
        f"fc/bias{END}: float32 [100], expected float32 [10] as params/fc/bias",
        f"layer5/basics/0/conv1/kernel{END}: the state has no params/basicblock_5_basic_0_conv1/kernel",
        "opt_state/v/fc/kernel: no variable for it",
        f"optimizer/iter{END}: -1, expected a number of steps",
        "params/conv1/kernel: no variable for it",
    ]


def test_without_its_optimizer_a_state_has_zero_moments_and_the_iteration_of_its_epoch():
    state = to_state(name_variables(checkpoint("resnet18", optimizer=False)), abstract("resnet18"), 931)
    assert state.opt_state.iterations == 931
    assert not any(leaf.any() for leaf in jax.tree.leaves(state.opt_state.m))
    shapes = jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), (state, abstract("resnet18")))
    assert shapes[0] == shapes[1]


# ---- Import -------------------------------------------------------------------------------


@pytest.fixture
def saved(tmp_path, monkeypatch):
    """`saved(name, variables)` is a checkpoint in `tmp_path/tf`; its reader stands in for TensorFlow's."""
    contents = {}
    folder = tmp_path / "tf"
    folder.mkdir()

    def save(name, variables):
        contents[folder / name] = variables
        for suffix in (".index", ".data-00000-of-00001"):
            (folder / f"{name}{suffix}").write_bytes(name.encode())
        return folder / name

    monkeypatch.setattr(upstream, "read_tensorflow", lambda prefix: contents[prefix])
    return save


def fetch(place, tmp_path, workload="resnet18_sgd", *more):
    return main(["fetch-checkpoints", workload, "--from", str(place), "--cache", str(tmp_path / "cache"), *more])


def test_checkpoints_of_a_workload_are_imported_under_their_epochs(saved, tmp_path, capsys):
    variables = checkpoint("resnet18_sgd", epoch=7)
    kernel = f"layer1/basics/0/conv1/kernel{END}"
    variables[kernel] = value(kernel, [3, 3, 64, 64])
    saved("seven", variables)
    saved("nineteen", checkpoint("resnet18_sgd"))
    saved("other", checkpoint("resnet18_nobn"))
    assert fetch(tmp_path / "tf", tmp_path) == 0
    out, err = capsys.readouterr()
    store = RunStore(tmp_path / "cache" / "upstream" / "resnet18_sgd", abstract("resnet18_sgd"))
    assert store.checkpoints() == [7, 19]
    assert out.splitlines() == [str(store.checkpoint_path(19)), str(store.checkpoint_path(7))]
    assert "other: fits resnet18_nobn, not resnet18_sgd; left out" in err
    state = store.read_checkpoint(7)
    np.testing.assert_array_equal(state.params["basicblock_1_basic_0_conv1"]["kernel"], variables[kernel])
    assert state.opt_state.iterations == 7 * STEPS
    label = json.loads(store.checkpoint_path(7).with_suffix(".json").read_text())
    assert label["files"]["seven.index"] == hashlib.sha256(b"seven").hexdigest()
    assert label["optimizer_settings"]["learning_rate"] == pytest.approx(0.1)

    assert fetch(tmp_path / "tf" / "seven", tmp_path) == 0  # again: nothing has changed
    saved("seven", checkpoint("resnet18_sgd", epoch=7))
    assert fetch(tmp_path / "tf" / "seven.index", tmp_path) == 2
    assert "another checkpoint of this epoch was imported before" in capsys.readouterr().err


def test_a_checkpoint_that_does_not_fit_gives_a_line_for_each_mismatch(saved, tmp_path, capsys):
    variables = checkpoint("resnet18_sgd")
    variables |= {f"fc/{name}{END}": np.zeros(7, np.float32) for name in ("kernel", "bias")}
    prefix = saved("seven", variables)
    assert fetch(prefix, tmp_path) == 2
    lines = capsys.readouterr().err.splitlines()
    assert [line.partition(": float32 [7], expected ")[0] for line in lines[:2]] == [
        f"{prefix}: fc/{name}{END}" for name in ("bias", "kernel")
    ]
    assert lines[2].startswith(f"{prefix}: 2 mismatches with a state of resnet18_sgd, named above")
    assert len(lines) == 3 and not (tmp_path / "cache" / "upstream").exists()


@pytest.mark.parametrize(
    "change, more, message",
    [
        ({f"optimizer/iter{END}": np.int64(5)}, [], "iteration 5 is not at the end of an epoch of 49 steps; .*--epoch"),
        (None, [], "iteration was not saved; say with --epoch"),
        (None, ["--epoch", "3"], None),
        ({f"optimizer/iter{END}": np.int64(5)}, ["--epoch", "3"], None),
    ],
)
def test_the_epoch_comes_from_the_iteration_or_from_an_option(saved, tmp_path, capsys, change, more, message):
    saved("one", checkpoint("resnet18_sgd", optimizer=change is not None) | (change or {}))
    assert fetch(tmp_path / "tf", tmp_path, "resnet18_sgd", *more) == (2 if message else 0)
    err = capsys.readouterr().err
    if message:
        assert err.count("\n") == 1 and re.search(message, err)
        return
    store = RunStore(tmp_path / "cache" / "upstream" / "resnet18_sgd", abstract("resnet18_sgd"))
    assert store.read_checkpoint(3).opt_state.iterations == (5 if change else 3 * STEPS)


def test_what_holds_no_checkpoint_or_several_is_named(saved, tmp_path, capsys):
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "all.zip").touch()
    for place, message in (
        (tmp_path / "empty", r"no file \*\.index.*unpack all\.zip"),
        (tmp_path / "none", "no such folder, and no such checkpoint"),
    ):
        assert fetch(place, tmp_path) == 2
        err = capsys.readouterr().err
        assert err.count("\n") == 1 and re.search(message, err)
    saved("one", checkpoint("resnet18_sgd")), saved("two", checkpoint("resnet18_sgd"))
    assert fetch(tmp_path / "tf", tmp_path, "resnet18_sgd", "--epoch", "3") == 2
    assert "--epoch is of one checkpoint, found 2" in capsys.readouterr().err
    assert fetch(tmp_path / "tf", tmp_path, "resnet18_nobn") == 2
    assert "holds no checkpoint of resnet18_nobn" in capsys.readouterr().err
    assert fetch(tmp_path / "tf", tmp_path, "resnet19") == 2
    assert "did you mean 'resnet18'" in capsys.readouterr().err


def test_a_file_that_differs_from_its_recorded_checksum_is_named(saved, tmp_path, capsys):
    prefix = saved("one", checkpoint("resnet18_sgd"))
    (tmp_path / "tf" / drive.SUMS).write_text(f"{hashlib.sha256(b'ten').hexdigest()}  one.index\n")
    assert fetch(prefix, tmp_path) == 2
    assert re.search(r"one\.index: SHA-256 \w+, expected \w+ as recorded in .*SHA256SUMS", capsys.readouterr().err)
    (tmp_path / "tf" / drive.SUMS).write_text("what\n")
    assert fetch(prefix, tmp_path) == 2
    assert "SHA256SUMS:1: expected a SHA-256" in capsys.readouterr().err


def test_without_tensorflow_one_line_names_the_extra(tmp_path, monkeypatch, capsys):
    (tmp_path / "one.index").touch()
    monkeypatch.setitem(sys.modules, "tensorflow", None)
    assert fetch(tmp_path, tmp_path) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1 and "pip install -e '.[upstream]'" in err


# ---- Replay -------------------------------------------------------------------------------

WORKLOAD = make_workload("resnet18", dataset="digits", width=2, batch_size=128, workers=4, epochs=3)
MILD = Injection(WORKLOAD, "bkwd_inject", "RD", 2, "basicblock_3_basic_0_conv1_grad_in", 1, 4, ((5, 2, 1, 3),), (0.05,))


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    """A golden run of ours, and its checkpoint before epoch 1 as if it were an imported one."""
    golden = Golden(Session(WORKLOAD), tmp_path_factory.mktemp("cache"))
    golden.ensure(3)
    store = RunStore(golden.cache / "upstream" / "resnet18", golden.session.program.abstract)
    store.write_checkpoint(1, golden.store.read_checkpoint(1))
    write_json(store.checkpoint_path(1).with_suffix(".json"), {"what": "published checkpoint, imported"})
    return golden


def test_a_golden_run_from_an_imported_checkpoint_is_another_run_with_the_same_bits(own, tmp_path):
    replay(MILD, "example", tmp_path, cache=own.cache, checkpoints="upstream")
    _, golden = prepare(MILD, own.cache, checkpoints="upstream")
    assert golden.key != own.key
    assert golden.store.checkpoints()[0] == golden.first == 1
    assert not golden.store.record_path(0).exists()
    for epoch in (1, 2):
        assert golden.store.record_path(epoch).read_bytes() == own.store.record_path(epoch).read_bytes()
    assert same_bits(golden.state_before(3), own.state_before(3))

    known = json.loads((golden.folder / "golden.json").read_text())
    assert known["imported"] == {"what": "published checkpoint, imported"} and known["start"]["epoch"] == 1
    provenance = json.loads((tmp_path / "provenance.json").read_text())
    assert (provenance["golden_run"], provenance["golden_start"]) == (golden.key, known["imported"])
    with np.load(tmp_path / "record.npz") as record:
        assert list(record["golden/epochs/epoch"]) == [1, 2]


def test_another_start_is_another_run(own):
    start = upstream.imported_start(own.session, 1, own.cache)
    state = jax.tree.map(np.copy, start.state)
    state.params["fc"]["bias"][0] = -0.0 if state.params["fc"]["bias"][0] == 0 else 0
    starts = [None, start, dataclasses.replace(start, epoch=2), dataclasses.replace(start, state=state)]
    keys = {Golden(own.session, own.cache, start=start).key for start in starts}
    assert len(keys) == 4


def test_a_run_whose_imported_start_is_damaged_in_its_folder_starts_again(own, capsys):
    _, golden = prepare(MILD, own.cache, checkpoints="upstream")
    golden.ensure(3)
    for epoch in golden.store.checkpoints():
        golden.store.checkpoint_path(epoch).write_bytes(b"damaged")
    assert same_bits(golden.state_before(2), own.state_before(2))
    assert "damaged" in capsys.readouterr().err


def test_a_checkpoint_that_was_not_imported_or_does_not_fit_gives_one_line(own, tmp_path, capsys):
    file = tmp_path / "example.csv"
    command = ["replay", "--file", str(file), "--cache", str(own.cache), "--checkpoints", "upstream", "--check"]
    write_injection(file, MILD)
    assert main(command) == 0
    assert "from the published checkpoint before epoch 1 of 2 epochs" in capsys.readouterr().out
    write_injection(file, dataclasses.replace(MILD, epoch=2))
    assert main(command) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1 and "before epoch 2 was imported (there are: 1)" in err
    assert "fetch-checkpoints resnet18" in err
    wider = dataclasses.replace(WORKLOAD, width=4)
    write_injection(file, dataclasses.replace(MILD, workload=wider))
    assert main(command) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1 and "not a state of this workload; published checkpoints fit" in err


# ---- Download -----------------------------------------------------------------------------


class Drive:
    """gdown's public interface, over files at hand.

    Attributes:
      files: content by path.
      cut: after how many bytes the next download breaks off.
      error: raised by the next call.
      asked: what was downloaded, with the bytes that were there already.
    """

    def __init__(self, files):
        self.files, self.cut, self.error, self.asked = files, None, None, []
        self.exceptions = types.SimpleNamespace(
            DownloadError=DownloadError, FileURLRetrievalError=FileURLRetrievalError
        )

    def download_folder(self, *, id, output, skip_download, quiet, timeout):
        self._fail()
        assert skip_download and id == upstream.DRIVE["examples"]
        return [types.SimpleNamespace(id=path, path=path, local_path=f"{output}/{path}") for path in self.files]

    def download(self, *, id, output, resume, quiet, progress, timeout, retries):
        self._fail()
        part = f"{output}.part"
        have = os.path.getsize(part) if resume and os.path.exists(part) else 0  # noqa: PTH202, PTH110
        self.asked.append((id, have))
        content = self.files[id]
        with open(part, "ab") as file:  # noqa: PTH123
            file.write(content[have : self.cut])
        progress(len(content), len(content))
        if self.cut is not None:
            self.cut = None
            raise ConnectionCut("HTTPSConnectionPool(host='drive.google.com'): Read timed out.")
        os.rename(part, output)  # noqa: PTH104
        return output

    def _fail(self):
        if self.error is not None:
            raise self.error


class DownloadError(Exception):
    pass


class FileURLRetrievalError(DownloadError):
    pass


class ConnectionCut(OSError):  # as requests.exceptions.RequestException is
    pass


CONTENT = {"a/one.index": b"index", "a/one.data-00000-of-00001": b"data" * 100, "notes.txt": b"notes"}


@pytest.fixture
def gdown(monkeypatch):
    fake = Drive(dict(CONTENT))
    monkeypatch.setitem(sys.modules, "gdown", fake)
    requests = types.SimpleNamespace(exceptions=types.SimpleNamespace(RequestException=ConnectionCut))
    monkeypatch.setitem(sys.modules, "requests", requests)
    return fake


def download(folder, pattern="*"):
    drive.fetch_folder(upstream.DRIVE["examples"], folder, pattern)


def test_files_arrive_with_checksums_and_are_not_fetched_again(gdown, tmp_path):
    download(tmp_path, "a/*")
    download(tmp_path, "a/*")
    assert [name for name, _ in gdown.asked] == ["a/one.index", "a/one.data-00000-of-00001"]
    assert all((tmp_path / name).read_bytes() == CONTENT[name] for name, _ in gdown.asked)
    assert not (tmp_path / "notes.txt").exists()
    done = subprocess.run(["sha256sum", "--check", drive.SUMS], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.count("OK") == 2


def test_a_cut_download_goes_on_where_it_stopped(gdown, tmp_path):
    gdown.cut = 3
    with pytest.raises(InputError, match=r"cannot be reached for a/one\.index \(.*timed out.*same command goes on"):
        download(tmp_path)
    download(tmp_path)
    assert gdown.asked[:2] == [("a/one.index", 0), ("a/one.index", 3)]
    assert (tmp_path / "a" / "one.index").read_bytes() == CONTENT["a/one.index"]


def test_a_file_damaged_since_is_fetched_again_and_another_one_on_drive_refused(gdown, tmp_path, capsys):
    download(tmp_path)
    (tmp_path / "notes.txt").write_bytes(b"nodes")
    download(tmp_path)
    assert (tmp_path / "notes.txt").read_bytes() == b"notes"
    assert re.search(r"notes\.txt: no longer what SHA256SUMS records", capsys.readouterr().err)
    (tmp_path / "notes.txt").unlink()
    gdown.files["notes.txt"] = b"other"
    with pytest.raises(InputError, match=r"notes\.txt: Google Drive has another file now: .*recorded in"):
        download(tmp_path)
    assert not (tmp_path / "notes.txt").exists()


@pytest.mark.parametrize(
    "error, message",
    [
        (
            FileURLRetrievalError("Too many users\nhave viewed"),
            "does not give .*quota.*Too many users have viewed.*--from",
        ),
        (DownloadError("Failed to retrieve (status code 404)"), "does not give .*status code 404.*--from"),
        (KeyError("content-type"), "gdown does not understand .*KeyError\\('content-type'\\).*upgrade gdown"),
        (ConnectionCut("Max retries exceeded: Name or service not known"), "cannot be reached .*Name or service"),
        (OSError(28, "No space left on device", "x"), "No space left on device"),
    ],
)
def test_each_error_of_drive_and_network_is_one_line(gdown, tmp_path, capsys, error, message):
    gdown.error = error
    assert main(["fetch-checkpoints", "resnet18", "--cache", str(tmp_path)]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1 and re.search(message, err)


def test_a_pattern_that_fits_nothing_lists_what_there_is(gdown, tmp_path):
    with pytest.raises(InputError, match=r"no file fits --only 'b\*'; there are 3: a/one\.index, "):
        download(tmp_path, "b*")


def test_without_gdown_one_line_names_the_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "gdown", None)
    with pytest.raises(InputError, match=r"need gdown .*pip install -e '\.\[upstream\]'"):
        download(tmp_path)


# ---- With TensorFlow and gdown themselves -------------------------------------------------


@pytest.fixture(scope="module")
def python(tmp_path_factory, repository):
    """The interpreter of a new environment with the extra `upstream`."""
    folder = tmp_path_factory.mktemp("upstream") / "venv"
    venv.create(folder, with_pip=True)
    executable = folder / "bin" / "python"
    install = [executable, "-m", "pip", "install", "-q", "-e", f"{repository}[upstream]"]
    done = subprocess.run(install, capture_output=True, text=True)
    if done.returncode and re.search("NewConnectionError|NameResolution|ConnectTimeout|unreachable", done.stderr):
        pytest.skip("offline: the package index cannot be reached, so TensorFlow cannot be installed")
    assert done.returncode == 0, done.stderr
    return executable


@pytest.fixture(scope="module")
def written(python, repository, tmp_path_factory):
    """A checkpoint of each workload by TensorFlow, in one folder."""
    folder = tmp_path_factory.mktemp("written")
    layout = repository / "tests" / "fixtures" / "published_checkpoint_layout.json"
    for workload in [workload for workload in LAYOUT if workload in WORKLOADS]:
        command = [python, "tests/write_tensorflow.py", layout, workload, str(19 * STEPS), folder / workload]
        subprocess.run(command, cwd=repository, check=True)
    return folder


def in_its_environment(python, repository, *arguments):
    command = [python, "-m", "fault_injection", "fetch-checkpoints", *map(str, arguments)]
    environment = os.environ | {"PYTHONPATH": str(repository)}
    return subprocess.run(command, cwd=repository, capture_output=True, text=True, env=environment)


@pytest.mark.slow
def test_what_tensorflow_writes_is_read_and_imported_value_by_value(python, written, repository, tmp_path):
    done = in_its_environment(python, repository, "--from", written, "--cache", tmp_path)
    assert done.returncode == 0, done.stderr
    for workload in (workload for workload in LAYOUT if workload in WORKLOADS):
        state = RunStore(tmp_path / "upstream" / workload, abstract(workload)).read_checkpoint(19)
        expected = {"opt_state/iterations": np.int32(19 * STEPS)}
        for key, shape in LAYOUT[workload]:
            if not key.startswith(("optimizer/", "data_augmentation/")):
                keys = [key, slot_key(key, "m"), slot_key(key, "v")]
                expected |= {state_name(key): value(key, shape) for key in keys}
        found = dict(zip(leaf_names(state), jax.tree.leaves(state), strict=True))
        assert found.keys() <= expected.keys()
        for name, array in found.items():
            assert array.tobytes() == expected[name].tobytes(), name


@pytest.mark.slow
@pytest.mark.parametrize(
    "damage",
    [
        lambda index, data: data.write_bytes(data.read_bytes()[:-1000]),
        lambda index, data: data.write_bytes(data.read_bytes()[:5000] + b"!" + data.read_bytes()[5001:]),
        lambda index, data: data.unlink(),
        lambda index, data: index.write_bytes(index.read_bytes()[:100]),
        lambda index, data: index.write_bytes(b""),
    ],
)
def test_a_damaged_or_partial_checkpoint_is_named(python, written, repository, tmp_path, damage):
    files = [tmp_path / f"resnet18_sgd.{suffix}" for suffix in ("index", "data-00000-of-00001")]
    for file in files:
        file.write_bytes((written / file.name).read_bytes())
    damage(*files)
    done = in_its_environment(python, repository, "resnet18_sgd", "--from", tmp_path, "--cache", tmp_path / "cache")
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith(f"{tmp_path / 'resnet18_sgd'}: not a whole TensorFlow checkpoint (")
    assert not (tmp_path / "cache" / "upstream").exists()


class GoogleDrive(http.server.ThreadingHTTPServer):
    """As much of Google Drive as gdown sees, on 127.0.0.1: the folder `examples` with a folder in it.

    Attributes:
      content: of the one file.
      cuts: after how many bytes each of the next downloads is cut.
      quota: whether downloads are still granted.
      asked: the Range of each download.
    """

    def __init__(self):
        super().__init__(("127.0.0.1", 0), GoogleDriveHandler)
        self.content, self.cuts, self.quota, self.asked = bytes(range(256)) * 8000, [], True, []
        self.url = f"http://127.0.0.1:{self.server_port}"


class GoogleDriveHandler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        place = urllib.parse.urlsplit(self.path)
        (name,) = urllib.parse.parse_qs(place.query)["id"]
        links = {
            upstream.DRIVE["examples"]: ("drive/folders/" + "f" * 30, "epoch 19"),
            "f" * 30: ("file/d/" + "x" * 30 + "/view", "one.index"),
        }
        if place.path == "/embeddedfolderview":
            link, text = links[name]
            title = "epoch 19" if name == "f" * 30 else "examples"
            self._answer(f'<title>{title}</title><a href="https://drive.google.com/{link}">{text}</a>'.encode())
        elif not self.server.quota:
            self._answer(b'<p class="uc-error-subcaption">Too many users have viewed this file recently.</p>')
        else:
            asked = self.headers["Range"]
            self.server.asked.append(asked)
            start = int(asked.removeprefix("bytes=").rstrip("-")) if asked else 0
            size = len(self.server.content)
            headers = {
                "Content-Disposition": 'attachment; filename="one.index"',
                "Content-Type": "application/octet-stream",
            }
            if asked:
                headers["Content-Range"] = f"bytes {start}-{size - 1}/{size}"
            end = start + self.server.cuts.pop(0) if self.server.cuts else size
            self._answer(self.server.content[start:], 206 if asked else 200, headers, end - start)

    def _answer(self, content, status=200, headers=None, end=None):
        self.send_response(status)
        always = {"Content-Length": str(len(content)), "Content-Type": "text/html"}
        for name, text in (always | (headers or {})).items():
            self.send_header(name, text)
        self.end_headers()
        self.wfile.write(content[:end])

    def log_message(self, *_):
        pass


@pytest.mark.slow
def test_gdown_itself_lists_resumes_and_reports_the_quota(python, repository, tmp_path):
    through_here = """
import sys, requests
get, drive = requests.Session.get, "https://drive.google.com"
requests.Session.get = lambda self, url, **more: get(self, url.replace(drive, sys.argv[1]), **more)
from fault_injection.cli import main
sys.exit(main(sys.argv[2:]))
"""
    arguments = ["fetch-checkpoints", "resnet18", "--cache", tmp_path]
    home = {"HOME": str(tmp_path), "PYTHONPATH": str(repository), "no_proxy": "127.0.0.1"}

    def fetched():
        command = [python, "-c", through_here, server.url, *arguments]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env=os.environ | home)
        assert done.returncode == 2, done.stderr  # what arrives is no checkpoint
        return done.stderr.splitlines()[-1]

    with GoogleDrive() as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        server.quota = False
        assert re.search(r"does not give epoch 19/one\.index: .*quota.*Too many users", fetched())
        server.quota, server.cuts = True, [600_000, *[100_000] * 50]
        assert re.search(r"(cannot be reached|does not give) .*epoch 19/one\.index", fetched())
        first, server.asked, server.cuts = server.asked, [], []
        assert "one: not a whole TensorFlow checkpoint" in fetched()
        server.shutdown()
    assert first[0] is None and first[-1] == server.asked[-1] and re.fullmatch(r"bytes=[1-9]\d*-", first[-1])
    path = tmp_path / "upstream" / "drive" / "examples" / "epoch 19" / "one.index"
    assert path.read_bytes() == server.content
    assert (
        f"{hashlib.sha256(server.content).hexdigest()}  epoch 19/one.index\n"
        in (path.parents[1] / drive.SUMS).read_text()
    )
