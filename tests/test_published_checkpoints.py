"""Published checkpoints: every array finds its place, or is named; a golden run goes on from one as from its own."""

import dataclasses
import functools
import hashlib
import json
import re
import sys

import jax
import numpy as np
import pytest
import recipe
from conftest import FIXTURES, HERE
from small import SITE, small, striking_program
from write_tensorflow import END, slot_key, value

from fault_injection.commands.main import main
from fault_injection.faults.injection import Injection
from fault_injection.faults.injection_file import write_injection
from fault_injection.machine.files import write_json
from fault_injection.published import checkpoints as upstream
from fault_injection.published import google_drive as drive
from fault_injection.published.tensorflow_format import mismatches, name_variables, state_name, to_state
from fault_injection.runs.golden_run import Golden
from fault_injection.runs.replay_files import write_replay
from fault_injection.runs.replay_run import golden_for, replay
from fault_injection.runs.run_store import RunStore
from fault_injection.seam.trees import leaf_names, same_bits
from fault_injection.workloads.registry import WORKLOADS, make_workload

LAYOUT = json.loads((HERE / "fixtures" / "published_checkpoint_layout.json").read_text())["workloads"]
STEPS = 49  # of an epoch


@functools.cache
def abstract(workload):
    return make_workload(workload).program().state.abstract


def store_of(folder, workload):
    """The imported checkpoints of a workload of published size."""
    return RunStore(folder / "upstream" / workload, abstract(workload), tuple(leaf_names(abstract(workload))))


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
    store = store_of(tmp_path / "cache", "resnet18_sgd")
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
    store = store_of(tmp_path / "cache", "resnet18_sgd")
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


def test_without_checksums_one_line_names_the_extra(tmp_path, monkeypatch, capsys):
    (tmp_path / "one.index").touch()
    monkeypatch.setitem(sys.modules, "google_crc32c", None)
    assert fetch(tmp_path, tmp_path) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1 and "pip install -e '.[checkpoints]'" in err


# ---- Replay -------------------------------------------------------------------------------

WORKLOAD = small(epochs=3)
MILD = Injection(WORKLOAD, "bkwd_inject", "RD", 2, SITE, 1, 4, ((5, 2, 1, 3),), (0.05,))


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    """A golden run of ours, and its checkpoint before epoch 1 as if it were an imported one."""
    golden = Golden(WORKLOAD, striking_program(), tmp_path_factory.mktemp("cache"))
    golden.make(3)
    store = dataclasses.replace(golden.store, folder=golden.cache / "upstream" / "resnet18")
    store.write_checkpoint(1, golden.store.read_checkpoint(1))
    write_json(store.checkpoint_path(1).with_suffix(".json"), {"what": "published checkpoint, imported"})
    return golden


def from_upstream(own, cache):
    """The golden run from the imported checkpoint; its files may be elsewhere."""
    return dataclasses.replace(own, cache=cache, start=upstream.imported_start(own, 1, own.cache))


@pytest.mark.slow
def test_a_golden_run_from_an_imported_checkpoint_is_another_run_with_the_same_bits(own, tmp_path):
    golden = from_upstream(own, own.cache)
    write_replay(replay(MILD, golden), "example", tmp_path)
    assert golden.key != own.key
    assert golden.store.checkpoints()[0] == golden.first == 1
    assert not golden.store.record_path(0).exists()
    for epoch in (1, 2):
        assert golden.store.record_path(epoch).read_bytes() == own.store.record_path(epoch).read_bytes()
    assert same_bits(golden.fetch_state_before(3), own.fetch_state_before(3))

    known = json.loads((golden.folder / "golden.json").read_text())
    assert known["imported"] == {"what": "published checkpoint, imported"} and known["start"]["epoch"] == 1
    provenance = json.loads((tmp_path / "provenance.json").read_text())
    assert (provenance["golden_run"], provenance["golden_start"]) == (golden.key, known["imported"])
    with np.load(tmp_path / "record.npz") as record:
        assert list(record["golden/epochs/epoch"]) == [1, 2]


def test_another_start_is_another_run(own):
    start = upstream.imported_start(own, 1, own.cache)
    state = jax.tree.map(np.copy, start.state)
    state.params["fc"]["bias"][0] = -0.0 if state.params["fc"]["bias"][0] == 0 else 0
    starts = [None, start, dataclasses.replace(start, epoch=2), dataclasses.replace(start, state=state)]
    keys = {dataclasses.replace(own, start=start).key for start in starts}
    assert len(keys) == 4


def test_a_replay_makes_its_golden_run_from_the_start_that_it_is_told(own):
    start = functools.partial(upstream.imported_start, epoch=1, cache=own.cache)
    golden = golden_for(MILD, own.cache, start=start)
    assert (golden.first, golden.key) == (1, from_upstream(own, own.cache).key)


def test_a_run_whose_imported_start_is_damaged_in_its_folder_starts_again(own, tmp_path, capsys):
    golden = from_upstream(own, tmp_path)
    golden.make(3)
    for epoch in golden.store.checkpoints():
        golden.store.checkpoint_path(epoch).write_bytes(b"damaged")
    assert same_bits(golden.fetch_state_before(2), own.fetch_state_before(2))
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
