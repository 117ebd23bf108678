"""Defect profiles: what a rule strikes is what NumPy finds in the operands, wherever the strike is made.

The oracle of this file is written for numbers and for Python's integers, not for masks on a device.
"""

# Above 400 lines: one oracle says what is struck, wherever the strike is made.

import dataclasses
import importlib.util
import json
import math
import pathlib

import jax
import jax.numpy as jnp
import ml_dtypes
import momentum_training
import numpy as np
import pytest
from command_line import said

from fault_injection import instrument
from fault_injection.faults.injection_file import format_injection, parse_injection
from fault_injection.faults.number_formats import format_of
from fault_injection.faults.profiles.profile import DefectProfile, Error
from fault_injection.faults.profiles.reader import find_profile, parse_profile, shipped
from fault_injection.faults.scaling import scale
from fault_injection.faults.schedule import Schedule
from fault_injection.machine.errors import InputError
from fault_injection.models.fault import Operand, inactive_fault
from fault_injection.models.layer import Context
from fault_injection.models.operations.product import Dense, DenseGradWt
from fault_injection.models.overwrite import fault_of, overwrite, struck_of, words_of
from fault_injection.models.rule import StrikeRule, at_strike
from fault_injection.models.site import Site, TensorSpec, ruled_fault
from fault_injection.models.strike import perform
from fault_injection.questions.outcomes.plan_file import parse_plan
from fault_injection.questions.outcomes.sampling import choose, draw_experiment
from fault_injection.runs.steps import Address
from fault_injection.runs.strikes import Strike, faults_of_steps
from fault_injection.workloads.registry import find_workload

pytestmark = pytest.mark.usefixtures("compiled_quickly")

ROOT = pathlib.Path(__file__).parents[1]
OWN = f"{momentum_training.__file__}:training"
FORMATS = ("float32", "bfloat16", "float16", "float8_e4m3fn")
MOST = 2**32


# ---- The oracle ----------------------------------------------------------------------------


def spread(position, seed):
    """`fmix32` of MurmurHash3 by Python's integers."""
    h = (position * 0x9E3779B9 + seed) % MOST
    h = ((h ^ (h >> 16)) * 0x85EBCA6B) % MOST
    h = ((h ^ (h >> 13)) * 0xC2B2AE35) % MOST
    return h ^ (h >> 16)


def bits_of(array):
    return array.view(f"u{array.dtype.itemsize}")


def erring(profile, draw, site, tensor, turn=0):
    """The tensor as the device of a profile makes it, and which elements it strikes: element by element, in numbers."""
    rule = StrikeRule(
        *profile.rule(site, draw).tolist()
    )  # lane, seed and masks that were drawn; what is said is not read
    flat = np.array(tensor).reshape(-1)
    with np.errstate(all="ignore"):
        size = np.abs(flat.astype(np.float64))
    tiny = 2 * float(ml_dtypes.finfo(flat.dtype).smallest_normal)
    struck, new = np.zeros(flat.size, bool), flat.copy()
    for at, magnitude in enumerate(size.tolist()):
        inside = magnitude >= profile.least if profile.below is None else profile.least <= magnitude < profile.below
        if math.isnan(magnitude):  # above all numbers
            inside = profile.below is None
        if profile.error.relative:
            inside = inside and tiny <= magnitude < math.inf
        lane = at % rule.period == rule.phase
        lucky = spread(at, (rule.seed + turn) % MOST) / MOST < profile.elements
        struck[at] = inside and lane and lucky
        if not struck[at]:
            continue
        if profile.error.relative:
            with np.errstate(all="ignore"):
                new[at] = (flat[at].astype(np.float32) * np.float32(1 + profile.error.relative)).astype(flat.dtype)
        elif profile.error.neighbour:
            new[at] = flat[(at + profile.error.neighbour) % flat.size]
        elif profile.error.set is not None:
            new[at] = np.array(profile.error.set).astype(flat.dtype)
        else:
            word = (int(bits_of(flat)[at]) & rule.keep) ^ rule.flip
            bits_of(new)[at] = word % (1 << (8 * flat.dtype.itemsize))
    return new.reshape(np.shape(tensor)), struck


def profile_of(error, **changes):
    return DefectProfile("test", "What.", "Who.", "What not.", error, **changes)


PROFILES = {
    "bits in a band": profile_of(Error(xor=("mantissa 1", "sign")), least=0.5, below=2.0),
    "a number in a lane": profile_of(Error(set=3.0), periods=(7,)),
    "zero in a share": profile_of(Error(set=0.0), elements=0.3),
    "a relative error": profile_of(Error(relative=0.25), least=0.1),
    "a small relative error of all": profile_of(Error(relative=-0.01)),
    "a neighbour": profile_of(Error(neighbour=3), periods=(2,), phase=1),
    "a neighbour before": profile_of(Error(neighbour=-5), below=1.0),
    "a drawn stuck bit": profile_of(Error(values="stuck", bits=("exponent 2",)), periods=(3, 5)),
    "as measured": profile_of(Error(values="measured"), periods=(2, 4, 8, 16)),
    "an exponent, infinities and NaN too": profile_of(Error(xor=("exponent 3",)), least=1.0),
    "nothing": profile_of(Error(set=1.0), least=3.0, below=3.0 + 1e-9),
}


def site_of(shapes, dtype, stage="forward", name="fc"):
    return Site(
        name, name, stage, {o: TensorSpec(tuple(s), np.dtype(dtype)) for o, s in zip(Operand, shapes, strict=True)}
    )


def numbers(shape, dtype, seed=0):
    """Numbers of all magnitudes, zeros of both signs, subnormal ones, infinities and NaN among them."""
    rng = np.random.default_rng(seed)
    with np.errstate(all="ignore"):
        found = (rng.standard_normal(shape) * 2.0 ** rng.integers(-8, 9, shape)).astype(dtype)
    flat, info = found.reshape(-1), ml_dtypes.finfo(dtype)
    odd = [
        0.0,
        -0.0,
        float(info.smallest_subnormal),
        float(info.smallest_normal),
        float(info.max),
        np.nan,
        np.inf,
        0.5,
        2.0,
    ]
    flat[: 3 * len(odd)] = np.array(odd * 3).astype(dtype)
    return found


@pytest.mark.parametrize("dtype", FORMATS)
def test_every_rule_strikes_what_the_oracle_finds_and_none_compiles_anew(dtype):
    tensor = numbers((12, 25), dtype)
    site, traces = site_of([(12, 25)] * 3, dtype), []

    @jax.jit
    def strike(fault):
        traces.append(fault)
        return overwrite((jnp.zeros(3, dtype), jnp.asarray(tensor), jnp.ones((), dtype)), fault)

    struck_any = 0
    for profile in PROFILES.values():
        profile = dataclasses.replace(profile, operand=Operand.WEIGHT)
        for draw in range(3):
            expected, struck = erring(profile, draw, site, tensor)
            fault = ruled_fault(site, Operand.WEIGHT, 0, profile.rule(site, draw))
            (first, found, last), told = strike(fault)
            np.testing.assert_array_equal(bits_of(np.asarray(found)), bits_of(expected))
            assert not first.any() and last == 1  # those that are not named
            count, at = np.asarray(told.matched).tolist()
            assert count == struck.sum()
            if count:
                assert at == struck.argmax()
                words = [int(bits_of(one).reshape(-1)[at]) for one in (tensor, expected)]
                assert [int(told.old[0]), int(told.new[0])] == words
            struck_any += count > 0
            inactive = dataclasses.replace(fault, index=np.array([-1], np.int32))
            assert not strike(inactive)[1].matched.any()
    assert len(traces) == 1 and struck_any >= 20


def test_integers_are_never_struck():
    site = site_of([(4,)] * 3, "float32")
    fault = ruled_fault(site, Operand.INPUT, 0, PROFILES["zero in a share"].rule(site, 0))
    (found,), told = overwrite((jnp.arange(4),), fault)
    assert found.tolist() == [0, 1, 2, 3] and not told.matched.any()


def test_words_carry_a_rule_and_what_it_did():
    site = site_of([(4, 3)] * 3, "float32")
    fault = ruled_fault(site, Operand.OUTPUT, 1, PROFILES["a relative error"].rule(site, 5))
    again = fault_of(words_of(fault))
    assert all(np.array_equal(getattr(again, name), getattr(fault, name)) for name in vars(fault))
    told = overwrite((jnp.ones(3), jnp.ones(3), jnp.ones((4, 3))), fault)[1]
    assert struck_of(words_of(fault, told)).matched.tolist() == [12, 0]
    assert fault_of(words_of(inactive_fault(64))).rule is None and fault_of(words_of(inactive_fault())).rule is None


# ---- Strikes of both engines ---------------------------------------------------------------


@pytest.mark.parametrize("dtype", ("float32", "bfloat16"))
@pytest.mark.parametrize("operation, stage", [(Dense(), "forward"), (DenseGradWt(), "backward")])
def test_an_explicit_operation_is_struck_as_the_oracle_says(operation, stage, dtype):
    """The struck worker's result is that of the operands that the oracle makes; the other worker's stays."""
    rng = np.random.default_rng(1)
    shapes = [(2, 8, 6), (6, 5) if stage == "forward" else (2, 8, 5)]
    a, b = (jnp.asarray(rng.standard_normal(shape), dtype) for shape in shapes)

    @jax.jit
    def run(fault):
        watch = frozenset({"operands"})
        ctx = Context(jax.random.key(0), jnp.arange(2), fault=fault, supported=frozenset({"fc"}), observe=watch)
        y, seen = perform(operation, "fc", a, b, ctx)
        return y, seen.struck, seen.tensors["operands"]["fc"]

    _, _, captured = run(inactive_fault(ruled=True))
    captured = {name: np.asarray(tensor) for name, tensor in captured.items()}
    site = site_of([captured[operand.name.lower()][1].shape for operand in Operand], dtype, stage)
    for name in ("bits in a band", "a relative error", "a neighbour", "zero in a share", "nothing"):
        for operand in Operand:
            profile = dataclasses.replace(PROFILES[name], operand=operand)
            mine = {one: captured[one.name.lower()][1] for one in Operand}
            expected, struck = erring(profile, 0, site, mine[operand])
            _, told, faulty = run(ruled_fault(site, operand, 1, profile.rule(site, 0)))
            assert int(told.matched[0]) == struck.sum() and int(told.hits) == bool(struck.any())
            assert int(told.operand_changed) == np.sum(bits_of(expected) != bits_of(mine[operand]))
            if operand == Operand.OUTPUT:
                result = np.asarray(faulty["output"])
                if stage == "forward":  # the sum over the workers has each worker's part in it
                    np.testing.assert_array_equal(bits_of(result[1]), bits_of(expected))
                    np.testing.assert_array_equal(bits_of(result[0]), bits_of(captured["output"][0]))
            elif not struck.any():
                assert int(told.output_changed) == 0


def product_step(dtype):
    """A step whose metrics are the operands of its forward product and of the gradient of its weight."""

    def step(state, batch):
        x, c = batch

        def loss(w):
            y = x @ w
            return jnp.sum((y * c).astype(jnp.float32)), y

        gradient, y = jax.grad(loss, has_aux=True)(state["w"])
        return {"w": state["w"] - gradient}, {"x": x, "w": state["w"], "y": y, "c": c, "gradient": gradient}

    rng = np.random.default_rng(2)
    x, c, w = (jnp.asarray(rng.standard_normal(shape), dtype) for shape in ((16, 12), (16, 10), (12, 10)))
    return step, {"w": w}, (x, c)


@pytest.mark.parametrize("dtype", ("float32", "bfloat16"))
def test_a_step_of_ones_own_is_struck_as_the_oracle_says(dtype):
    step, state, batch = product_step(dtype)
    run = instrument(step, state, batch)
    clean = {name: np.asarray(value) for name, value in run(inactive_fault(ruled=True), state, batch)[0][1].items()}
    results = {"forward": "y", "backward": "gradient"}
    struck_any = 0
    for site in run.sites.values():
        for name in ("bits in a band", "a relative error", "a neighbour", "zero in a share", "as measured", "nothing"):
            profile = PROFILES[name]
            told_of = clean[results[site.stage]]
            transposed = site.shapes[Operand.OUTPUT] != told_of.shape  # JAX writes the gradient's product either way
            operand = told_of.T if transposed else told_of
            expected, struck = erring(profile, 0, site, np.ascontiguousarray(operand))
            (_, metrics), told = run(ruled_fault(site, Operand.OUTPUT, 0, profile.rule(site, 0)), state, batch)
            faulty = np.asarray(metrics[results[site.stage]])
            np.testing.assert_array_equal(
                bits_of(np.ascontiguousarray(faulty.T if transposed else faulty)), bits_of(expected)
            )
            assert np.asarray(told.matched)[0] == struck.sum() and int(told.hits) == bool(struck.any())
            assert int(told.operand_changed) == np.sum(bits_of(expected) != bits_of(np.ascontiguousarray(operand)))
            struck_any += bool(struck.any())
        inputs = [(Operand.INPUT, n) for n in ("x", "c") if clean[n].shape == site.shapes[Operand.INPUT]]
        for operand, name in inputs:
            profile = dataclasses.replace(PROFILES["bits in a band"], operand=operand)
            expected, struck = erring(profile, 0, site, clean[name])
            told = run(ruled_fault(site, operand, 0, profile.rule(site, 0)), state, batch)[1]
            assert np.asarray(told.matched)[0] == struck.sum() > 0
    assert struck_any >= 8 and {site.stage for site in run.sites.values()} == {"forward", "backward"}


def test_in_a_loop_each_turn_is_looked_at():
    def step(state, batch):
        def turn(x, _):
            y = x @ state["w"]
            return jnp.tanh(y), y

        last, each = jax.lax.scan(turn, batch, None, length=4)
        return {"w": state["w"] + 0 * last.sum()}, {"each": each}

    rng = np.random.default_rng(3)
    w, x = (jnp.asarray(rng.standard_normal(shape), jnp.float32) for shape in ((6, 6), (5, 6)))
    run = instrument(step, {"w": w}, x)
    (site,) = run.sites.values()
    one = dataclasses.replace(site, operands={o: TensorSpec((5, 6), s.dtype) for o, s in site.operands.items()})
    profile = profile_of(Error(set=0.0), elements=0.3)
    (_, metrics), told = run(ruled_fault(site, Operand.OUTPUT, 0, profile.rule(site, 0)), {"w": w}, x)
    zeros = [np.asarray(y) == 0 for y in metrics["each"]]
    expected = [erring(profile, 0, one, np.ones((5, 6), np.float32), turn)[1].reshape(5, 6) for turn in range(4)]
    np.testing.assert_array_equal(zeros, expected)
    assert np.asarray(told.matched).tolist() == [np.sum(expected), int(np.argmax(np.ravel(expected)))]
    assert any((a != b).any() for a, b in zip(expected[1:], expected[:-1], strict=True)) and int(told.hits) == 1


# ---- How often, and how long ---------------------------------------------------------------


def test_what_grows_reaches_its_share_and_chance_is_drawn_anew():
    site = site_of([(100, 100)] * 3, "float32")
    profile = profile_of(Error(set=0.0), elements=0.8, growing=4, schedule=Schedule(every=1))
    fault = ruled_fault(site, Operand.OUTPUT, 0, profile.rule(site, 0))
    strike = Strike(site, fault, Address(0, 0), profile.schedule)
    steps = faults_of_steps([strike], {Address(0, number): (0,) for number in range(6)})
    ones, seen = jnp.ones((100, 100)), []
    for at in sorted(steps):
        seen.append(np.asarray(overwrite((ones, ones, ones), steps[at][0])[0][2]) == 0)
    np.testing.assert_allclose([one.mean() for one in seen], [0.2, 0.4, 0.6, 0.8, 0.8, 0.8], atol=0.02)
    assert np.mean(seen[4] & seen[5]) == pytest.approx(0.64, abs=0.02)  # independent
    assert not np.array_equal(at_strike(fault.rule, 0), at_strike(fault.rule, 1))


# ---- Files ---------------------------------------------------------------------------------

GOOD = 'summary = "What."\nsource = "Who."\ninferred = "What not."\n'


@pytest.mark.parametrize("name", shipped())
def test_a_shipped_profile_says_whose_it_is_and_strikes_something(name):
    profile = find_profile(name)
    assert min(len(text) for text in (profile.summary, profile.source, profile.inferred)) > 10
    assert profile.matching(find_workload(OWN))


@pytest.mark.parametrize(
    "text, wrong",
    [
        ("x = ", "not TOML"),
        ("[error]\nset = 1", "summary: expected a sentence"),
        (GOOD, "error: found none; expected one of xor"),
        (f"{GOOD}[error]\nset = 1\nrelative = 0.1", "error: found set and relative"),
        (f"{GOOD}[error]\nset = 1\n[elements]\nleats = 1", "elements.leats: unknown key; did you mean 'least'?"),
        (f"{GOOD}[error]\nset = 1\n[elements]\nleast = 2\nbelow = 1", "elements.below: 1; expected more than least"),
        (f"{GOOD}[error]\nset = 1\n[elements]\nperiod = [4, 2]\nphase = 3", "elements.phase: 3; expected"),
        (f"{GOOD}[error]\nset = 1\n[elements]\nshare = 0", "elements.share: 0; expected more"),
        (f"{GOOD}[error]\nset = 1\n[operations]\nformats = ['int32']", "operations.formats: 'int32'; expected"),
        (f"{GOOD}[error]\nset = 1\n[operations]\npasses = ['update']", "operations.passes: 'update'; expected"),
        (f"{GOOD}[error]\nset = 1\n[time]\nschedule = 'often'", "time.schedule: 'often'; expected once"),
        (f"{GOOD}[error]\nxor = ['bit 3']", "error.xor: 'bit 3'; expected roles"),
        (f"{GOOD}[error]\nmask = '0'", "error.mask: '0'; expected hexadecimal"),
        (f"{GOOD}[error]\nrelative = 0", "error.relative: 0; expected"),
        (f"{GOOD}[error]\nneighbour = 0", "error.neighbour: 0 positions on"),
        (f"{GOOD}[error]\nset = 1\nbits = ['sign']", "error.bits: belongs to values"),
        (f"{GOOD}[error]\nxor = ['mantissa 1', 'mantissa 1']", "error.xor: 'mantissa 1' stands there twice"),
        (f"{GOOD}[error]\nvalues = 'stuck'\nbits = ['sign', 'sign']", "error.bits: 'sign' stands there twice"),
        (f"{GOOD}[error]\nset = {10**400}", "error.set: 1000"),
        (f"{GOOD}[error]\nset = 1\n[elements]\nleast = {10**400}", "elements.least: 1000"),
        (f"{GOOD}[error]\nset = 1\n[operations]\nformats = ['f4']", "operations.formats: 'f4'; expected"),
        (f"{GOOD}[error]\nset = 1\n[time]\nschedule = 'probability 0.1 as device 3'", "leave out 'as device"),
    ],
)
def test_a_mistake_in_a_profile_gets_one_line(text, wrong):
    with pytest.raises(InputError) as error:
        parse_profile(text, "x", "x.toml")
    assert wrong in str(error.value) and str(error.value).startswith("x.toml") and "\n" not in str(error.value)


FILE = f"""\
model,{OWN}
profile,sdc_band
target_worker,0
target_layer,forward:params/fc1
target_epoch,1
target_step,2
seed,1
"""


@pytest.mark.parametrize(
    "change, wrong",
    [
        (("sdc_band", "sdc_bond"), "unknown defect profile 'sdc_bond'; did you mean 'sdc_band'?"),
        (("seed,1", "seed,1\ninj_pos,0/1"), "inj_pos does not go with the row profile"),
        (("seed,1", "seed,1\nfmodel,RD"), "fmodel does not go with the row profile"),
        (("target_layer,forward:", "target,"), "target does not go with the row profile"),
        (("sdc_band", "sdc_band,x"), "profile takes a name and perhaps a number"),
        (("target_worker,0\n", ""), "names no worker; expected a row 'target_worker,…'"),
        (("target_worker,0", "target_worker,1"), "target_worker 1 is not among"),
        (("forward:params/fc1", "forward:params/fc9"), "is not a site of"),
        (("sdc_band", "near_infinity"), None),
    ],
)
def test_a_mistake_in_a_file_with_a_profile_gets_one_line(change, wrong):
    if wrong is None:
        parse_injection(FILE.replace(*change))
        return
    with pytest.raises(InputError, match=r"x\.csv") as error:
        parse_injection(FILE.replace(*change), "x.csv")
    assert wrong in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    "number, dtype, why",
    [
        (1e30, "float32", None),
        (1e30, "bfloat16", None),
        (1e30, "float16", "the profile sets 1e+30; expected a float16, at most 65504 in size"),
        (1e30, "float8_e4m3fn", "expected a float8_e4m3fn, at most 448 in size"),
        (1e-60, "float32", "at least 1.4e-45 in size (or 0)"),
        (math.inf, "float8_e4m3fn", "has no infinities"),
        (math.nan, "float8_e4m3fn", None),
        (math.nan, "float4_e2m1fn", "a float4_e2m1fn has no NaN"),
        (0.0, "float8_e5m2fnuz", "has its NaN in place of -0"),
        (0.0, "float8_e8m0fnu", "has no sign"),
    ],
)
def test_what_a_format_does_not_hold_is_not_set(number, dtype, why):
    site = Site("a", "a", "forward", dict.fromkeys(Operand, TensorSpec((8,), np.dtype(dtype))))
    found = profile_of(Error(set=number)).refuses(site, find_workload(OWN))
    assert found is None if why is None else why in found


@pytest.mark.parametrize("dtype", ["float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e4m3fn", "float8_e5m2", "bfloat16"])
def test_what_is_drawn_as_finite_is_finite(dtype):
    drawn = format_of(dtype).finite(np.random.default_rng(0), (20_000,))
    assert np.isfinite(format_of(dtype).values(drawn).astype(float)).all()


@pytest.mark.parametrize("stage", ["state", "gradient", "update"])
def test_a_profile_does_not_strike_leaves_and_says_so(stage):
    text = f"workload = 'resnet18'\n[faults]\nexperiments = 8\nprofile = 'sdc_all'\nstages = ['{stage}']\n"
    with pytest.raises(InputError, match=r"strikes none of the .* and this is none"):
        parse_plan(text + "schedule = 'once'\n[run]\nexit = 'exact'\n")


def test_each_experiment_of_a_plan_has_a_chance_of_its_own_and_its_file_says_so():
    """Of one schedule for all experiments no interval would cover."""
    rows = "experiments = 6\nprofile = 'sdc_band'\nschedule = 'probability 0.3'\n[run]\nexit = 'exact'\n"
    plan = parse_plan(f"workload = '{OWN}'\n[faults]\n{rows}")
    found = []
    for number in range(6):
        choice = choose(plan, draw_experiment(plan, number))
        injection = choice.injection(plan)
        assert parse_injection(format_injection(injection)) == injection
        strike = choice.strike(plan.schedule)
        assert strike.schedule == injection.schedule
        found.append(tuple(strike.schedule.times(200, seed=1)))
    assert len({*found}) == 6
    with pytest.raises(InputError, match="each experiment is a device of its own"):
        parse_plan(f"workload = '{OWN}'\n[faults]\n{rows.replace('0.3', '0.3 as device 2')}")


def test_an_operation_that_a_profile_does_not_strike_is_refused():
    text = FILE.replace("sdc_band", "near_infinity").replace("forward:params/fc1", "grad_wt:params/fc1")
    with pytest.raises(InputError, match="does not strike grad_wt:params/fc1: it is of the backward pass"):
        parse_injection(text)


def test_a_file_reads_as_it_was_written_and_without_an_operation_has_all_that_match():
    for text in (FILE, FILE.replace("sdc_band", "sdc_band,7") + "schedule,once\n"):
        injection = parse_injection(text)
        assert parse_injection(format_injection(injection)) == injection
    every = parse_injection(FILE.replace("target_layer,forward:params/fc1\n", ""))
    sites = find_profile("sdc_band").matching(every.workload)
    assert {one.layer for one in every.every} == set(sites) and len(sites) > 1
    assert parse_injection(format_injection(every)) == every


# ---- Commands ------------------------------------------------------------------------------

NONE = GOOD + "[elements]\nleast = 1e20\nbelow = 1e30\n[error]\nset = 0\n"


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("profiles")
    (folder / "none.toml").write_text(NONE)
    (folder / "file.csv").write_text(FILE)
    (folder / "none.csv").write_text(FILE.replace("sdc_band", str(folder / "none.toml")))
    (folder / "plan.toml").write_text(
        f"workload = '{OWN}'\n[faults]\nexperiments = 8\nprofile = ['{folder / 'none.toml'}', 'sdc_band']\n"
        "schedule = 'once'\n[run]\nexit = 'exact'\n"
    )
    return folder


def test_that_nothing_was_struck_is_said_with_the_verdict(place, capsys):
    cache = str(place / "cache")
    code, out, _ = said(capsys, "replay", place / "none.csv", "--out", place / "none", "--cache", cache)
    assert code == 0 and "Masked: nothing was struck: no element fitted the profile" in out
    known = json.loads((place / "none" / "outcome.json").read_text())
    assert known["struck"] is False and known["rule"].startswith("nothing was struck")
    assert (
        "no element of this step's operand fits it, so nothing was struck"
        in (json.loads((place / "none" / "provenance.json").read_text())["fault"])
    )
    assert "nothing was struck" in said(capsys, "results", place / "none")[1]
    code, out, _ = said(capsys, "replay", place / "file.csv", "--out", place / "band", "--cache", cache)
    assert code == 0 and "nothing was struck" not in out
    told = json.loads((place / "band" / "provenance.json").read_text())["struck"]
    assert told["elements"] > 1 and told["profile"]["below"] == 1.0


def test_what_was_struck_stands_at_the_step_that_struck_it(place, capsys):
    """Of a fault that lasts the first step struck may be a later one than the first that it names."""
    rare = place / "rare.toml"
    rare.write_text(f"{GOOD}[error]\nset = 0.5\n[elements]\nshare = 0.0003\n[time]\nschedule = 'permanent'\n")
    (place / "rare.csv").write_text(FILE.replace("sdc_band", str(rare)))
    out, cache = place / "rare", str(place / "cache")
    assert said(capsys, "replay", place / "rare.csv", "--out", out, "--cache", cache)[0] == 0
    known = json.loads((out / "provenance.json").read_text())
    at = known["struck"]["epoch"], known["struck"]["step"]
    assert at > (1, 2) and known["struck"]["elements"] > 0
    assert f"nothing was struck before epoch {at[0]}, step {at[1]}; there" in known["fault"]
    lines = (out / "replay_rare.txt").read_text().splitlines()
    (place_of,) = [number for number, line in enumerate(lines) if line.startswith("Position is")]
    assert lines[place_of + 1].startswith(f"Epoch: {at[0]}/3, step: {at[1]}/")


def test_a_campaign_says_how_often_nothing_was_struck_and_its_experiments_are_files(place, capsys):
    cache = str(place / "cache")
    code, _, err = said(capsys, "campaign", place / "plan.toml", "--out", place / "c", "--cache", cache, "--jobs", "1")
    assert code == 0, err
    found = json.loads(said(capsys, "status", place / "c", "--json")[1])
    plan = parse_plan((place / "plan.toml").read_text(), place / "plan.toml")
    never = sum(draw_experiment(plan, number).model.name.endswith("none.toml") for number in range(8))
    assert 0 < never <= found["nothing_struck"] <= found["outcomes"]["Masked"]["found"]
    assert f"nothing struck in {found['nothing_struck']}" in said(capsys, "status", place / "c")[1]
    assert said(capsys, "report", place / "c")[0] == 0
    text = (place / "c" / "report.html").read_text()
    assert f"in {found['nothing_struck']} of them nothing was struck" in text
    for number in range(8):
        choice = choose(plan, draw_experiment(plan, number))
        injection = choice.injection(plan)
        again = parse_injection(format_injection(injection))
        assert again == injection
        np.testing.assert_array_equal(words_of(again.fault()), words_of(choice.fault))


def test_a_file_is_exported_only_while_it_names_what_struck(place, tmp_path, capsys):
    own, plan, cache = tmp_path / "own.toml", tmp_path / "plan.toml", str(place / "cache")
    own.write_text(f"{GOOD}[error]\nset = 0.5\n")
    plan.write_text(f"workload = '{OWN}'\n[faults]\nexperiments = 2\nprofile = '{own}'\n[run]\nexit = 'exact'\n")
    assert said(capsys, "campaign", plan, "--out", tmp_path / "c", "--cache", cache, "--jobs", "1")[0] == 0
    assert said(capsys, "export", tmp_path / "c", "--id", "0", "1")[0] == 0
    text = (tmp_path / "c" / "export" / "experiment_1.csv").read_text()
    own.write_text(f"{GOOD}[error]\nset = 0.25\n")
    code, _, err = said(capsys, "export", tmp_path / "c", "--id", "0", "1", "--out", tmp_path / "again")
    assert code == 2 and "own.toml: is not, or no more, the defect profile" in err and err.count("\n") == 1
    assert not (tmp_path / "again").exists() and str(own) in text


@pytest.mark.parametrize(
    "change, wrong",
    [
        (("'sdc_band'", "'sdc_bond'"), "unknown defect profile 'sdc_bond'"),
        (("'sdc_band'", "'sdc_band', 'sdc_band'"), "expected the name of a defect profile, or distinct names"),
        (("[run]", "[faults.models]\nRD = 1\n[run]"), "a plan has either profile or models"),
        (("schedule = 'once'\n", ""), "their schedules differ"),
        (("schedule = 'once'", "schedule = 'once'\nstages = ['state']"), "strikes none of the"),
        (("schedule = 'once'\n[run]\nexit = 'exact'", "schedule = 'permanent'"), "does not go with the exit mode"),
    ],
)
def test_a_mistake_in_a_plan_with_a_profile_gets_one_line(place, change, wrong):
    with pytest.raises(InputError) as error:
        parse_plan((place / "plan.toml").read_text().replace(*change), "plan.toml")
    assert wrong in str(error.value) and "\n" not in str(error.value)


@pytest.mark.skipif(not (ROOT / "results" / "profiles").exists(), reason="the source distribution has no results")
def test_the_page_has_every_profile_and_what_the_stores_say():
    page = (ROOT / "docs" / "profiles.md").read_text()
    path = ROOT / "results" / "profiles" / "write.py"
    spec = importlib.util.spec_from_file_location("write_profiles", path)
    write = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(write)
    assert write.filled(page) == page
    for name in shipped():
        assert page.count(f"| `{name}` |") == 2  # whose it is, and what came of it


def test_commands_that_move_listed_elements_refuse_a_profile(place, capsys):
    code, out, err = said(capsys, "places", place / "file.csv")
    assert (code, out, err.count("\n")) == (2, "", 1) and "has the profile sdc_band" in err
    with pytest.raises(InputError, match="lists no positions that could be scaled"):
        scale(parse_injection(FILE), seed=2)
