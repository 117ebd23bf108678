"""A map says what an independent computation with whole tensors says, and is of the run that a replay judges."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import momentum_training
import numpy as np
import pytest
import scanned_training
from campaign_stores import fill
from own_steps import SCANNED, by_hand
from small import SITE, small
from whole import only_whole

from fault_injection.commands.main import main
from fault_injection.faults.injection import Injection
from fault_injection.machine.errors import Untrustworthy
from fault_injection.machine.files import DamagedFile
from fault_injection.models.observe.difference import TensorDifference, difference
from fault_injection.models.observe.reductions import RESULTS
from fault_injection.questions.outcomes.answer import injections_of
from fault_injection.questions.outcomes.plan_file import parse_plan
from fault_injection.questions.outcomes.sampling import injection_of
from fault_injection.questions.spread.campaign import campaign_map, maps_of, sampled
from fault_injection.questions.spread.campaign_map import FATES, read_campaign_map
from fault_injection.questions.spread.campaign_page import (
    campaign_answers,
    rewrite_campaign_map_page,
    write_campaign_map,
)
from fault_injection.questions.spread.files import write_map
from fault_injection.questions.spread.heat_map import bands
from fault_injection.questions.spread.sentences import answers
from fault_injection.runs.fault_map import mapped, told_by
from fault_injection.runs.replay_run import golden_for, replay
from fault_injection.seam.stages import BESIDE
from fault_injection.seam.trees import leaf_names
from fault_injection.workloads.registry import make_workload

pytestmark = pytest.mark.usefixtures("compiled_quickly")

FAULT = Injection(small(epochs=3), "bkwd_inject", "RD", 2, SITE, 1, 4, ((5, 2, 1, 3),), (3e5,))
SMALL = {"width": 16, "blocks": 1, "heads": 2, "kv_heads": 1, "context": 8, "batch_size": 8, "workers": 2}
TRANSFORMER = make_workload("transformer", **SMALL, epochs=2, steps_per_epoch=6)
OF_TEXT = Injection(TRANSFORMER, "fwrd_inject", "RD", 1, "layers_0_mlp_gate_proj", 0, 1, ((0, 0, 0),), (100.0,))


def told_and_golden(injection, cache):
    """The golden run, and the program whose steps tell what a map shows."""
    golden = golden_for(injection, cache)
    struck = frozenset(one.layer for one in injection.every if one.stage not in BESIDE)
    return golden, injection.workload.program(struck, reductions=told_by(golden.program)[0])


def map_of(injection, cache, steps, **options):
    golden, telling = told_and_golden(injection, cache)
    return mapped(injection, golden, telling, steps, **options)


def whole_difference(golden, faulty):
    """What differs between two arrays of the host, in float64: differs, not finite, largest, root mean square."""
    a, b = np.asarray(golden), np.asarray(faulty)
    kind = f"V{a.dtype.itemsize}"
    apart = int((np.ascontiguousarray(a).view(kind) != np.ascontiguousarray(b).view(kind)).sum())
    if a.dtype.kind in "biu":
        return apart, 0, 0.0, 0.0
    wide = np.complex128 if a.dtype.kind == "c" else np.float64
    a, b = a.astype(wide).view(np.float64), b.astype(wide).view(np.float64)
    sound = np.isfinite(a) & np.isfinite(b)
    d = np.abs(b[sound] - a[sound])
    lost = int((~np.isfinite(b)).sum())
    return apart, lost, d.max(initial=0), np.sqrt(np.mean(d * d)) if d.size else 0.0


def assert_row(found, name, step, golden, faulty, rounding=0.0):
    """With rounding, the tensors are of a program that rounds otherwise: what differs by as much may not count."""
    place = [row.name for row in found.rows].index(name)
    differs, lost, largest, rms = whole_difference(golden, faulty)
    assert rounding or found.differs[place, step] == differs, name
    assert found.nonfinite[place, step] == lost, name
    # Float32 subtracts exactly to its own rounding, and so does a sum of squares.
    assert found.largest[place, step] == pytest.approx(largest, rel=1e-6, abs=rounding + 1e-44), name
    assert found.rms[place, step] == pytest.approx(rms, rel=1e-4, abs=rounding + 1e-44), name


# ---- One tensor ----------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 1, 4095, 4096, 70_000])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float8_e4m3fn", "complex64", "int32", "bool"])
def test_a_difference_is_that_of_whole_tensors(dtype, size):
    rng = np.random.default_rng(size)
    a = rng.standard_normal(size).astype(dtype) if dtype != "bool" else rng.random(size) < 0.5
    b = a.copy()
    if size:
        at = rng.integers(size, size=1 + size // 100)
        b[at] = np.array([3.0 if dtype != "bool" else 1.0]).astype(dtype)
        if dtype.startswith(("float", "bfloat", "complex")):
            b[rng.integers(size)] = np.nan
            a[0] = b[0] = np.nan  # alike
    found = TensorDifference(*jax.device_get(difference(jnp.asarray(a), jnp.asarray(b))))
    differs, lost, largest, rms = whole_difference(a, b)
    assert (found.differs, found.nonfinite) == (differs, lost)
    assert 2 * float(found.largest) == pytest.approx(largest, rel=1e-6)
    assert 2 * float(found.rms) == pytest.approx(rms, rel=1e-4)


def test_what_is_not_finite_is_counted_and_is_no_largest_difference():
    a, b = np.zeros(5000, np.float32), np.zeros(5000, np.float32)
    a[:2], b[:2] = (3e38, 1), (-3e38, 1)  # their difference is no float32
    b[4321], b[7], a[8], b[8] = np.nan, np.inf, np.nan, np.nan
    found = TensorDifference(*jax.device_get(difference(jnp.asarray(a), jnp.asarray(b))))
    assert (found.differs, found.nonfinite, found.golden_nonfinite) == (3, 3, 1)
    assert found.largest == np.float32(3e38)
    assert np.isfinite(found.rms)


# ---- Whole networks ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "injection",
    [
        pytest.param(FAULT, marks=[pytest.mark.slow, only_whole]),
        pytest.param(OF_TEXT, marks=pytest.mark.slow),
    ],
    ids=["resnet18", "transformer"],
)
def test_a_map_equals_a_computation_with_whole_tensors(injection, cache):
    golden, telling = told_and_golden(injection, cache)
    found = mapped(injection, golden, telling, 2)
    plain = golden.program
    ours = theirs = jax.device_get(golden.fetch_state_after(found.steps[0]._replace(step=found.steps[0].step - 1)))
    nothing = dataclasses.replace(injection.fault(), index=np.full_like(injection.fault().index, -1))
    for step, at in enumerate(found.steps):
        batch, fault = plain.batch(*at), injection.fault() if step == 0 else nothing
        pair = [telling.faulty_step(plain.place(s), batch, *at, f) for s, f in ((ours, nothing), (theirs, fault))]
        pair = jax.device_get(pair)
        for name, tensor in pair[0][1].tensors[RESULTS].items():
            assert_row(found, name, step, tensor, pair[1][1].tensors[RESULTS][name])
        names = plain.state.names
        for name, a, b in zip(names, *map(jax.tree.leaves, (pair[0][0], pair[1][0])), strict=True):
            assert_row(found, name, step, a, b)
        # The states again, by the program that tells nothing.
        ours, theirs = (
            jax.device_get(plain.faulty_step(plain.place(s), batch, *at, f)[0])
            for s, f in ((ours, nothing), (theirs, fault))
        )
        for a, b in zip(*map(jax.tree.leaves, ((ours, theirs), (pair[0][0], pair[1][0]))), strict=True):
            assert np.asarray(a).tobytes() == np.asarray(b).tobytes()


def test_a_map_of_a_step_with_a_scan_equals_one_by_hand(cache):
    workload = make_workload(f"{scanned_training.__file__}:training")
    site, turn, index = "forward:up", 1, (2, 3)
    shape = workload.sites()[site].operands[2].shape
    injection = Injection(workload, "fwrd_inject", "RD", 0, site, 0, 2, ((turn, *index),), (50.0,))
    found = map_of(injection, cache, 1)
    assert shape == (3, 5, 6) and len(found.steps) == 2
    bits = np.float32(50).view(np.uint32)

    # One executable for both: which turn is struck is an argument, and none is turn -1.
    @jax.jit
    def whole(struck, state, batch):
        return scanned_training.whole(by_hand(SCANNED, site, "output", index, bits, iteration=struck))(state, batch)

    @jax.jit
    def stepped(struck, state, batch):
        return scanned_training.stepped(by_hand(SCANNED, site, "output", index, bits, iteration=struck))(state, batch)

    ours = scanned_training.scanned_state()
    for step in range(2):
        ours = stepped(-1, ours, scanned_training.rows(step))[0]
    theirs = ours
    for step, struck in enumerate((turn, -1)):
        batch, rounding = scanned_training.rows(2 + step), 1e-6 * step  # of the states of both
        clean, faulty = whole(-1, ours, batch), whole(struck, theirs, batch)
        for name, tensor in clean.items():
            assert_row(found, name, step, tensor, faulty[name], rounding)
        ours, theirs = stepped(-1, ours, batch)[0], stepped(struck, theirs, batch)[0]
        for name, a, b in zip(leaf_names(ours), *map(jax.tree.leaves, (ours, theirs)), strict=True):
            assert_row(found, name, step, a, b, rounding)


OF_MUON = """
import jax, jax.numpy as jnp, numpy as np
from fault_injection import Measure, Training

def loss(w, batch):
    return jnp.mean((batch @ w) ** 2)

def step(state, batch):
    value, g = jax.value_and_grad(loss)(state["w"], batch)
    return {"w": state["w"] - 0.01 * (g @ g.T) @ g}, {"loss": value}

def training():
    def batch(epoch, step):
        return np.random.default_rng([epoch, step]).normal(size=(4, 3)).astype(np.float32)

    start = np.random.default_rng(0).normal(size=(3, 2)).astype(np.float32)
    return Training(
        lambda: {"w": jnp.asarray(start)}, step, batch, 3, 2,
        lambda state: {"loss": loss(state["w"], batch(9, 9))}, Measure("loss", "lower", 1.0, 0.02),
    )
"""


def test_what_an_optimizer_multiplies_is_no_part_of_the_backward_pass(cache, tmp_path):
    (tmp_path / "of_muon.py").write_text(OF_MUON)
    workload = make_workload(f"{tmp_path / 'of_muon.py'}:training")
    site = "grad_wt:w"
    found = map_of(Injection(workload, "bkwd_inject", "RD", 0, site, 0, 1, ((0, 1),), (1e3,)), cache, 1)
    kinds = [row.kind for row in found.rows]
    assert kinds == ["forward", "loss", "backward", "update", "update", "parameter"]
    assert [found.first(place) for place in range(len(kinds))] == [1, 1, 0, 0, 0, 0]
    said = " ".join(one.sentence for one in answers(found))
    assert "It reached 2 of 2 products of the optimizer in the step struck." in said
    assert "It reached 1 of 1 result of the backward pass in the step struck." in said


# ---- The run that it is of -----------------------------------------------------------------


@pytest.mark.slow
def test_a_map_begins_where_the_fault_strikes_and_is_of_the_replay(cache):
    found = map_of(FAULT, cache, 4)
    faulty = replay(dataclasses.replace(FAULT, horizon=4), golden_for(FAULT, cache)).faulty
    assert found.struck == {SITE: (0,)} and len(found.steps) == 5 and found.ended == ""
    assert found.loss[1].tolist() == faulty.column("loss")[4:9].tolist()
    names = [row.name for row in found.rows]
    order = [names.index(SITE), names.index("loss"), names.index("conv1")]
    assert order == sorted(order, reverse=True)
    forward = found.of_kind("forward", "loss")
    assert not found.differs[forward, 0].any()  # the fault is in the backward pass
    assert found.differs[names.index(SITE), 0] == 1


def test_a_run_in_lockstep_with_other_bits_is_refused(cache):
    golden, telling = told_and_golden(FAULT, cache)
    first = telling.faulty_step

    def otherwise(state, batch, epoch, step, fault):
        new, told = first(state, batch, epoch, step, fault)
        leaves, tree = jax.tree.flatten(new)
        struck = int(fault.site) != -1
        return jax.tree.unflatten(tree, [leaves[0] * (1.5 if struck else 1), *leaves[1:]]), told._replace(
            digest=told.digest + np.uint32(struck)
        )

    with pytest.raises(Untrustworthy, match="other bits than the replay"):
        mapped(FAULT, golden, dataclasses.replace(telling, faulty_step=otherwise), 1)


# ---- What is said, and what is refused -----------------------------------------------------


@pytest.mark.parametrize(
    "words, expected",
    [
        ([], "expected an injection file, or --campaign DIR"),
        (["x.csv", "--campaign", "y"], "expected an injection file, or --campaign DIR"),
        (["x.csv", "--sample", "3"], "--sample belongs to --campaign DIR"),
        (["--campaign", "y", "--twin"], "--twin belongs to the map of an injection file"),
    ],
)
def test_what_does_not_go_together_is_refused_in_one_line(words, expected, capsys):
    assert main(["map", *words]) == 2
    assert expected in capsys.readouterr().err


def test_a_page_and_its_files_say_the_same_as_the_map(cache, tmp_path):
    workload = make_workload(f"{scanned_training.__file__}:training")
    injection = Injection(workload, "fwrd_inject", "RD", 0, "forward:up", 0, 1, ((2, 0, 0),), (float("nan"),))
    found = map_of(injection, cache, 3)
    assert found.ended and found.nonfinite.max() > 0
    assert any("not finite" in one.sentence for one in answers(found))
    write_map(found, "a map", tmp_path)
    told = json.loads((tmp_path / "map.json").read_text())
    assert [row["differs"] for row in told["rows"]] == found.differs.tolist()
    assert len((tmp_path / "map.csv").read_text().splitlines()) == 1 + found.differs.size
    page = (tmp_path / "map.html").read_text()
    assert page.count('<g class="step"') == len(found.steps) and "http://" not in page.replace("http://www.w3.org", "")
    assert all(len(band.rows) == 1 for band in bands(found.rows))


# ---- A campaign's map ----------------------------------------------------------------------

OF_CAMPAIGN = f"""
workload = "{momentum_training.__file__}:training"
[faults]
experiments = 30
[faults.models]
RD = {{ weight = 1, values = "worst_case" }}
INPUT = 1
"""


def test_a_campaigns_map_counts_what_the_map_of_each_experiment_says(cache, tmp_path):
    plan = parse_plan(OF_CAMPAIGN)

    def struck(number):
        at = injection_of(plan, number)
        return {
            "site": at.site.name,
            "stage": at.site.stage,
            "operand": "input",
            "worker": 0,
            "epoch": 0,
            "step": 0,
            "model": at.fmodel,
        }

    folder = fill(tmp_path / "a campaign", plan, struck)
    sample, done = sampled(folder, 8, seed=0)
    maps = list(maps_of(folder, sample, 1, cache))
    made = campaign_map(maps, done)
    write_campaign_map(made, folder / "map", "a map", ["the command"])
    told = json.loads((folder / "map" / "map.json").read_text())
    numbers = [one["number"] for one in told["experiments"]]
    assert len(set(numbers)) == 8 and told["done"] == 30
    sums = {}
    for one, injection in zip(told["experiments"], injections_of(folder, numbers), strict=True):
        found = map_of(injection, cache, 1)
        assert one["site"] == injection.site.name and [row["name"] for row in told["rows"]] == [
            row.name for row in found.rows
        ]
        reached = found.differs > 0
        reached = reached[:, [0, min(1, reached.shape[1] - 1)]]  # a run that ended before stays as it was
        sums[one["outcome"]] = sums.get(one["outcome"], 0) + reached
        sums[one["site"]] = sums.get(one["site"], 0) + reached[:, 0]
        parameters, results = (found.of_kind(*kinds) for kinds in (("parameter",), ("forward", "backward")))
        assert (one["fate"] == FATES[-1]) == bool(reached[parameters, 0].any())
        assert (one["fate"] == FATES[0]) == (not reached[:, 0].any())
        assert (one["last"] == "") == (not reached[results, 0].any())
    assert {o: each["experiments"] for o, each in told["by_outcome"].items()} | told["by_site"] == {
        name: count.tolist() for name, count in sums.items()
    }
    assert sum(rate["found"] for rate in told["fates"].values()) == 8
    # The store's losses are made up; with those of the runs themselves the campaign's are these.
    assert (
        not any(one.same for one in made.experiments) and "In 0 of 8 the losses" in campaign_answers(made)[-1].sentence
    )
    first = [one.found.loss[1].astype(np.float32)[:1] for one in maps]
    losses = [one._replace(drawn=one.drawn._replace(losses=loss)) for one, loss in zip(maps, first, strict=True)]
    assert all(one.same for one in campaign_map(losses, done).experiments)

    out = folder / "map"
    page = (out / "map.html").read_text()
    rewrite_campaign_map_page(out)
    assert (out / "map.html").read_text() == page and page.count("<svg") == 2
    (out / "map.json").write_text((out / "map.json").read_text().replace('"done": 30', '"done": 40'))
    with pytest.raises(DamagedFile):
        read_campaign_map(out / "map.json")
