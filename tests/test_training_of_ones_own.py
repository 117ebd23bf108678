"""A function that returns a Training goes through every command, and its sites keep their names."""

# Above 400 lines: one user's file goes through every command.

import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time

import jax
import numpy as np
import optax
import own_steps
import own_training
import pytest
from command_line import answer
from conftest import HERE
from whole import some

from fault_injection import Measure, Training, instrument
from fault_injection.any_step.traced_training import TracedTraining
from fault_injection.any_step.training_program import training_program
from fault_injection.commands.main import main
from fault_injection.faults.injection_file import format_injection, parse_injection
from fault_injection.machine.sources import ROOT
from fault_injection.models.fault import Operand, inactive_fault
from fault_injection.runs.outcome import IMMEDIATE, MASKED, OUTCOMES
from fault_injection.runs.replay_run import golden_for, replay
from fault_injection.runs.unfinished import Keeper
from fault_injection.seam.leaves import Role
from fault_injection.seam.trees import same_bits
from fault_injection.workloads.registry import find_workload, restore_workload

WORKLOAD = f"{pathlib.Path(own_training.__file__)}:training"
INJECTION = """\
model,{workload}
stage,{stage}
fmodel,{fmodel}
target_worker,0
target_layer,{layer}
target_epoch,1
target_step,3
inj_pos,{position}
inj_values,{value}
seed,0
"""
PLAN = """\
workload = "{workload}"
[faults]
experiments = 20
sites = ["grad_*", "forward:params/fc1/*"]
[run]
twins = 2
"""
NAMES = [
    "forward:params/fc1/kernel",
    "forward:params/fc2/kernel",
    "grad_wt:params/fc2/kernel",
    "grad_in:params/fc2/kernel",
    "grad_wt:params/fc1/kernel",
]


@pytest.fixture(autouse=True)
def as_users_have_it():
    """Optax mixes types, which the other tests forbid."""
    with jax.numpy_dtype_promotion("standard"):
        yield


def refusal(capsys, *arguments):
    """The one line that a command answers to a mistake."""
    assert main([*map(str, arguments)]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    return err


def test_sites_lists_what_can_be_struck(capsys):
    found = answer(capsys, "sites", WORKLOAD)
    assert [site["site"] for site in found] == NAMES
    first = found[0]
    assert (first["role"], first["parameter"], first["workers"]) == ("forward", "weight", 1)
    assert first["operands"] == {"input": [16, 4], "weight": [4, 8], "output": [16, 8]}
    assert first["line"].startswith("own_training.py:")
    assert first["layout"] == {"input": "ab", "weight": "bc", "output": "ac"}


def test_the_leaves_of_a_state_have_their_roles():
    program = find_workload(WORKLOAD).program(frozenset())
    roles = {leaf.name: (leaf.role, leaf.moment) for leaf in program.state.leaves}
    assert roles["params/fc1/bias"] == (Role.PARAMETER, "")
    assert roles["opt/0/mu/fc2/kernel"] == (Role.HISTORY, "mu")
    assert roles["opt/0/nu/fc1/bias"] == (Role.HISTORY, "nu")
    assert roles["batch_stats/norm/mean"] == (Role.STATISTIC, "")
    assert roles["batch_stats/norm/var"] == (Role.VARIANCE, "")
    assert roles["opt/0/count"] == roles["key"] == (Role.OTHER, "")


def test_the_workload_is_found_again_by_its_name():
    workload = find_workload(WORKLOAD).changed(epochs=2)
    assert restore_workload(json.loads(json.dumps(workload.__reduce__()[1][0]))) == workload


@pytest.mark.parametrize("fmodel", ["INPUT", "RD"])
def test_a_name_with_a_colon_goes_through_an_injection_file(fmodel):
    rows = {"workload": WORKLOAD, "stage": "bkwd_inject", "fmodel": fmodel, "layer": "grad_in:params/fc2/kernel"}
    injection = parse_injection(INJECTION.format(**rows, position="3/1", value="2.5"))
    assert injection.layer == "grad_in:params/fc2/kernel"
    assert parse_injection(format_injection(injection)) == injection


def test_a_replay_of_an_operation_and_one_of_the_state(capsys, tmp_path, cache):
    operation, leaf = tmp_path / "operation.csv", tmp_path / "leaf.csv"
    rows = {"stage": "fwrd_inject", "fmodel": "RD", "layer": "forward:params/fc2/kernel"}
    operation.write_text(INJECTION.format(workload=WORKLOAD, **rows, position="3/1", value="nan"))
    leaf.write_text(
        f"model,{WORKLOAD}\ntarget,opt/0/nu/fc1/kernel\ntarget_epoch,1\ntarget_step,3\n"
        "inj_pos,1/2\ninj_values,1e30\nseed,0\n"
    )
    found = answer(capsys, "replay", operation, "--cache", cache, "--out", tmp_path / "one")
    assert found["outcome"] == IMMEDIATE
    assert (tmp_path / "one" / "curves.png").stat().st_size > 10_000
    found = answer(capsys, "replay", leaf, "--cache", cache, "--out", tmp_path / "two")
    assert found["outcome"] in OUTCOMES and found["outcome"] != IMMEDIATE


def test_a_golden_run_says_how_far_it_is_from_the_step_as_written(capsys, tmp_path):
    assert main(["golden", WORKLOAD, "--epochs", "1", "--cache", str(tmp_path)]) == 0
    said = capsys.readouterr().err
    (described,) = tmp_path.glob("golden/*/golden.json")
    kept = json.loads(described.read_text())["own_step"]
    assert kept["sentence"] in said and "golden runs are made with barriers in the step" in said
    assert (kept["steps"], kept["leaves"]) == (3, 16) and kept["largest_relative_difference"] < 1e-4


def test_an_operation_in_a_branch_that_is_not_taken_is_not_struck(capsys, tmp_path, cache):
    workload = WORKLOAD.replace(":training", ":branching")
    sites = {site["site"]: site for site in answer(capsys, "sites", workload)}
    site = next(name for name in sites if name.startswith("forward:params/fc2"))
    assert [sites[name]["conditional"] for name in ("forward:params/fc1/kernel", site)] == [False, True]
    told = {}
    for number, fate in (2, "left out"), (3, "struck"):
        rows = {"stage": "fwrd_inject", "fmodel": "RD", "layer": site}
        text = INJECTION.format(workload=workload, **rows, position="3/1", value="nan")
        (tmp_path / f"{number}.csv").write_text(text.replace("target_step,3", f"target_step,{number}"))
        command = ["replay", tmp_path / f"{number}.csv", "--cache", cache, "--out", tmp_path / fate]
        told[fate] = answer(capsys, *command)["outcome"]
    assert told == {"left out": MASKED, "struck": IMMEDIATE}
    provenance = json.loads((tmp_path / "left out" / "provenance.json").read_text())
    assert "left the operation out, so nothing was struck" in provenance["fault"]
    assert provenance["own_step"]["steps"] == 3


def test_a_lasting_fault_has_struck_whichever_step_it_struck_first_and_also_where_its_run_goes_on(
    tmp_path, cache, monkeypatch
):
    """The step that the file names leaves the operation out; a later one of that epoch does not."""
    rows = {"stage": "fwrd_inject", "fmodel": "RD", "layer": "forward:params/fc2/kernel"}
    text = INJECTION.format(workload=WORKLOAD.replace(":training", ":branching"), **rows, position="3/1", value="0.5")
    text = text.replace("target_step,3", "target_step,2").replace("target_epoch,1", "target_epoch,0")
    injection = parse_injection(text + "schedule,permanent\n")
    golden = golden_for(injection, cache)
    whole = replay(injection, golden)
    assert whole.outcome.struck and whole.struck.hits == 1

    def killed(keeper, *epoch):
        kept(keeper, *epoch)
        raise KeyboardInterrupt

    kept = Keeper.after_epoch
    monkeypatch.setattr(Keeper, "after_epoch", killed)
    with pytest.raises(KeyboardInterrupt):
        replay(injection, golden)
    monkeypatch.undo()
    resumed = replay(injection, golden)
    assert resumed.outcome == whole.outcome and resumed.struck.old[0] == whole.struck.old[0]


@pytest.mark.parametrize(
    "optimizer, most",
    [
        (optax.adam(1e-2), np.inf),
        (optax.sgd(0.1, momentum=0.9, nesterov=True), np.inf),
        (optax.chain(optax.clip_by_global_norm(0.1), optax.lion(1e-3)), 0.1),
        (optax.chain(optax.trace(0.9), optax.adam(1e-2)), np.inf),  # the first of two moments has the gradient
    ],
    ids=["adam", "momentum", "clipped lion", "adam of a trace"],
)
def test_the_gradient_is_recovered_from_the_moments(optimizer, most):
    """As the optimizer was given it: the clipped one where there is a clip."""

    def gradient(params, batch):
        return jax.value_and_grad(lambda params: ((batch["x"] @ params["w"]) ** 2).mean())(params)

    def step(state, batch):
        loss, grad = gradient(state["params"], batch)
        updates, opt = optimizer.update(grad, state["opt"], state["params"])
        return {"params": optax.apply_updates(state["params"], updates), "opt": opt}, {"loss": loss}

    params = {"w": np.linspace(-1, 1, 8, dtype=np.float32).reshape(4, 2)}
    initial = {"params": params, "opt": optimizer.init(params)}
    measure = Measure("loss", "lower", chance=1.0, tolerance=0.1)
    training = Training(
        lambda: initial, step, lambda e, n: own_training.examples(0, e, n), 4, 1, lambda s: 0.0, measure
    )
    made = instrument(step, initial, training.batch(0, 0))
    program = training_program(
        TracedTraining(training, initial, made), frozenset({"norm/parameter_gradients", "largest/gradients"})
    )
    state = program.place(program.init())
    for number in range(3):
        batch = training.batch(0, number)
        _, grad = gradient(jax.device_get(state["params"]), batch)
        given = grad["w"] * min(1.0, most / np.linalg.norm(grad["w"]))
        state, report = program.step(state, program.batch(0, number), 0, number)
        assert report.reductions["norm/parameter_gradients/params/w"] == pytest.approx(np.linalg.norm(given), rel=1e-5)
        assert report.reductions["largest/gradients/params/w"] == pytest.approx(np.max(np.abs(given)), rel=1e-5)


def test_a_detector_watches_and_a_recovery_rewinds(capsys, tmp_path, cache):
    file = tmp_path / "operation.csv"
    rows = {"stage": "bkwd_inject", "fmodel": "RD", "layer": "grad_wt:params/fc2/kernel"}
    file.write_text(INJECTION.format(workload=WORKLOAD, **rows, position="1/3", value="1e20"))
    for detector in ("gradient_norm", "history_bound"):
        command = ["replay", file, "--detector", detector, "--recovery", "rewind", "--cache", cache]
        found = answer(capsys, *command, "--out", tmp_path / detector)["detection"]
        assert (found["detected"], found["steps_from_fault_to_alarm"], found["alarms_before_the_fault"]) == (True, 0, 0)
        assert found["after_recovery"]["outcome"] == MASKED and "exactly masked" in found["after_recovery"]["rule"]
    found = answer(capsys, "replay", file, "--detector", "checksum", "--cache", cache, "--out", tmp_path / "sums")
    alarms = [(alarm["step"], alarm["tensor"]) for alarm in found["detection"]["alarms"]]
    assert alarms == [(9, "checksum/products/grad_wt:params/fc2/kernel")]
    rows = {"stage": "fwrd_inject", "fmodel": "RD", "layer": "forward:params/fc1/kernel"}
    file.write_text(INJECTION.format(workload=WORKLOAD, **rows, position="1/3", value="1e20"))
    found = answer(
        capsys, "replay", file, "--detector", "activation_range", "--cache", cache, "--out", tmp_path / "range"
    )
    alarms = [(alarm["step"], alarm["tensor"]) for alarm in found["detection"]["alarms"]]
    assert alarms[0] == (9, "largest/activations/forward:params/fc1/kernel")
    said = refusal(capsys, "replay", file, "--detector", "replicas", "--cache", cache)
    assert "replicas" in said


@pytest.mark.parametrize("profile", [False, True])
def test_a_permanent_fault_repeats_itself_and_is_seen_by_checksums_that_need_no_confirmation(
    profile, capsys, tmp_path, cache
):
    file = tmp_path / "operation.csv"
    rows = {"stage": "bkwd_inject", "fmodel": "RD", "layer": "grad_wt:params/fc2/kernel"}
    text = INJECTION.format(workload=WORKLOAD, **rows, position="1/3", value="1e20")
    if profile:  # not a number in one lane
        text = (
            re.sub("^(stage|fmodel|inj_pos|inj_values),.*\n", "", text, flags=re.MULTILINE) + "profile,not_a_number\n"
        )
    file.write_text(text.rstrip("\n") + "\nschedule,permanent\n")
    # The fault begins in step 9. What is not a number ends the run at once.
    every, checked = (5, 9) if profile else (6, 11)
    sampled = ["sampled_checksum", "--set", f"every={every}"]
    for detector, first in ((["checksum"], None), (["unconfirmed_checksum"], 9), (sampled, checked)):
        command = ["replay", file, "--detector", *detector, "--cache", cache, "--out", tmp_path / detector[0]]
        found = answer(capsys, *command)["detection"]
        assert (found["detected"], found["alarms_before_the_fault"]) == (first is not None, 0)
        if first is not None:
            alarm = found["alarms"][0]
            assert (alarm["step"], alarm["tensor"]) == (first, "checksum/products/grad_wt:params/fc2/kernel")


def test_checksums_of_a_step_see_its_product_and_change_no_bit():
    """Also in loops and checkpoints; of all turns, the largest counts."""
    batch = own_steps.ROWS
    plain = instrument(own_steps.llama_step(remat=True), own_steps.scanned_state(), batch)
    telling = plain.telling(frozenset({"checksum/products", "variance_checksum/products"}))
    fault = plain.fault("grad_wt:up", "output", (1, 2), values=[1e6], iteration=2)
    for struck in (inactive_fault(), fault):
        expected, _ = plain(struck, own_steps.scanned_state(), batch)
        results, told = telling.compiled(telling.words(struck), *telling._leaves(own_steps.scanned_state(), batch))
        assert same_bits(telling._joined(results), expected)
        values = {name: float(value) for name, value in telling.named(told).items()}
        assert len(values) == 2 * len(plain.sites)
        beyond = {name for name, value in values.items() if value > 1}
        assert beyond == (
            {f"{kind}/products/grad_wt:up" for kind in telling.interpreter.looks.checksums}
            if struck is fault
            else set()
        )


@pytest.mark.slow
def test_a_campaign_is_made_and_resumed(capsys, tmp_path, cache):
    plan, out = tmp_path / "plan.toml", tmp_path / "out"
    plan.write_text(PLAN.format(workload=WORKLOAD))
    command = [sys.executable, "-m", "fault_injection", "campaign", plan, "--out", out, "--cache", cache, "--jobs", "1"]
    environment = os.environ | {"JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}
    begun = subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    there = 0
    while there < 2 and begun.poll() is None:
        time.sleep(0.02)
        if (out / "campaign.sqlite").exists() and main(["status", str(out), "--json"]) == 0:
            there = json.loads(capsys.readouterr().out)["done"]
    begun.send_signal(signal.SIGTERM)
    _, said = begun.communicate()
    assert begun.returncode == 143, said
    stopped = answer(capsys, "status", out)
    assert stopped["resumable"] and 2 <= stopped["done"] < 20
    done = subprocess.run([*command, "--json"], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert (told["done"], told["left"]) == (20, 0)
    assert sum(rate["found"] for rate in told["outcomes"].values()) == 20
    answer(capsys, "report", out)
    assert main(["export", str(out), "--id", "7", "--out", str(tmp_path)]) == 0
    capsys.readouterr()
    again = answer(capsys, "replay", tmp_path / "experiment_7.csv", "--cache", cache, "--out", tmp_path / "seven")
    assert again["outcome"] in OUTCOMES


def test_mistakes_are_answered_in_one_line(capsys, tmp_path):
    assert "no 'loss' in" in refusal(capsys, "golden", WORKLOAD.replace(":training", ":without_loss"))
    assert "init() raises ZeroDivisionError" in refusal(capsys, "sites", WORKLOAD.replace(":training", ":no_start"))
    assert "expected a Training or a Workload" in refusal(capsys, "sites", WORKLOAD.replace(":training", ":nothing"))


LINES = ("\nimport math\n", "    key, noise =", "    unused = batch['x'].sum() * 2\n    key, noise =")


def test_a_line_more_elsewhere_renames_nothing(capsys, tmp_path):
    text = pathlib.Path(own_training.__file__).read_text()
    longer = text.replace("\nimport jax\n", LINES[0] + "\nimport jax\n", 1).replace(LINES[1], LINES[2])
    assert len(longer.splitlines()) == len(text.splitlines()) + 3
    (tmp_path / "longer.py").write_text(longer)
    found = answer(capsys, "sites", f"{tmp_path / 'longer.py'}:training")
    assert [site["site"] for site in found] == NAMES


@pytest.mark.parametrize("remat", [False, True])
def test_sites_in_loops_and_checkpoints_are_named_by_what_they_read(remat):
    program = instrument(own_steps.llama_step(remat=remat), own_steps.scanned_state(), own_steps.ROWS)
    expected = {f"{role}:{name}" for role in ("forward", "grad_in", "grad_wt") for name in ("up", "down")}
    again = {"recompute:up"} if remat else set()
    assert program.sites.keys() == expected | again
    assert {site.iterations for site in program.sites.values()} == {(3,)}


def test_a_weight_that_a_checkpoint_computes_again_keeps_its_name():
    @jax.checkpoint
    def block(x, w):
        return jax.numpy.tanh(jax.numpy.sin(x) @ (2.0 * w))

    def step(state, x):
        loss, grads = jax.value_and_grad(lambda p: jax.numpy.sum(block(block(x, p["a"]), p["b"])))(state)
        return jax.tree.map(jax.numpy.subtract, state, grads), {"loss": loss}

    state = {name: np.ones((4, 4), np.float32) for name in "ab"}
    found = instrument(step, state, np.ones((3, 4), np.float32)).sites
    expected = {f"{role}:{name}" for role in ("forward", "recompute", "grad_wt") for name in "ab"}
    assert found.keys() == expected | {"grad_in:b"}


def test_a_derivative_that_is_written_by_hand_has_the_roles_of_the_backward_pass():
    @jax.custom_vjp
    def layer(w, x):
        return jax.numpy.tanh(x @ w)

    def backward(kept, dy):
        w, x, y = kept
        dx = dy * (1 - y * y)
        return x.T @ dx, dx @ w.T

    layer.defvjp(lambda w, x: (layer(w, x), (w, x, layer(w, x))), backward)

    def step(state, batch):
        loss, grads = jax.value_and_grad(lambda s: (layer(s["b"], layer(s["a"], batch)) ** 2).sum())(state)
        return jax.tree.map(lambda w, g: w - g, state, grads), {"loss": loss}

    state = {name: np.eye(3, dtype=np.float32) for name in "ab"}
    sites = instrument(step, state, np.ones((2, 3), np.float32)).sites
    assert {f"{role}:{name}" for role in ("forward", "grad_in", "grad_wt") for name in "ab"} <= sites.keys()
    assert {site.role for site in sites.values()} == {"forward", "grad_in", "grad_wt"}


def test_gradients_are_paired_though_many_layers_read_one_input():
    def step(state, batch):
        def loss(params):
            q, k, v = (batch["x"] @ params[name] for name in "qkv")
            mixed = jax.nn.softmax(q @ k.T) @ v
            return (mixed @ params["o"]).sum()

        grads = jax.grad(loss)(state)
        return jax.tree.map(lambda w, g: w - g, state, grads), {"loss": 0.0 * grads["o"].sum()}

    state = {name: np.eye(4, dtype=np.float32) for name in "qkvo"}
    program = instrument(step, state, {"x": np.ones((3, 4), np.float32)})
    layers = [site.layer for site in program.sites.values()]
    assert {f"grad_wt:{name}" for name in "qkvo"} | {"forward:q@k", "forward:q@v"} <= program.sites.keys()
    assert {f"grad_{of}:{name}" for of in ("in", "wt") for name in ("q@k", "q@v")} <= program.sites.keys()
    assert not any("#" in name for name in layers)


@pytest.mark.parametrize("make_key", [jax.random.key, jax.random.PRNGKey])
def test_random_numbers_are_no_weight_though_their_key_is_in_the_state(make_key):
    def step(state, batch):
        z = jax.random.normal(state["key"], (3, 2))
        loss, grad = jax.value_and_grad(lambda w: ((w @ z - batch) ** 2).mean())(state["w"])
        return {"w": state["w"] - grad, "key": jax.random.split(state["key"])[0]}, {"loss": loss}

    program = instrument(step, {"w": np.ones((4, 3), np.float32), "key": make_key(0)}, np.ones((4, 2), np.float32))
    assert list(program.sites) == ["forward:w", "grad_wt:w"]
    assert program.sites["forward:w"].parameter == Operand.INPUT


def test_workers_of_a_shard_map_are_struck_one_by_one():
    mesh = jax.make_mesh((1,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    spec = jax.sharding.PartitionSpec

    def local(state, x):
        loss, grad = jax.value_and_grad(lambda w: jax.lax.pmean(((x @ w) ** 2).mean(), "data"))(state["w"])
        return {"w": state["w"] - grad}, {"loss": loss}

    step = jax.shard_map(local, mesh=mesh, in_specs=(spec(), spec("data")), out_specs=spec())
    state, batch = {"w": np.eye(3, dtype=np.float32)}, np.ones((4, 3), np.float32)
    program = instrument(step, state, batch)
    assert [(name, site.axes) for name, site in program.sites.items()] == [
        ("forward:w", ("data",)),
        ("grad_wt:w", ("data",)),
    ]
    assert same_bits(program(inactive_fault(), state, batch)[0], program.reference(state, batch))
    _, struck = program(program.fault("forward:w", "input", (3, 2), flip=1), state, batch)
    assert (int(struck.hits), int(struck.operand_changed)) == (1, 1)


EXAMPLES = ("llama", "flax_linen", "flax_nnx", "equinox", "diffusion", "easydel", "shard_map")
PROVE = """
import sys, jax, numpy as np
from fault_injection.workloads.registry import find_workload
from fault_injection.models.fault import Operand, inactive_fault
from fault_injection.models.site import make_fault
from gallery_names import check
workload = find_workload(sys.argv[1])
program = workload.program()
sites, state = workload.sites(), program.place(program.init())
batch = program.batch(0, 0)
clean, _ = program.faulty_step(state, batch, 0, 0, inactive_fault())  # compared with the reference, bit by bit
workload.program(frozenset([*sites][1::3])).faulty_step(state, batch, 0, 0, inactive_fault())  # and so is this one
struck = 0
for site in sites.values():
    for operand in Operand:
        shape = site.operands[operand].shape
        for at in {0, int(np.prod(shape)) // 2, int(np.prod(shape)) - 1}:
            fault = make_fault(site, operand, workload.workers - 1, [at], keep=np.uint32(2**32 - 1), flip=1)
            _, report = program.faulty_step(state, batch, 0, 0, fault)
            told = jax.device_get(report.struck)
            assert (told.hits, told.operand_changed, told.new[0]) == (1, 1, told.old[0] ^ 1), (site.name, operand)
            struck += 1
new, _ = program.step(program.place(program.init()), batch, 0, 0)
assert all(a.tobytes() == b.tobytes() for a, b in zip(*map(jax.tree.leaves, jax.device_get((clean, new))), strict=True))
print(len(sites), struck, check(program, sites, sys.argv[2]))
"""


# Struck as commands compile them; the others take minutes of that, and compile quickly.
AS_COMMANDS = ("flax_linen", "shard_map")


@pytest.mark.slow
@pytest.mark.parametrize("example", some(EXAMPLES, AS_COMMANDS))
def test_every_site_and_operand_of_an_example_is_struck(example, cache):
    """In a process of its own: one of them needs eight devices."""
    if example in ("equinox", "easydel"):
        pytest.importorskip(example)
    name = f"{ROOT / 'examples' / example / 'my_run.py'}:training"
    path = os.pathsep.join([str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])])
    command = [sys.executable, "-c", PROVE, name, example]
    quickly = {"JAX_DISABLE_MOST_OPTIMIZATIONS": str(int(example not in AS_COMMANDS))}
    environment = os.environ | quickly | {"PYTHONPATH": path}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    sites, struck, gradients = map(int, done.stdout.split())
    assert sites >= 5 and struck >= 6 * sites and gradients >= 2


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="the file sets up eight CPU devices")
def test_a_file_may_set_up_the_devices_as_it_is_imported():
    """`replay` reads the injection, and with it the user's file, before JAX computes."""
    file = ROOT / "examples" / "shard_map" / "fault.csv"
    command = [sys.executable, "-m", "fault_injection", "replay", file, "--check"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "worker 5" in done.stdout


def test_importing_the_package_imports_no_jax():
    there = "print('jax' in sys.modules)"
    code = f"import sys, fault_injection; {there}; fault_injection.instrument; {there}"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout == "False\nTrue\n", done.stderr
