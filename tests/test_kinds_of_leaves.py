"""Leaves of every kind train and are compared; what has bits that a mask reaches is struck, and the rest is named."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import own_steps
import pytest
from command_line import answer, said

from fault_injection.any_step.instrument import instrument
from fault_injection.any_step.own_distance import distance
from fault_injection.any_step.traced_step import flattened
from fault_injection.any_step.traced_training import traced_training
from fault_injection.any_step.training_program import training_program
from fault_injection.faults.element_bits import new_bits
from fault_injection.faults.number_formats import format_of
from fault_injection.machine.errors import InputError
from fault_injection.models.bits import host_words, of_host_words, rewritten, width_of
from fault_injection.models.fault import Operand, inactive_fault
from fault_injection.models.overwrite import bits, of_bits, overwritten
from fault_injection.models.site import Site, TensorSpec, make_fault
from fault_injection.questions.outcomes.sampling import injection_of
from fault_injection.questions.outcomes.store import Store
from fault_injection.runs.golden_checks import Comparable
from fault_injection.runs.golden_run import nudged
from fault_injection.seam.state_faults import left_out_of_targets, state_sites, struck_state
from fault_injection.seam.trees import same_bits
from fault_injection.workloads.registry import find_workload

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

def still():  # forgets to return what it changes
    return training(lambda state, batch: (state, step(state, batch)[1]))

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


OWN_64 = """
import jax
jax.config.update("jax_enable_x64", True)
import jax.numpy as jnp, numpy as np
from fault_injection import Measure, Training

def batch(epoch, step):
    return np.random.default_rng([epoch, step]).normal(size=(6, 4))

def init():
    params = {"w": jnp.eye(4), "v": jnp.eye(4)}
    counts = {"count": jnp.int64(0), "hash": jnp.uint64(2**63 + 5), "seen": jnp.int32(0)}
    return {"params": params, "mu": jax.tree.map(jnp.zeros_like, params), **counts}

def loss_of(params, x):
    turned, _ = jax.lax.scan(lambda h, _: (jnp.tanh(h @ params["w"]), None), x, None, length=2)
    return jnp.mean((turned @ params["v"] - 2 * x) ** 2)

def step(state, x):
    loss, grads = jax.value_and_grad(loss_of)(state["params"], x)
    mu = jax.tree.map(lambda m, g: 0.9 * m + g, state["mu"], grads)
    params = jax.tree.map(lambda p, m: p - 0.01 * m, state["params"], mu)
    return state | {"params": params, "mu": mu, "count": state["count"] + 1}, {"loss": loss}

def training():
    measure = Measure("loss", "lower", chance=10.0, tolerance=0.02, limits=(0.0, 100.0))
    return Training(init, step, batch, 4, 2, lambda state: {"loss": loss_of(state["params"], batch(9, 0))}, measure)
"""
OPERATION = "stage,fwrd_inject\nfmodel,{model}\ntarget_worker,0\ntarget_layer,forward:params/w"
STRUCK_64 = {  # by what is struck: rows, where, what it becomes, and what differs of old and new bits
    "an output": (OPERATION.format(model="RD"), "1/5/3", "inj_values,0.1234567890123456789", None),
    "a weight": (OPERATION.format(model="WT"), "1/2/3,0/0/0", f"inj_bits,xor:{1 << 62:x},xor:{1 << 63:x}", [62, 63]),
    "a leaf": ("target,params/w", "0/0,1/1", f"inj_bits,xor:{1 << 63:x},xor:1", [63, 0]),
    "a count": ("target,count", "0", f"inj_bits,xor:{1 << 62:x}", [62]),
    "an unsigned number": ("target,hash", "0", f"inj_bits,clear:{1 << 63:x}", [63]),
    "a checkpoint": (
        "target,checkpoint/state/float64/1",
        "3,40",
        f"inj_bits,xor:{1 << 62:x},xor:{1 << 63:x}",
        [62, 63],
    ),
}


@pytest.fixture(scope="module")
def file_64(tmp_path_factory):
    path = tmp_path_factory.mktemp("own") / "own_64.py"
    path.write_text(OWN_64)
    return path


@pytest.fixture
def own_64(file_64):
    jax.config.update("jax_enable_x64", True)  # as the file does when it is first read
    yield file_64
    jax.config.update("jax_enable_x64", False)


def written(path, own, rows, at, becomes):
    path.write_text(f"model,{own}:training\n{rows}\ntarget_epoch,1\ntarget_step,0\ninj_pos,{at}\n{becomes}\nseed,0\n")
    return path


def test_numbers_of_64_bits_are_struck_in_replays(own_64, tmp_path, capsys):
    assert not find_workload(f"{own_64}:training").remarks()
    for what, (rows, at, becomes, differ) in STRUCK_64.items():
        path, out = written(tmp_path / "fault.csv", own_64, rows, at, becomes), tmp_path / what
        answer(capsys, "replay", path, "--cache", own_64.parent, "--out", out)
        told = json.loads((out / "provenance.json").read_text())["struck"]
        old, new = ([int(bits, 16) for bits in told[when]] for when in ("old_bits", "new_bits"))
        changed = [a ^ b for a, b in zip(old, new, strict=True)]
        assert told["elements_changed"] == sum(map(bool, changed)) > 0
        if differ is None:
            assert new == [np.float64(0.1234567890123456789).view(np.uint64)] and told["new"] == [0.12345678901234568]
        else:
            assert changed == [1 << bit for bit in differ]


@pytest.mark.parametrize(
    ("target", "at", "value", "line"),
    [
        ("params/w", "0/0", "1e400", "at most 1.7976931e308 in size (or inf)"),
        ("params/w", "0/0", "1e-400", "at least 4.9e-324 in size (or 0)"),
        ("count", "0", str(2**53 + 1), "expected whole numbers from -9007199254740991 to 9007199254740991"),
        ("hash", "0", "-1", "expected whole numbers from 0 to 9007199254740991"),
    ],
)
def test_a_value_that_a_cell_cannot_say_is_refused(own_64, tmp_path, capsys, target, at, value, line):
    path = written(tmp_path / "fault.csv", own_64, f"target,{target}", at, f"inj_values,{value}")
    code, _, err = said(capsys, "replay", path, "--cache", tmp_path)
    assert code == 2 and line in err


def test_a_strike_of_64_bits_equals_a_step_modified_by_hand():
    with jax.enable_x64(True):
        state, batch = jax.tree.map(np.float64, own_steps.small_state()), np.float64(own_steps.IMAGES)
        program = instrument(own_steps.small_step(own_steps.plain(own_steps.SMALL)), state, batch)
        assert same_bits(program(inactive_fault(mask=np.uint64), state, batch)[0], program.reference(state, batch))
        word = int(state["fc"][7, 3].view(np.uint64))
        for bit in (0, 31, 32, 62, 63):
            hand = own_steps.by_hand(own_steps.SMALL, "forward:fc", "weight", (7, 3), np.uint64(word ^ 1 << bit))
            found, struck = program(program.fault("forward:fc", "weight", (7, 3), flip=1 << bit), state, batch)
            assert (int(struck.old[0]), int(struck.new[0])) == (word, word ^ 1 << bit)
            assert same_bits(found, jax.jit(own_steps.small_step(hand))(state, batch))


PLAN_64 = """
workload = "{own}:training"
[faults]
experiments = 8
stages = [{stages}]
[faults.models]
{model} = 1
[run]
exit = "exact"
"""


@pytest.mark.parametrize(("stages", "model"), [('"forward", "backward"', "RD"), ('"state"', "FLIPS_1")])
def test_numbers_of_64_bits_are_struck_in_campaigns(own_64, tmp_path, capsys, stages, model):
    plan = tmp_path / "plan.toml"
    plan.write_text(PLAN_64.format(own=own_64, stages=stages, model=model))
    answer(capsys, "campaign", plan, "--out", tmp_path / "out", "--cache", own_64.parent, "--jobs", "1")
    with Store(tmp_path / "out") as store:
        rows = [*store.query("SELECT number, old_bits, new_bits FROM experiments")]
        faults = [injection_of(store.plan(), number).fault() for number in range(8)]
    assert len(rows) == 8 and any(bits < 0 for _, *each in rows for bits in each)  # signed, as SQLite's numbers are
    for number, *each in rows:
        old, new = np.array(each, np.int64).view(np.uint64)
        assert new == rewritten(old, faults[number].keep[0], faults[number].flip[0])


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
        ("still", "the golden run's step leaves the whole state as it was at epoch 0, step 1: a step returns what it"),
        ("unseeded", "batch(0, 0) is another one when it is asked for again: it differs in 'x'; seed what is random"),
    ],
)
def test_what_cannot_be_compared_is_refused_in_one_line(file, tmp_path, capsys, name, line):
    code, _, err = said(capsys, "golden", f"{file}:{name}", "--cache", tmp_path)
    assert code == 2 and line in err.splitlines()[-1]


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("diverging", "the golden run's own loss is nan at epoch 0, step 0"),
        ("still", "the golden run's step leaves the whole state as it was at epoch 0, step 1"),
    ],
)
def test_a_golden_run_that_was_kept_before_it_was_looked_at_is_refused_when_it_is_read(
    file, tmp_path, capsys, monkeypatch, name, line
):
    for asked in ("after_step", "after_epoch"):
        monkeypatch.setattr(Comparable, asked, lambda *told: None)
    code, _, err = said(capsys, "golden", f"{file}:{name}", "--cache", tmp_path)
    assert [*tmp_path.glob("golden/*/records/*.npz")]  # it was made
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
