"""Faults in the checkpoint that a run restarts from: what each strategy makes of them, and `continue`."""

import importlib
import json
import pathlib
from types import SimpleNamespace

import jax
import ml_dtypes
import numpy as np
import pytest
from command_line import said
from small import flags, small
from strategy_programs import NAMES, program

from fault_injection.checkpoints.formats import open_checkpoint
from fault_injection.models.bits import ALL_ONES
from fault_injection.models.fault import Operand, inactive_fault, site_id
from fault_injection.models.site import make_fault
from fault_injection.questions.outcomes.plan_file import parse_plan
from fault_injection.questions.outcomes.sampling import choose, draw_experiment
from fault_injection.seam.beside import faulty_step
from fault_injection.seam.checkpoint_faults import PARTS, checkpoint_sites, restarted
from fault_injection.seam.leaves import Leaf, Role
from fault_injection.seam.stages import CHECKPOINT
from fault_injection.seam.state_faults import placed_leaves
from fault_injection.seam.state_spec import StateSpec
from fault_injection.seam.trees import same_bits

pytestmark = pytest.mark.usefixtures("compiled_quickly")

QUICK = ("ddp", "zero", "pipeline 2")  # what their programs compile takes most of the time here
STRATEGIES = [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in NAMES]


def trained(found, steps=2):
    """The state after some steps, on the devices."""
    state = found.place(found.init())
    for step in range(steps):
        state, _ = found.step(state, found.batch(0, step), 0, step)
    return state


def copied(state):
    return jax.tree.map(lambda leaf: leaf.copy(), state)


def altered_by_hand(found, state, worker, part, places, new):
    """One worker's copy with some elements replaced, by NumPy."""
    leaves, tree = jax.tree.flatten(found.state.single(jax.device_get(state), worker))
    leaves = [np.array(leaf) for leaf in leaves]
    of_part = [leaf.number for leaf in placed_leaves(found.state) if leaf.leaf.role in PARTS[part]]
    begin = 0
    for number in of_part:
        flat = leaves[number].reshape(-1)
        for place, becomes in zip(places, new, strict=True):
            if begin <= place < begin + flat.size:
                flat[place - begin] = becomes(flat[place - begin])
        begin += flat.size
    return jax.tree.unflatten(tree, leaves)


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_restart_without_a_fault_is_the_golden_step(name):
    found = program(name, "adam")
    state = trained(found)
    expected, report = found.step(copied(state), found.batch(0, 2), 0, 2)
    for site in checkpoint_sites(found.state):
        if site.endswith(f"/{found.state.loaders}"):
            new, told = faulty_step(found, state, found.batch(0, 2), 0, 2, inactive_fault(1, site_id(site)))
            assert np.array_equal(told.digest, report.digest), site
    assert same_bits(new, expected)


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("name", STRATEGIES)
def test_a_fault_is_what_the_strategy_makes_of_checkpoints_altered_by_hand(name, part):
    found = program(name, "adam")
    state = trained(found)
    count = 2 if found.state.loaders > 1 else 1
    site = checkpoint_sites(found.state)[f"checkpoint/{part}/float32/{count}"]
    first = found.state.loaders - 1  # the last one, and after it the first
    size = site.shapes[Operand.INPUT][0]
    places = np.array([3, size // 2, size - 5])
    masks = np.array([1 << 22, 1 << 31, 1 << 23], np.uint32)
    fault = make_fault(site, Operand.INPUT, first, places, keep=ALL_ONES, flip=masks)
    new, told = faulty_step(found, state, found.batch(0, 2), 0, 2, fault)
    assert (told.struck.old ^ told.struck.new)[:3].tolist() == masks.tolist()

    def flipped(mask):
        return lambda element: (np.asarray(element).view(np.uint32) ^ mask).view(np.float32)

    becomes = [flipped(mask) for mask in masks]
    hand = {r % found.state.loaders: None for r in range(first, first + count)}
    started = found.start(
        lambda r: altered_by_hand(found, state, r, part, places if r in hand else [], becomes if r in hand else [])
    )
    expected, _ = found.step(started, found.batch(0, 2), 0, 2)
    assert same_bits(new, expected)


@pytest.mark.parametrize("format", [ml_dtypes.bfloat16, np.float16])
def test_an_element_that_is_saved_in_a_narrower_format_alone_is_rounded(format):
    found = program("replicated", "adam")
    state = trained(found)
    dtype = np.dtype(format)
    site = checkpoint_sites(found.state)[f"checkpoint/model/{dtype.name}/1"]
    places = np.array([0, 40])
    fault = make_fault(site, Operand.INPUT, -1, places, keep=ALL_ONES, flip=np.array([1, 1 << 14], np.uint32))
    new, told = faulty_step(found, state, found.batch(0, 2), 0, 2, fault)
    bits = [1, 1 << 14]

    def saved(mask):
        def becomes(element):
            word = np.asarray(element).astype(dtype).view(np.uint16) ^ np.uint16(mask)
            return word.view(dtype).astype(np.float32)

        return becomes

    by_hand = altered_by_hand(found, state, 0, "model", places, [saved(mask) for mask in bits])
    expected, _ = found.step(found.place(by_hand), found.batch(0, 2), 0, 2)
    assert same_bits(new, expected)
    assert (told.struck.old ^ told.struck.new)[:2].tolist() == bits


@pytest.mark.parametrize("format", ["float64", "float32", "bfloat16", "float16"])
def test_a_checkpoint_of_float64_is_saved_in_its_own_format_and_in_all_that_are_narrower(format):
    leaves = (Leaf("w", Role.PARAMETER), Leaf("m", Role.HISTORY))
    spec = StateSpec([jax.ShapeDtypeStruct((3,), np.float64)] * 2, leaves, ())
    dtype, state = np.dtype(format), [np.array([1 / 3, 2 / 3, 3.0]), np.ones(3)]
    mask = 1 << 8 * dtype.itemsize - 1  # the sign
    site = checkpoint_sites(spec)[f"checkpoint/model/{format}/1"]
    fault = make_fault(site, Operand.INPUT, -1, [1], keep=ALL_ONES, flip=mask)
    started, struck = restarted(SimpleNamespace(state=spec, start=lambda load: load(0)), state, fault)
    assert (
        started[0].tolist() == [1 / 3, -float(np.float64(2 / 3).astype(dtype)), 3.0] and started[0].dtype == np.float64
    )
    assert started[1].tolist() == [1, 1, 1] and int(struck.old[0]) ^ int(struck.new[0]) == mask


@pytest.mark.slow
def test_worker_0_overwrites_and_a_share_alone_counts():
    """The rules, seen through whether a huge parameter that one worker loads reaches the state."""
    reached = {}
    for name in NAMES:
        found = program(name, "adam")
        state = trained(found)
        clean, _ = found.step(copied(state), found.batch(0, 2), 0, 2)
        for part in ("model", "optimizer"):
            site = checkpoint_sites(found.state)[f"checkpoint/{part}/float32/1"]
            places = np.array([0])  # of the first array's first element: worker 0's share, the first stage's
            mask = np.array([1 << 30], np.uint32)
            fault = make_fault(site, Operand.INPUT, found.state.loaders - 1, places, keep=ALL_ONES, flip=mask)
            new, _ = faulty_step(found, state, found.batch(0, 2), 0, 2, fault)
            reached[name, part] = not same_bits(new, clean)
    own = {"horovod", "local 1", "local 3", "replicated"}
    assert {name for name, part in reached if part == "model" and reached[name, part]} == own
    assert {name for name, part in reached if part == "optimizer" and reached[name, part]} == own | {"ddp"}


PLAN = """\
workload = "resnet18"
[options]
dataset = "digits"
width = 4
strategy = "pipeline 4"
[faults]
experiments = 300
stages = ["checkpoint"]
sites = ["checkpoint/model/*/4", "checkpoint/optimizer/float32/1"]
[faults.models]
FLIPS_1 = 1
FLIPS_1000 = 1
"""


def test_a_plan_draws_who_loads_what_alike_and_the_first_step():
    plan = parse_plan(PLAN)
    drawn = [choose(plan, draw_experiment(plan, number)) for number in range(300)]
    assert {choice.experiment.step for choice in drawn} == {0}
    assert {choice.experiment.worker for choice in drawn} == set(range(4))
    assert len(plan.sites) == 4  # three formats of the model, one of the optimizer
    shares = [sum(choice.site.name == name for choice in drawn) for name in plan.sites]
    assert min(shares) > 45
    assert {len(choice.bits.index) for choice in drawn} == {1, 1000}
    assert {choice.site.stage for choice in drawn} == {CHECKPOINT}
    narrow = [choice for choice in drawn if "16" in choice.site.name]
    assert max(int(mask) for choice in narrow for mask in choice.bits.flip) <= 1 << 15


def test_a_checkpoint_is_looked_at_before_anything_is_trained(tmp_path, monkeypatch, capsys):
    def trained(golden, epochs, most):
        raise AssertionError("it trains")

    monkeypatch.setattr(importlib.import_module("fault_injection.commands.continue"), "complete_golden", trained)
    monkeypatch.chdir(tmp_path)
    shape = small().leaves()["params/fc/kernel"].shapes[Operand.INPUT]
    right = {"params/fc/kernel": np.ones(shape, np.float32)}
    np.savez("a.npz", **right)
    np.savez("unknown.npz", **right, other=np.ones(3, np.float32))
    np.savez("shape.npz", **{"params/fc/kernel": np.ones((2, 2), np.float32)})
    np.savez("objects.npz", **right, other=np.array([{}], object))
    np.savez("formats.npz", **right, **{"params/fc/bias": np.ones(10, np.float16)})
    np.savez("integers.npz", **{"params/fc/kernel": np.ones(shape, np.int32)})
    for out, log in (("b.npz", "log.json"), ("c.npz", "planned.json")):
        assert said(capsys, "alter", "a.npz", "--out", out, "--log", log, "--count", 3)[0] == 0
    planned = pathlib.Path("planned.json")
    planned.write_text(planned.read_text().replace('"done"   ', '"planned"', 1))
    pathlib.Path("d.npz").write_bytes(pathlib.Path("a.npz").read_bytes())
    pathlib.Path(".d.npz.alteration").touch()
    for words, expected in {
        "unknown.npz": "'other' is no array of the state of resnet18",
        "shape.npz": "params/fc/kernel is float32 [2, 2], expected the shape",
        "objects.npz": "'other' is no array of",
        "formats.npz": "its arrays have these formats: float16, float32; expected one",
        "integers.npz": "checkpoint/state/int32/1 cannot be struck",
        "a.npz --log log.json": "3 of 3 elements of params/fc/kernel, such as",
        "c.npz --log planned.json": "says what was planned, and not that it was done",
        "d.npz": "an `alter` of it has not ended; give its command again, which finishes it",
        "missing.npz": "no such file",
    }.items():
        checkpoint, *more = words.split()
        code, out, err = said(capsys, "continue", checkpoint, "resnet18", *flags(epochs=2), "--epoch", 1, *more)
        assert (code, out, err.count("\n")) == (2, "", 1) and expected in err, err
    with pytest.raises(AssertionError, match="it trains"):
        said(capsys, "continue", "b.npz", "resnet18", *flags(epochs=2), "--epoch", 1, "--log", "log.json")


@pytest.mark.slow
def test_a_training_goes_on_from_an_altered_checkpoint(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    options = [*flags(epochs=2), "--cache", tmp_path / "cache"]
    assert said(capsys, "golden", "resnet18", *options, "--save", 1, "a.npz")[0] == 0
    altered = ["alter", "a.npz", "--out", "b.npz", "--names", "params/fc/*", "--value", "inf", "--count", 2]
    assert said(capsys, *altered)[0] == 0
    restart = ["continue", "b.npz", "resnet18", *options, "--epoch", 1, "--keep-states", "1", "--json"]
    code, out, _ = said(capsys, *restart)
    found = json.loads(out)
    assert (code, found["outcome"], found["altered"]) == (0, "Immediate INFs/NaNs", 2)

    # A harmless alteration goes on to the end; its states are kept, and its file replays to the same verdict.
    assert said(capsys, "alter", "a.npz", "--out", "c.npz", "--bits", 0, "--part", "model")[0] == 0
    code, out, _ = said(capsys, *[word if word != "b.npz" else "c.npz" for word in restart])
    kept = json.loads(out)
    assert (code, kept["altered"]) == (0, 1)
    states = sorted((tmp_path / "out" / "c").glob("state_after_*.npz"))
    assert [path.stem for path in states] == ["state_after_0001"]
    assert set(open_checkpoint(states[0]).arrays) == set(open_checkpoint(tmp_path / "a.npz").arrays)
    again = said(capsys, "replay", "out/c/c.csv", "--out", "again", "--cache", tmp_path / "cache", "--json")
    assert json.loads(again[1])["rule"] == kept["rule"]

    for command, expected in {
        ("continue", "a.npz", "resnet18", *options, "--epoch", 1): "nothing was altered",
        ("continue", "b.npz", "resnet18", *options, "--epoch", 2): "is not among the 2 epochs",
        ("continue", "b.npz", "resnet18", *options, "--epoch", 1, "--worker", 1): "1 load a checkpoint",
        ("golden", "resnet18", *options, "--save", 4, "d.npz"): "the run has 2 epochs",
        ("golden", "resnet18", *options, "--save", "ten", "d.npz"): "expected a whole number from 0",
    }.items():
        code, out, err = said(capsys, *command)
        assert (code, out) == (2, "")
        assert expected in err.splitlines()[-1]
