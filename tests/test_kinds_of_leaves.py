"""Leaves of every kind train and are compared; what has bits that a mask reaches is struck, and the rest is named."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from command_line import answer, said

from fault_injection.any_step.own_distance import distance
from fault_injection.any_step.traced_step import flattened
from fault_injection.any_step.training_program import traced_training, training_program
from fault_injection.faults.element_bits import new_bits
from fault_injection.faults.number_formats import format_of
from fault_injection.machine.errors import InputError
from fault_injection.models.bits import host_words, of_host_words, width_of
from fault_injection.models.fault import Operand
from fault_injection.models.overwrite import bits, of_bits, overwritten
from fault_injection.models.site import Site, TensorSpec, make_fault
from fault_injection.runs.golden_run import nudged
from fault_injection.seam.state_faults import left_out_of_targets, state_sites, struck_state

NARROW = ("bool", "int2", "uint2", "int4", "uint4", "float4_e2m1fn", "float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu")
FILE = """
import jax, jax.numpy as jnp, numpy as np
from fault_injection import Measure, Training
KINDS = ("bool", "int4", "uint2", "float8_e5m2", "bfloat16", "int8", "float16")

def batch(epoch, step):
    x = np.random.default_rng([epoch, step]).normal(size=(8, 4)).astype("f4")
    x[0, 0] = 1 if step % 2 else -1
    settings = {"name": "train", "names": np.array(["a", "b"])}
    return {"x": x, "bits": np.ones(3).astype("int4"), "on": np.array(True), **settings}

def init():
    kept = {kind: jnp.asarray(np.ones(3).astype(kind)) for kind in KINDS}
    more = {"spec": jnp.full(3, 1 + 1j), "none": jnp.zeros((0, 4)), "act": "tanh"}
    return {"w": jnp.eye(4), "v": jnp.eye(4), **more, **kept}

def loss_of(state, x, scale=1.0):
    branch = jax.lax.cond(x[0, 0] > 0, lambda: x @ state["v"], lambda: x * 1.0)
    return scale * jnp.mean((branch @ state["w"] * jnp.abs(state["spec"][0]) - 2 * x) ** 2)

def step(state, batch, scale=1.0):
    assert state["act"] == "tanh" and batch["name"] == "train"
    loss, of_w = jax.value_and_grad(lambda w: loss_of(state | {"w": w}, batch["x"], scale))(state["w"])
    new = state | {"w": state["w"] - 0.1 * of_w, "spec": state["spec"] * 0.99j, "bool": ~state["bool"]}
    return new, {"loss": loss}

def training(step=step, batch=batch, init=init, worst=10.0):
    measure = Measure("loss", "lower", chance=10.0, tolerance=0.02, limits=(0.0, worst))
    return Training(init, step, batch, 4, 1, lambda state: {"loss": loss_of(state, batch(9, 0)["x"])}, measure)

def diverging():
    return training(lambda state, batch: step(state, batch, jnp.nan))

def beyond():
    return training(worst=0.001)

def debugging():
    jax.config.update("jax_debug_nans", True)
    return training()

DRAWN = np.random.default_rng(0)
def unseeded():
    return training(batch=lambda epoch, number: batch(epoch, number) | {"x": DRAWN.normal(size=(8, 4)).astype("f4")})

CALLS = []
def other():  # is not the same step whenever it is asked for: JAX traces it twice alike, then otherwise
    def turned(state, batch):
        CALLS.append(1)
        new, told = step(state, batch)
        return new | {"w": new["w"] * (1.0 if len(CALLS) <= 2 else 1.001)}, told
    return training(turned)
"""
FAULT = "model,{file}:{name}\ntarget,{target}\ntarget_epoch,0\ntarget_step,1\ninj_pos,{at}\n{value}\nseed,0\n"


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("own") / "kinds.py"
    path.write_text(FILE)
    return path


@pytest.fixture(scope="module")
def made(file):
    known = {}
    exec(compile(FILE, str(file), "exec"), known)
    return known


@pytest.mark.parametrize("kind", NARROW)
def test_bits_are_as_wide_as_the_type_on_the_host_and_on_a_device(kind):
    words = np.arange(1 << width_of(np.dtype(kind)), dtype=np.uint8)
    elements = of_host_words(words, np.dtype(kind))
    assert elements.dtype == kind and host_words(elements).tolist() == words.tolist()
    assert bits(of_bits(jnp.asarray(words), np.dtype(kind))).tolist() == words.tolist()
    assert format_of(kind).width == width_of(np.dtype(kind)) and format_of(kind).bits([1.0])[0] in words
    site = Site("leaf", "leaf", "state", {Operand.INPUT: TensorSpec((3,), np.dtype(kind))})
    fault = make_fault(site, Operand.INPUT, 0, [1], keep=0xFFFFFFFF, flip=1)
    new, struck = jax.jit(overwritten)(jnp.asarray(elements[:2].repeat(2)[:3]), fault)
    assert int(struck.old[0]) ^ int(struck.new[0]) == struck.operand_changed == 1
    assert bits(new).tolist()[1] == struck.new[0]


def test_a_mask_wider_than_the_type_is_refused():
    for kind, text in ("bool", "02"), ("int4", "10"), ("uint2", "xor:4"):
        with pytest.raises(ValueError, match=r"^$"):
            new_bits(np.dtype(kind)).parse(text)
    assert new_bits(np.dtype("int4")).parse("xor:0f").flip == 15


def test_every_leaf_trains_and_what_cannot_be_struck_is_named(made):
    traced = traced_training(made["training"]())
    program, targets = training_program(traced), state_sites(traced.state)
    assert left_out_of_targets(traced.state) == ["none has no element", "spec consists of complex numbers"]
    assert set(made["KINDS"]) | {"w", "v"} == set(targets)
    state = program.place(program.init())
    _, told = program.step(state, program.batch(0, 0), 0, 0)
    assert np.isfinite(told.magnitude).all() and program.extras.own_step()["leaves_that_differ"] == 0
    for kind in made["KINDS"]:
        fault = make_fault(targets[kind], Operand.INPUT, -1, [2], keep=0xFFFFFFFF, flip=1)
        _, struck = struck_state(program, program.place(program.init()), fault)
        assert struck.operand_changed == 1 and int(struck.old[0]) ^ int(struck.new[0]) == 1
    pairs = zip(*map(jax.tree.leaves, (program.init(), nudged(program, 1))), strict=True)
    assert sum(np.any(a != b) for a, b in pairs) == 1


def test_numbers_of_64_bits_train_and_are_named(made):
    with jax.enable_x64(True):

        def step(state, batch):
            loss, of_w = jax.value_and_grad(lambda w: jnp.sum((batch @ w) ** 2))(state["w"])
            return {"w": state["w"] - 0.1 * of_w}, {"loss": loss}

        plain = made["training"](step, lambda epoch, number: np.ones((2, 4)), lambda: {"w": np.eye(4)})
        program = training_program(traced_training(plain))
        assert left_out_of_targets(program.state) == ["w has 64 bits, more than the 32 of a mask"]
        state, told = program.step(program.place(program.init()), program.batch(0, 0), 0, 0)
        assert jax.tree.leaves(state)[-1].dtype == "float64" and np.isfinite(told.magnitude).all()


def test_a_golden_run_keeps_and_reads_all_of_them(file, tmp_path, capsys):
    path = tmp_path / "fault.csv"
    path.write_text(FAULT.format(file=file, name="training", target="bool", at=0, value="inj_bits,xor:01"))
    found = answer(capsys, "replay", path, "--cache", tmp_path, "--out", tmp_path / "out")
    assert found["outcome"] == "Masked" and found["struck"]
    assert len([*tmp_path.glob("golden/*/checkpoints/*.npz")]) == 2


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("diverging", "the golden run's own loss is nan at epoch 0, step 0"),
        ("beyond", "the metric's limits are 0 and 0.001"),
        ("unseeded", "batch(0, 0) is another one when it is asked for again: it differs in 'x'; seed what is random"),
    ],
)
def test_what_cannot_be_compared_is_refused_in_one_line(file, tmp_path, capsys, name, line):
    code, _, err = said(capsys, "golden", f"{file}:{name}", "--cache", tmp_path)
    assert code == 2 and line in err.splitlines()[-1]


STEPS = {  # a reference, and the user's own step, by what the first differs in
    "nothing": (lambda x: 0.9 * x, lambda x: 0.9 * x),
    "rounding": (lambda x: 0.9 * x, lambda x: np.float32(0.9 * x) * np.float32(1 + 2**-22)),
    "what it computes": (lambda x: 0.9 * x, lambda x: 0.9001 * x),
    "a sine of the last place": (lambda x: np.sin(1e8 * x), lambda x: np.sin(1e8 * (x * np.float32(1 + 2**-22)))),
}


@pytest.mark.parametrize(
    ("differs", "said"),
    [
        ("nothing", "they change no bit of it"),
        ("rounding", "which change its rounding: after 3 steps, 1 of 2 leaves differ by at most"),
        ("what it computes", "'w' is the first leaf that differs by more than rounding explains, by 1.1e-04 of its"),
        ("a sine of the last place", "and rounding decides what this training does: a change in the last place"),
    ],
)
def test_the_distance_from_the_own_step_is_judged_against_twins(differs, said):
    reference, own = (lambda arrays, _, f=f: [arrays[0], np.float32(f(arrays[1]))] for f in STEPS[differs])
    begin = [np.arange(3), np.random.default_rng(0).standard_normal(50, np.float32)]
    told = distance(("n", "w"), lambda arrays: [*(arrays or begin)], reference, own, [None] * 3, digits=23)
    assert said in told["sentence"]
    assert told["alarm"] is told["sentence"].startswith("ALARM") is (differs not in ("nothing", "rounding"))


def test_a_step_that_is_not_the_one_that_was_traced_is_an_alarm(made):
    told = training_program(traced_training(made["other"]())).extras.own_step()
    assert (told["alarm"], told["first_leaf"]) == (True, "w")


def test_jax_debug_flags_end_no_run(file, tmp_path, capsys):
    path = tmp_path / "fault.csv"
    path.write_text(FAULT.format(file=file, name="debugging", target="w", at="2/3", value="inj_bits,7fc00000"))
    try:
        found = answer(capsys, "replay", path, "--cache", tmp_path, "--out", tmp_path / "out")
    finally:
        jax.config.update("jax_debug_nans", False)
    assert found["outcome"] == "Immediate INFs/NaNs"


def test_nothing_struck_stands_with_the_verdict(file, tmp_path, capsys):
    rows = "stage,fwrd_inject\nfmodel,RD\ntarget_worker,0\ntarget_layer,forward:v"
    text = FAULT.format(file=file, name="training", target="", at="2/3", value="inj_bits,7f800000")
    for step, nothing in (2, True), (1, False):
        path = tmp_path / f"fault_{step}.csv"
        path.write_text(text.replace("target,", rows).replace("target_step,1", f"target_step,{step}"))
        code, out, err = said(capsys, "replay", path, "--cache", tmp_path, "--out", tmp_path / str(step))
        assert code == 0, err
        known = json.loads((tmp_path / str(step) / "outcome.json").read_text())
        assert known["struck"] is not nothing
        assert known["rule"].startswith("nothing was struck") is ("nothing was struck" in out) is nothing


def test_what_is_no_number_is_a_setting_of_the_step():
    batch = {"x": np.ones(2), "words": np.array(["a"]), "days": np.array(["2026-11-26"], "M8[D]"), "text": "b"}
    arrays, form = flattened(batch)
    assert len(jax.tree.leaves(arrays)) == 1
    with pytest.raises(InputError, match="the step was traced with"):
        form.arrays(batch | {"words": np.array(["c"])})
