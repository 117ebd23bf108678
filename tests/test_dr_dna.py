"""Dr. DNA: its score, computed independently; what it sees of a fault; and that watching changes nothing."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scalar_dr_dna import SCALAR
from small import small as small_resnet
from test_transformer import small as small_transformer
from whole import some

from fault_injection.detection.detector import told
from fault_injection.detection.dr_dna import (
    DrDna,
    load_profile,
    make_profile,
    make_training_profile,
    profile_of,
    sample_places,
    save_profile,
)
from fault_injection.detection.signals import SignalReader, reductions_of
from fault_injection.machine.errors import InputError
from fault_injection.machine.files import DamagedFile, write_arrays
from fault_injection.models.fault import Operand
from fault_injection.models.layer import Context
from fault_injection.models.observe.dr_dna import (
    BEYOND,
    BEYOND_LAYER,
    BEYOND_PLACES,
    NAMES,
    PLACES,
    SAMPLED,
    SAMPLES,
    VALUES,
    Profile,
    watched,
)
from fault_injection.models.site import make_fault
from fault_injection.runs.follow import follow
from fault_injection.runs.steps import Address, addresses
from fault_injection.seam.program import Program

# By name, the workload, the site that is struck, the third or fourth of the pass, and the steps before the profile: a
# transformer of this size soon predicts common letters alone, and its activations are then the same or far off.
CASES = {
    "transformer": (
        functools.partial(small_transformer, context=32, batch_size=32, steps_per_epoch=40),
        "layers_0_self_attn_v_proj",
        4,
    ),
    "resnet18": (small_resnet, "basicblock_2_basic_0_conv1", 11),
}
BOTH = pytest.mark.parametrize("name", some([*CASES], ["resnet18"]))


@functools.cache
def trained(name):
    """A workload, its program, a state, and a profile of it."""
    make, site, steps = CASES[name]
    workload = make()
    program = workload.program(frozenset({site}))
    before = addresses(Address(0, 0), Address(0, steps - 1), program.steps_per_epoch)
    state = follow(program, program.place(program.init()), before).state
    profile = make_profile(program, state, [program.batch(1, step) for step in range(program.steps_per_epoch)])
    return workload, program, state, profile


def values(profile, inference, name):
    return np.array([inference.reductions[f"{name}/{layer}"] for layer in profile.layers])


def infinite_output(name):
    """The exponent of an element of the struck site's output is all ones: it is infinite or NaN."""
    workload = trained(name)[0]
    return make_fault(workload.sites()[CASES[name][1]], Operand.OUTPUT, 1, [5], keep=0x807FFFFF, flip=0x7F800000)


# ---- The score ------------------------------------------------------------------------------


def near_an_edge(histograms, x):
    """Whether rounding may decide on the bin of a value, by example; at the ends of a range it does not."""
    x = x[..., :PLACES]
    h = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), histograms)
    x = np.where(np.isfinite(x), x, 1e30).astype(np.float64)
    pairs = ((h.low, h.high), (h.layer_low[:, None], h.layer_high[:, None]))
    parts = np.stack([(x - low) / (high - low) * 10 for low, high in pairs])
    near = (np.abs(parts - np.round(parts)) < 2e-5) & (np.abs(parts) < 11) & (parts != 0) & (parts != 10)
    return near.any((0, 2, 3))


@pytest.mark.slow
@BOTH
def test_the_score_is_that_of_an_independent_implementation(name):
    _, program, state, profile = trained(name)
    batch = program.batch(2, 0)
    seen = jax.device_get(
        program.watching(dataclasses.replace(profile, histograms=None)).forward_passes().infer(state, batch, None)
    )
    samples = np.stack([seen.tensors[SAMPLES][layer] for layer in profile.layers], -2)
    x = samples.reshape(-1, *samples.shape[2:])[:16].copy()
    x[0, 1, :3] = [np.nan, np.inf, -np.inf]
    x[1, 2] = 1e30
    clear = ~near_an_edge(profile.histograms, x)
    assert clear.sum() >= len(x) / 2 and clear[:2].any()
    # A pass reports the largest of all its examples, on all devices.
    watched = program.watching(dataclasses.replace(profile, told=NAMES)).forward_passes().infer(state, batch, None)
    for value in NAMES:
        found = np.asarray(VALUES[value](profile.histograms, x))[clear]
        expected = [SCALAR[value](profile.histograms, one) for one in x[clear]]
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=2e-5)
        largest = np.asarray(VALUES[value](profile.histograms, samples)).max((0, 1))
        np.testing.assert_allclose(values(profile, watched, value), largest, atol=2e-6)
    assert SAMPLES not in watched.tensors


@pytest.mark.slow
@BOTH
def test_samples_are_elements_of_the_activations_of_examples(name):
    workload, program, state, profile = trained(name)
    bare = sample_places(program, seed=0)
    np.testing.assert_array_equal(bare.positions, profile.positions)
    assert set(bare.layers) == {site.name for site in workload.sites().values() if site.stage == "forward"}
    assert bare.layers == tuple(site for site in workload.sites() if site in bare.layers)
    for layer, at in zip(bare.layers, bare.positions, strict=True):
        assert len(np.unique(at)) == min(program.activations()[layer], PLACES)

    def forward(state, batch):
        ctx = Context(jax.random.key(0), np.arange(workload.workers), train=False, observe=frozenset({"activations"}))
        return workload.recipe().network.forward(state.params, state.stats, batch["input"], ctx)[3]

    batch = program.batch(2, 0)
    whole = jax.jit(forward)(state, batch).tensors["activations"]
    samples = program.watching(bare).forward_passes().infer(state, batch, None).tensors[SAMPLES]
    for layer, at in zip(bare.layers, bare.positions, strict=True):
        flat = np.asarray(whole[layer]).reshape(*samples[layer].shape[:2], -1)
        np.testing.assert_allclose(samples[layer][..., :PLACES], flat[..., at], rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(samples[layer][..., PLACES], np.abs(flat).max(-1), rtol=1e-4, atol=1e-4)


# ---- Alarms -----------------------------------------------------------------------------------


def alarms_of(name, inference):
    _, program, _, profile = trained(name)
    detector = DrDna.of(profile)
    report = jax.device_get(inference)
    found = SignalReader(program, detector.signals).named(report)
    names, numbers = list(found), np.array(list(found.values()))
    _, alarms = detector.update(detector.init(names), numbers)
    return detector, told(0, names, numbers, alarms)


@pytest.mark.slow
@BOTH
def test_batches_that_the_profile_has_not_seen_raise_no_alarm(name):
    _, program, state, profile = trained(name)
    watching = program.watching(profile)
    for batch in [*(program.batch(2, step) for step in range(8)), *program.forward_passes().tests()[:3]]:
        assert alarms_of(name, watching.forward_passes().infer(state, batch, None))[1] == []


@pytest.mark.slow
@BOTH
def test_a_large_wrong_number_raises_an_alarm_there_or_later(name):
    _, program, state, profile = trained(name)
    seen = program.watching(profile).forward_passes().infer(state, program.batch(2, 0), infinite_output(name))
    assert int(seen.struck.operand_changed) == 1
    detector, alarms = alarms_of(name, seen)
    first = detector.first(alarms)
    assert profile.layers.index(first) >= profile.layers.index(CASES[name][1])
    assert not np.isnan(values(profile, seen, BEYOND_PLACES)).any()  # NaN counts as infinite
    assert np.isinf(values(profile, seen, BEYOND_LAYER)).any()


# ---- Mitigation -------------------------------------------------------------------------------


def test_mitigation_clamps_the_examples_that_are_flagged():
    random = np.random.default_rng(0)
    usual = random.normal(size=(256, 1, SAMPLED)).astype(np.float32)
    usual[..., PLACES] = random.uniform(3, 4.5, (256, 1))
    usual[0, 0, PLACES] = 4.5
    bare = Profile(("fc",), np.arange(PLACES, dtype=np.int32)[None] * 2)
    profile = dataclasses.replace(profile_of(bare, [usual]), mitigate=True)
    activation = random.normal(size=(1, 4, 8, 8)).astype(np.float32)
    activation[0, 1] *= 1e3
    activation[0, 1, 0, 1:3] = [np.nan, np.inf]
    activation[0, 2, 0, 1] = -1e3  # beside the places
    clamped, samples = watched(profile, "fc", jnp.asarray(activation))
    expected = activation.copy()
    expected[0, 1] = np.clip(np.nan_to_num(activation[0, 1], nan=0, posinf=np.inf), -4.5, 4.5)
    expected[0, 2, 0, 1] = -4.5
    np.testing.assert_array_equal(clamped, expected)
    np.testing.assert_array_equal(samples[..., :PLACES], activation.reshape(1, 4, -1)[..., bare.positions[0]])


@pytest.mark.slow
@BOTH
def test_mitigation_changes_no_bit_where_nothing_is_flagged(name):
    _, program, state, profile = trained(name)
    mitigating = program.watching(dataclasses.replace(profile, mitigate=True))
    batch = program.batch(2, 0)
    plain, same = jax.device_get(
        (program.forward_passes().infer(state, batch, None), mitigating.forward_passes().infer(state, batch, None))
    )
    assert plain.loss.tobytes() == same.loss.tobytes()


@pytest.mark.slow
def test_mitigation_makes_a_struck_example_finite_and_leaves_the_others():
    name = "transformer"
    _, program, state, profile = trained(name)
    mitigating, batch = (
        program.watching(dataclasses.replace(profile, mitigate=True)),
        program.batch(2, 0),
    )
    plain, fault = jax.device_get(program.forward_passes().infer(state, batch, None)), infinite_output(name)
    wrong, mended = jax.device_get(
        (program.forward_passes().infer(state, batch, fault), mitigating.forward_passes().infer(state, batch, fault))
    )
    struck = (wrong.loss != plain.loss).reshape(*plain.loss.shape[:2], -1).any(-1)
    assert struck.sum() == 1
    assert plain.loss[~struck].tobytes() == mended.loss[~struck].tobytes()
    assert not np.isfinite(wrong.loss[struck]).all() and np.isfinite(mended.loss).all()


# ---- Training ---------------------------------------------------------------------------------


def digests(program, steps=3, fault=None, at=1):
    state, found = program.place(program.init()), []
    for step in range(steps):
        if fault is not None and step == at:
            state, report = program.faulty_step(state, program.batch(0, step), 0, step, fault)
        else:
            state, report = program.step(state, program.batch(0, step), 0, step)
        found.append(report)
    return jax.device_get(found)


@pytest.mark.slow
@BOTH
def test_no_bit_of_a_training_depends_on_watching(name):
    _, program, _, profile = trained(name)
    bare = dataclasses.replace(profile, histograms=None)
    plain = digests(program)
    for watching in (
        program.watching(profile),
        *([program.watching(bare)] if name == "transformer" else []),
    ):
        for one, other in zip(plain, digests(watching), strict=True):
            np.testing.assert_array_equal(one.digest, other.digest)
            assert one.loss == other.loss


@pytest.mark.slow
def test_a_training_is_watched_by_a_profile_of_its_steps():
    name = "transformer"
    _, program, _, _ = trained(name)
    steps = addresses(Address(0, 0), Address(0, 14), program.steps_per_epoch)
    profile = make_training_profile(program, program.place(program.init()), steps)
    watching = program.watching(profile)
    assert reductions_of(DrDna.signals) == set(BEYOND)
    detector = DrDna.of(profile)
    clean, struck = digests(watching), digests(watching, fault=infinite_output(name))
    found = []
    for report in (*clean, struck[1]):
        numbers = SignalReader(program, detector.signals).named(report)
        assert numbers.keys() == {f"{name}/{layer}" for layer in profile.layers for name in BEYOND}
        _, alarms = detector.update(detector.init(list(numbers)), np.array(list(numbers.values())))
        found.append(bool(alarms.level.any()))
    assert found == [False] * len(clean) + [True]


# ---- Files and mistakes -----------------------------------------------------------------------


def test_a_profile_is_written_and_read(tmp_path):
    profile = trained("transformer")[3]
    save_profile(tmp_path / "profile.npz", profile)
    read = load_profile(tmp_path / "profile.npz")
    assert jax.tree.structure(read) == jax.tree.structure(profile)
    assert all(map(np.array_equal, jax.tree.leaves(read), jax.tree.leaves(profile)))
    write_arrays(tmp_path / "other.npz", {"layers": np.array(["fc"])})
    with pytest.raises(DamagedFile, match="is no profile of activations"):
        load_profile(tmp_path / "other.npz")
    write_arrays(tmp_path / "old.npz", {"layers": np.array(["fc"]), "clamp_above": np.zeros(1, np.float32)})
    with pytest.raises(InputError, match=r"old.npz: a profile of an earlier version, .*; make a new one"):
        load_profile(tmp_path / "old.npz")


def test_what_a_profile_cannot_be_made_of_is_refused():
    _, program, state, _ = trained("transformer")
    with pytest.raises(InputError, match=r"0 example\(s\); expected at least 32"):
        make_profile(program, state, [])
    broken = jax.tree.map(lambda leaf: leaf * np.nan if leaf.dtype == np.float32 else leaf, state)
    with pytest.raises(InputError, match="that are not finite"):
        make_profile(program, broken, [program.batch(0, step) for step in range(4)])
    with pytest.raises(InputError, match="cannot be watched"):
        Program.watching(None)
    with pytest.raises(InputError, match="has no forward passes in evaluation"):
        dataclasses.replace(program, forward=None).forward_passes()
