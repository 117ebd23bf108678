"""Activations of a step of one's own: sampled as the user's own forward pass has them; watching changes no bit."""

import dataclasses
import functools
import logging

import jax
import jax.numpy as jnp
import module_training
import momentum_training
import numpy as np
import own_training
import pytest
from momentum_training import examples, training
from whole import some

from fault_injection.any_step.traced_training import traced_training
from fault_injection.any_step.training_program import training_program
from fault_injection.detection import registry
from fault_injection.detection.activation_range import ActivationRange
from fault_injection.detection.detector import told
from fault_injection.detection.dr_dna import DrDna, make_profile, make_training_profile, sample_places
from fault_injection.detection.registry import beside_a_run, of_one_device, watcher
from fault_injection.machine.errors import InputError
from fault_injection.models.fault import Operand, inactive_fault
from fault_injection.models.observe.dr_dna import BEYOND, PLACES, SAMPLED, SAMPLES
from fault_injection.models.site import make_fault
from fault_injection.runs.follow import follow
from fault_injection.runs.steps import Address, addresses
from fault_injection.seam.trees import same_bits


@pytest.fixture(autouse=True)
def as_users_have_it():
    """Optax mixes types, which the other tests forbid."""
    with jax.numpy_dtype_promotion("standard"):
        yield


# ---- Trainings, and their activations as the user's own forward pass has them --------------------


def momentum(params, batch):
    first = batch[0] @ params["fc1"]
    return [first, jax.nn.relu(first) @ params["fc2"]]


def module(model, batch):
    """By hand, one example after the other."""
    first, second = model.layers
    each = [first.weight @ x for x in batch[0]]
    hidden = [first.activation(one + first.bias) for one in each]
    return [np.stack(each), np.stack([second.weight @ one for one in hidden])]


def transposed(params, batch):
    """Examples lie along the last axis of each product."""
    first = params["fc1"].T @ batch[0].T
    return [first.T, (params["fc2"].T @ jax.nn.relu(first)).T]


def sequence(params, batch):
    """Two tokens of each example are rows of one matrix; the second layer is made again by a checkpoint."""
    rows = batch[0].reshape(-1, 2) @ params["fc1"][:2]
    second = jax.checkpoint(lambda w, x: jnp.tanh(x) @ w)(params["fc2"], rows)
    return [rows.reshape(len(batch[0]), -1), second.reshape(len(batch[0]), -1)]


@jax.jit
def layer(w, x):
    return x @ w


def twice(params, batch):
    """One compiled function is two layers, each with places of its own; a convolution comes after them."""
    hidden = batch[0]
    found = []
    for _ in range(2):
        hidden = layer(jnp.sin(params["fc1"][:, :4]), jnp.cos(hidden))
        found.append(hidden)
    kernel = params["fc1"].reshape(8, 1, 4)[:2]
    found.append(jax.lax.conv_general_dilated(hidden[:, None], kernel, (1,), "SAME"))
    return [one.reshape(len(hidden), -1) for one in found]


def trained_by(forward):
    """A training whose loss is of the last activation, by momentum."""

    @jax.jit
    def step(state, batch):
        def measures(params):
            last = forward(params, batch)[-1]
            return jnp.mean((last[:, 0] - batch[1]) ** 2)

        loss, grads = jax.value_and_grad(measures)(state["params"])
        momentum = jax.tree.map(lambda m, g: 0.9 * m + g, state["trace"], grads)
        params = jax.tree.map(lambda w, m: w - 0.01 * m, state["params"], momentum)
        return {"params": params, "trace": momentum}, {"loss": loss, "accuracy": -loss}

    return lambda: dataclasses.replace(training(), step=step)


# By name: the training, the parameters of its state, and the activations of a batch, of one example each.
FORWARD = {
    "momentum": (momentum_training.training, lambda state: state["params"], momentum),
    "module": (module_training.training, lambda state: state[0], module),
    **{
        forward.__name__: (trained_by(forward), lambda state: state["params"], forward)
        for forward in (transposed, sequence, twice)
    },
}


@functools.cache
def program_of(make, *reductions):
    made = traced_training(make())
    return training_program(made, frozenset(reductions)), made


def first_step(program):
    state, report = program.step(program.place(program.init()), program.batch(0, 0), 0, 0)
    return jax.device_get((state, report))


@pytest.mark.parametrize("name", FORWARD)
def test_samples_are_elements_of_the_activations_of_examples(name):
    make, params_of, forward = FORWARD[name]
    program, made = program_of(make)
    activations = [np.asarray(one) for one in forward(params_of(make().init()), examples(0, 0))]
    activations = [one.reshape(len(one), -1) for one in activations]
    bare = sample_places(program)
    assert list(bare.layers) == [site for site in made.program.all_sites if site.startswith("forward:")]
    assert list(program.activations().values()) == [one.shape[1] for one in activations]
    _, report = first_step(program.watching(bare))
    for layer, at, whole in zip(bare.layers, bare.positions, activations, strict=True):
        assert report.tensors[SAMPLES][layer].shape == (1, 16, SAMPLED)
        np.testing.assert_allclose(report.tensors[SAMPLES][layer][0][:, :PLACES], whole[:, at], rtol=2e-5, atol=1e-6)
        np.testing.assert_allclose(report.tensors[SAMPLES][layer][0][:, PLACES], np.abs(whole).max(-1), rtol=2e-5)


def accumulating():
    """The gradients of four parts of a batch are added up in a loop, whose products have no samples."""

    def step(state, batch):
        def part(total, each):
            grads = jax.grad(lambda params: momentum_training.measures(params, each)[0])(state["params"])
            return jax.tree.map(jnp.add, total, grads), None

        parts = jax.tree.map(lambda one: one.reshape(4, -1, *one.shape[1:]), batch)
        total, _ = jax.lax.scan(part, jax.tree.map(jnp.zeros_like, state["params"]), parts)
        new = jax.tree.map(lambda w, g: w - 0.025 * g, state["params"], total)
        return {"params": new, "trace": state["trace"]}, momentum_training.measures(state["params"], batch)[1]

    return dataclasses.replace(training(), step=step)


# Each takes eight programs: of the forms of layers that the samples' test has, some.
WATCHED = {name: FORWARD[name][0] for name in some([*FORWARD], ("momentum", "sequence", "twice"))}
LOOPS = {"accumulating": accumulating, "branching": own_training.branching}
LOOPS = {name: LOOPS[name] for name in some([*LOOPS], ["accumulating"])}


@pytest.mark.parametrize("name", [*WATCHED, *(pytest.param(name, marks=pytest.mark.slow) for name in LOOPS)])
def test_no_bit_of_a_step_depends_on_watching(name):
    """Neither does an inactive fault change one, which each executable is tried for before its first fault."""
    make = (WATCHED | LOOPS)[name]
    program, made = program_of(make)
    telling, _ = program_of(make, "largest/activations")
    bare = sample_places(program)
    steps = list(addresses(Address(0, 0), Address(0, program.steps_per_epoch - 1), program.steps_per_epoch))
    profile = make_training_profile(program, program.place(program.init()), steps)
    watching = {"bare": program.watching(bare), "scored": program.watching(profile), "largest": telling}
    expected = [first_step(program)]
    expected.append(jax.device_get(program.step(program.place(expected[0][0]), program.batch(0, 1), 0, 1)))
    for one in watching.values():
        state, report = first_step(one)
        assert same_bits(state, expected[0][0]) and report.loss == expected[0][1].loss
        state, report = jax.device_get(one.faulty_step(one.place(state), one.batch(0, 1), 0, 1, inactive_fault()))
        assert same_bits(state, expected[1][0]) and int(report.struck.hits) == 0
    _, report = first_step(watching["scored"])
    assert SAMPLES not in report.tensors
    assert {f"{name}/{layer}" for layer in bare.layers for name in BEYOND} <= report.reductions.keys()
    # The largest value is told of sites in loops and branches as well.
    forward = {name for name, site in made.program.all_sites.items() if site.role == "forward"}
    _, report = first_step(telling)
    assert report.reductions.keys() == {f"largest/activations/{site}" for site in forward}
    assert set(bare.layers) <= forward and (set(bare.layers) < forward) == (name in LOOPS)


def test_another_profile_of_the_same_layers_compiles_nothing(caplog):
    program, _ = program_of(momentum_training.training)
    start, steps = program.init(), [Address(0, step) for step in range(6)]
    profiles = [make_training_profile(program, program.place(start), steps, seed) for seed in (0, 1)]
    bare = [sample_places(program, seed) for seed in (0, 1)]
    assert not np.array_equal(bare[0].positions, bare[1].positions)
    found = []
    for pair in (bare, profiles):
        first_step(program.watching(pair[0]))
        with jax.log_compiles(), caplog.at_level(logging.WARNING):
            caplog.clear()
            found.append(first_step(program.watching(pair[1])))
            assert not [record for record in caplog.records if "compil" in record.getMessage().lower()]
    (_, report), _ = found
    whole = momentum(start["params"], examples(0, 0))[1]
    np.testing.assert_allclose(
        report.tensors[SAMPLES][bare[1].layers[1]][0][:, :PLACES], whole[:, bare[1].positions[1]], rtol=2e-5
    )


# ---- Alarms ---------------------------------------------------------------------------------------


def huge(made, name):
    """1e30 in all of the first example's activation: one element alone is little to a score that counts places."""
    site, (examples, axes) = made.program.all_sites[name], made.layers
    shape = site.operands[Operand.OUTPUT].shape
    rows = range(shape[axes[name]] // examples)
    at = np.arange(np.prod(shape)).reshape(shape).take(rows, axes[name]).ravel().tolist()
    return make_fault(site, Operand.OUTPUT, 0, at, keep=0, flip=[np.float32(1e30).view(np.uint32)] * len(at))


@pytest.mark.parametrize("name", ["momentum", "module", "sequence"])
def test_a_huge_activation_is_seen_and_a_fault_free_run_is_not(name):
    program, made = program_of(FORWARD[name][0], "largest/activations")
    epoch = addresses(Address(0, 0), Address(0, 5), 6)
    profile = make_training_profile(program, program.place(program.init()), epoch)
    watching, ranges = program.watching(profile), ActivationRange()
    beside = watcher(watching, ranges)
    run = addresses(Address(0, 0), Address(2, 5), 6)
    follow(watching, watching.place(watching.init()), run, observers=[beside])
    assert len(beside.peak) == 18 and beside.alarms == []

    detector = DrDna.of(profile)
    names = [name for name, _ in detector.limits]
    for layer in (None, *profile.layers):
        fault = inactive_fault() if layer is None else huge(made, layer)
        start = watching.place(watching.init()), watching.batch(0, 0)
        _, report = jax.device_get(watching.faulty_step(*start, 0, 0, fault))
        values = np.array([report.reductions[one] for one in names])
        _, alarms = detector.update(detector.init(names), values)
        assert detector.first(told(0, names, values, alarms)) == layer
        largest = np.array([report.reductions[one] for one in sorted(report.reductions) if "largest" in one])
        _, alarms = ranges.update(beside.memory, largest)
        assert bool(alarms.level.any()) == (layer is not None)


def test_dr_dna_and_ranges_are_made_for_a_training_of_ones_own_as_for_any():
    program, made = program_of(momentum_training.training, "largest/activations")
    detectors = {
        name: beside_a_run(name, program, {}).detector for name in ("dr_dna", "dr_dna_published", "activation_range")
    }
    watching = registry.telling(program, detectors.values())
    watchers = {name: watcher(watching, detector) for name, detector in detectors.items()}
    steps = addresses(Address(0, 0), Address(0, 5), 6)
    state = follow(watching, watching.place(watching.init()), steps, observers=[*watchers.values()]).state
    assert all(one.alarms == [] for one in watchers.values())
    fault = huge(made, "forward:params/fc1")
    _, report = jax.device_get(watching.faulty_step(state, watching.batch(1, 0), 1, 0, fault))
    for name, one in watchers.items():
        one.after_step(Address(1, 0), None, report)
        assert {alarm.step for alarm in one.alarms} == {6}, name


# ---- What cannot be watched -------------------------------------------------------------------------


def loose():
    """The batch's size is written into the step."""

    def step(state, batch):
        new, metrics = momentum_training.step(state, batch)
        return new, metrics | {"odd": jnp.sum(batch[0].reshape(16, 4))}

    return dataclasses.replace(training(), step=step)


def unrolled():
    """Each example has a product of its own."""

    def step(state, batch):
        def measures(params):
            return sum(jnp.sum(one @ params["fc1"]) for one in batch[0])

        loss, grads = jax.value_and_grad(measures)(state["params"])
        params = jax.tree.map(lambda w, g: w - 1e-3 * g, state["params"], grads)
        return {"params": params, "trace": state["trace"]}, {"loss": loss, "accuracy": loss}

    return dataclasses.replace(training(), step=step)


def pairwise():
    """The one product compares all examples with all."""

    def step(state, batch):
        def measures(params):
            rows = batch[0] * params["fc1"][:, 0]
            return jnp.mean(rows @ rows.T)

        loss, grads = jax.value_and_grad(measures)(state["params"])
        params = jax.tree.map(lambda w, g: w - 1e-3 * g, state["params"], grads)
        return {"params": params, "trace": state["trace"]}, {"loss": loss, "accuracy": loss}

    return dataclasses.replace(training(), step=step)


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (loose, "the step cannot be traced with 32 examples in place of 16 (TypeError: cannot reshape"),
        (unrolled, "the step has other products with 32 examples than with 16"),
        (pairwise, "no product of its forward pass outside of loops, branches and shard_map has one axis"),
        (
            lambda: dataclasses.replace(training(), steps_per_epoch=1),
            "an epoch has 16 example(s), and a profile of activations is made of 32 at least",
        ),
    ],
)
def test_a_step_that_cannot_be_sampled_is_said_to_be_so_and_still_has_ranges(make, reason):
    program, _ = program_of(make)
    assert reason in of_one_device(program, {})["dr_dna"]
    with pytest.raises(InputError, match="dr_dna watches dr_dna_places/activations, which the steps of this work"):
        beside_a_run("dr_dna", program, {})
    assert of_one_device(program, {})["activation_range"] == ""


def test_what_a_step_of_ones_own_does_not_do_is_refused_in_one_line():
    program, _ = program_of(momentum_training.training)
    bare = sample_places(program)
    with pytest.raises(InputError, match="are watched, not clamped"):
        program.watching(dataclasses.replace(bare, mitigate=True))
    other = dataclasses.replace(bare, layers=("forward:params/fc1", "forward:params/fc3"))
    with pytest.raises(
        InputError, match="layer 'forward:params/fc3' of the profile; did you mean 'forward:params/fc2'"
    ):
        program.watching(other)
    with pytest.raises(InputError, match="has no forward passes in evaluation"):
        make_profile(program, program.place(program.init()), [program.batch(0, 0)])
