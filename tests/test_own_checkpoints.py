"""Checkpoints in the form of a training of one's own: loaded by its `load`, restarted from, and the axis of a plan."""

import dataclasses
import json
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import optax
import own_training
import pytest
import restarted_training
from command_line import said
from flax import nnx

from fault_injection import Measure, Training
from fault_injection.any_step.traced_training import traced_training
from fault_injection.checkpoints.formats import open_checkpoint
from fault_injection.checkpoints.loaded import restart_checkpoint
from fault_injection.faults.injection_file import read_injection
from fault_injection.machine.errors import InputError
from fault_injection.questions.outcomes.plan_file import read_plan
from fault_injection.questions.outcomes.sampling import choose, draw_experiment
from fault_injection.seam.trees import leaf_names
from fault_injection.workloads.registry import make_workload

pytestmark = pytest.mark.usefixtures("compiled_quickly")

FILE = restarted_training.__file__
EPOCH = 1


def state_of(path):
    """A state of the training, of a file by the names of its leaves."""
    found = open_checkpoint(path)
    return {
        "params": {"w": found.array("params/w")},
        "opt": {"m": found.array("opt/m")},
        "step": found.array("step"),
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The golden state before an epoch: by the names of its leaves, and in the training's own form."""
    found = tmp_path_factory.mktemp("own")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(found)
        from fault_injection.commands.main import main

        assert main(["golden", f"{FILE}:training", "--cache", "cache", "--save", str(EPOCH), "leaves.npz"]) == 0
    restarted_training.save(found / "own.ckpt", state_of(found / "leaves.npz"))
    return found


def continued(capsys, checkpoint, out, *more, training="training", epoch=EPOCH):
    name = f"{FILE}:{training}"
    return said(
        capsys, "continue", checkpoint, name, "--epoch", epoch, "--cache", "cache", "--out", out, "--json", *more
    )


def flipped(path, out, names, seed, capsys):
    command = ("alter", path, "--out", out, "--names", names, "--bits", "20-22", "--count", 2, "--seed", seed)
    assert said(capsys, *command, "--log", f"{out}.log")[0] == 0
    return json.loads(pathlib.Path(f"{out}.log").read_text())["alterations"]


@pytest.mark.parametrize(("tensor", "leaf"), [("net.weight", "params/w"), ("adam.mu", "opt/m")])
def test_a_flip_in_the_form_of_ones_own_is_the_same_flip_in_the_state(
    folder, tmp_path, monkeypatch, capsys, tensor, leaf
):
    monkeypatch.chdir(folder)
    own, ours = tmp_path / "a.ckpt", tmp_path / "a.npz"
    flips = flipped("own.ckpt", own, tensor, 3, capsys)
    mapping = tmp_path / "mapping.json"
    mapping.write_text(json.dumps({tensor: {"name": leaf, "axes": [1, 0]}}))
    replay = ("alter", "leaves.npz", "--out", ours, "--replay", f"{own}.log", "--mapping", mapping)
    assert said(capsys, *replay)[0] == 0
    told = []
    # One is loaded, the other has the names of the leaves.
    for path, out in ((own, tmp_path / "one"), (ours, tmp_path / "other")):
        code, text, err = continued(capsys, path, out, "--keep-states", str(EPOCH))
        assert code == 0, err
        told.append(json.loads(text))
    assert told[0]["altered"] == told[1]["altered"] == len(flips) == 2 and told[0]["rule"] == told[1]["rule"]
    assert read_injection(tmp_path / "one" / "a.csv") == read_injection(tmp_path / "other" / "a.csv")
    # The user's own loop, restarted by their own loader, comes to the state that was kept.
    state = restarted_training.load(own)
    for step in range(restarted_training.STEPS):
        state, _ = restarted_training.train_step(state, restarted_training.examples(EPOCH, step))
    kept = state_of(tmp_path / "one" / f"state_after_{EPOCH:04d}.npz")
    for name, a, b in zip(leaf_names(kept), jax.tree.leaves(kept), jax.tree.leaves(state), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, err_msg=name)
    # What the folder of results has repeats it.
    again = said(
        capsys, "replay", tmp_path / "one" / "a.csv", "--out", tmp_path / "again", "--cache", "cache", "--json"
    )
    assert again[0] == 0 and json.loads(again[1])["rule"] == told[0]["rule"]


def test_bits_that_differ_from_another_checkpoint_are_inverted_in_the_golden_state(
    folder, tmp_path, monkeypatch, capsys
):
    """The user's checkpoint is of a run of their own: no bit of it is the golden run's."""
    monkeypatch.chdir(folder)
    theirs, altered = tmp_path / "theirs.ckpt", tmp_path / "altered.ckpt"
    rng = np.random.default_rng(0)
    state = jax.tree.map(lambda leaf: rng.normal(size=leaf.shape).astype(leaf.dtype), restarted_training.create())
    restarted_training.save(theirs, state)
    (one, other) = flipped(theirs, altered, "net.weight", 1, capsys)
    code, text, err = continued(capsys, altered, tmp_path / "on", "--saved", theirs, "--log", f"{altered}.log")
    assert code == 0, err
    assert json.loads(text)["altered"] == 2
    found = read_injection(tmp_path / "on" / "altered.csv")
    shape = (3, 2)
    expected = {
        int(np.ravel_multi_index(row["index"][::-1], shape)): int(row["before"], 16) ^ int(row["after"], 16)
        for row in (one, other)
    }
    begin = 6  # elements count through the leaves of the checkpoint in the order of the state: opt/m comes first
    flips = (one.flip for one in found.bits)
    assert dict(zip((at - begin for (at,) in found.positions), flips, strict=True)) == expected
    # Without --saved it is compared with the golden run, of which the counter differs, too.
    code, text, err = continued(capsys, altered, tmp_path / "off")
    assert (code, text) == (2, "") and "step is not as in the golden checkpoint before epoch 1" in err.splitlines()[-1]
    assert not (tmp_path / "off").exists()
    code, text, err = continued(capsys, theirs, tmp_path / "off", "--saved", theirs)
    assert (code, text, err.count("\n")) == (2, "", 1) and "nothing was altered" in err


def test_a_form_that_nothing_else_reads_is_loaded(folder, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    state = state_of(folder / "leaves.npz")
    state["params"]["w"][1, 1] *= -1
    leaves = [state["params"]["w"], state["opt"]["m"], state["step"].astype(np.float32)]
    (tmp_path / "a.bytes").write_bytes(b"".join(leaf.tobytes() for leaf in leaves))
    code, text, err = continued(capsys, tmp_path / "a.bytes", tmp_path / "on", training="of_bytes")
    assert code == 0, err
    assert json.loads(text)["altered"] == 1
    (one,) = read_injection(tmp_path / "on" / "a.csv").bits
    assert one.flip == 1 << 31
    code, _, err = continued(capsys, tmp_path / "a.bytes", tmp_path / "off", training="without_loader")
    assert code == 2 and "of no known format" in err


@pytest.mark.slow
def test_a_campaign_restarts_from_checkpoints_of_ones_own(folder, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    plan = _plan(folder, tmp_path, capsys)
    command = ("campaign", plan, "--out", tmp_path / "c", "--jobs", 1, "--cache", "cache")
    code, _, err = said(capsys, *command)
    assert code == 0, err
    code, _, _ = said(capsys, "export", tmp_path / "c", "--out", tmp_path / "e")
    assert code == 0 and len((tmp_path / "e" / "alterations.csv").read_text().splitlines()) == 1 + 2 * 2 * 2


def _plan(folder, tmp_path, capsys):
    """A plan of two checkpoints in the training's own form, each in two epochs."""
    for seed in range(2):
        flipped(folder / "own.ckpt", tmp_path / f"altered_{seed}.ckpt", "net.weight", seed, capsys)
    (tmp_path / "own.ckpt").write_bytes((folder / "own.ckpt").read_bytes())
    text = f'workload = "{FILE}:training"\n[start]\nepochs = [1, 2]\ncheckpoints = ["altered_*.ckpt"]\n'
    (tmp_path / "plan.toml").write_text(text + 'saved = "own.ckpt"\n[run]\nexit = "exact"\n')
    return tmp_path / "plan.toml"


def test_a_plan_starts_from_checkpoints_of_ones_own(folder, tmp_path, capsys):
    plan = read_plan(_plan(folder, tmp_path, capsys))
    chosen = [choose(plan, draw_experiment(plan, number)) for number in range(plan.experiments)]
    assert sorted((one.experiment.model.name, one.experiment.epoch) for one in chosen) == [
        (f"altered_{seed}.ckpt", epoch) for seed in range(2) for epoch in (1, 2)
    ]
    for model in plan.models:
        rows = json.loads((tmp_path / f"{model.name}.log").read_text())["alterations"]
        expected = {
            6 + 2 * row["index"][1] + row["index"][0]: int(row["before"], 16) ^ int(row["after"], 16) for row in rows
        }
        assert dict(zip(*(dict(model.options)[key] for key in ("index", "flip")), strict=True)) == expected
    (tmp_path / "altered_1.ckpt").write_bytes(b"no archive")
    with pytest.raises(InputError, match=r"restarted_training\.py: training: load\('.*altered_1.ckpt'\) raises"):
        read_plan(tmp_path / "plan.toml")


MISTAKES = {
    "lacks_a_leaf": ["lacks 'opt/m'"],
    "adds_a_leaf": ["has 'ema'"],
    "of_another_shape": ["'params/w' is float32[2, 3]; init gives float32[3, 2], and load has to give the same"],
    "of_another_type": ["'opt/m' is float16[3, 2]; init gives float32[3, 2], and load has to give the same"],
    "is_nothing": ["lacks 'opt/m'"],
    "misspells": ["raises KeyError: ", "net.weigth"],
    "takes_nothing": ["raises TypeError: ", "takes 0 positional arguments but 1 was given"],
    "is_no_function": ["load is 'checkpoint.npz'; expected a function of a path, or None"],
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_in_a_loader_is_one_line_with_the_users_file(folder, tmp_path, monkeypatch, capsys, name):
    monkeypatch.chdir(tmp_path)
    code, text, err = continued(capsys, folder / "own.ckpt", tmp_path / "on", training=name)
    assert (code, text, err.count("\n")) == (2, "", 1)
    assert "restarted_training.py: " in err and f"{name}: " in err and all(part in err for part in MISTAKES[name]), err
    assert name == "is_no_function" or f"load('{folder / 'own.ckpt'}')" in err
    assert not [*tmp_path.iterdir()]


def test_what_is_not_there_is_said_by_its_name(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    code, _, err = continued(capsys, "missing.ckpt", "on")
    assert (code, err.count("\n")) == (2, 1) and "missing.ckpt: no such file or folder" in err
    restarted_training.save(tmp_path / "a.ckpt", restarted_training.create())
    code, _, err = continued(capsys, "a.ckpt", "on", "--saved", "missing.ckpt")
    assert (code, err.count("\n")) == (2, 1) and "missing.ckpt: no such file or folder" in err


def modules(seed):
    """Modules of Flax NNX, which their step changes in place."""

    def init():
        model = nnx.Linear(3, 2, rngs=nnx.Rngs(seed))
        return model, nnx.Optimizer(model, optax.adam(0.1), wrt=nnx.Param)

    def loss_of(model, x):
        return jnp.mean((model(x) - 1) ** 2)

    def step(model, optimizer, x):
        loss, gradients = nnx.value_and_grad(loss_of)(model, x)
        optimizer.update(model, gradients)
        return loss

    x = np.ones((4, 3), np.float32)
    measure = Measure("loss", "lower", chance=1.0, tolerance=0.01)
    return Training(init, step, lambda e, s: x, 2, 1, lambda state: {"loss": loss_of(state[0], x)}, measure)


@pytest.mark.parametrize("make", [own_training.training, modules], ids=["random keys", "modules of NNX"])
def test_a_state_is_loaded_as_an_initial_one_is_made(make):
    """Keys of random numbers, modules and optimizer states: load gives the state that init would."""
    with jax.numpy_dtype_promotion("standard"):
        loaded = traced_training(dataclasses.replace(make(0), load=lambda path: make(3).init()))
        one, other = loaded.load(pathlib.Path("anywhere")), traced_training(make(3)).init()
    assert leaf_names(one) == leaf_names(other)
    pairs = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    assert all((a.dtype, a.shape, a.tobytes()) == (b.dtype, b.shape, b.tobytes()) for a, b in pairs)
    pairs = zip(jax.tree.leaves(one), jax.tree.leaves(loaded.init()), strict=True)
    assert any(a.tobytes() != b.tobytes() for a, b in pairs)


def test_a_loaded_checkpoint_reads_as_any_other(folder):
    """Whole arrays, pieces, single words: those of the file with the leaves' names."""
    program = make_workload(f"{FILE}:training").program(frozenset())
    one = restart_checkpoint(program, folder / "own.ckpt")
    other = open_checkpoint(folder / "leaves.npz")
    assert one.arrays == {name: other.arrays[name] for name in one.arrays} and set(one.arrays) == set(other.arrays)
    for name, described in one.arrays.items():
        assert one.array(name).tobytes() == other.array(name).tobytes()
        index = np.arange(described.size)[::2]
        assert one.words(name, index).tolist() == other.words(name, index).tolist()
    with pytest.raises(InputError, match="which only the training writes"):
        one.write(folder / "x", {})
    assert restart_checkpoint(program, folder / "leaves.npz").format == "npz"
