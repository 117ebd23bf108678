"""What steps tell of gradients before their sum and of updates is what other code computes, and changes no bit."""

import jax
import jax.numpy as jnp
import numpy as np
import own_training
import pytest
from strategy_programs import WORKERS, named, program, trained
from whole import only_whole

from fault_injection import instrument
from fault_injection.any_step.traced_training import TracedTraining
from fault_injection.any_step.training_program import training_program
from fault_injection.detection.history_ratio import history_ratio
from fault_injection.detection.localization import located
from fault_injection.detection.registry import beside_a_run
from fault_injection.explicit.optimizers import keras_adam
from fault_injection.machine.errors import InputError
from fault_injection.workloads.registry import make_workload

LOCAL, UPDATES, ADAM = "largest/local_gradients", "rms/updates", "rms/adam_steps"
EXPECTED = {"conv1/kernel", "conv2/kernel", "fc/kernel"}  # of two or more axes


def told(report, kind):
    """The reductions of one kind in a report, by what comes after it."""
    return {name.removeprefix(f"{kind}/"): x for name, x in report.reductions.items() if name.startswith(f"{kind}/")}


def largest_alone(worker):
    """The largest gradients of one worker's batches, in a training of it alone."""
    _, report = trained(program(only=worker, reductions=frozenset({"largest/parameter_gradients"})), 1)
    return told(report, "largest/parameter_gradients")


@pytest.mark.skipif("jax.device_count() < 8", reason="a worker has a device to itself")
def test_a_local_gradient_is_that_of_its_worker_alone():
    """Of the mean over the global batch, so that a worker has its share of it."""
    _, report = trained(program(reductions=frozenset({LOCAL})), 1)
    found = told(report, LOCAL)
    assert found.keys() == {f"worker_{k}/{name}" for k in range(WORKERS) for name in EXPECTED}
    for worker in (0, 5):
        alone = largest_alone(worker)
        for name in EXPECTED:
            assert found[f"worker_{worker}/{name}"] == pytest.approx(alone[name] / WORKERS, rel=1e-3)


@pytest.mark.parametrize(
    ("strategy", "devices", "names"),
    [
        ("replicated", 1, ["workers_0_to_7"]),
        ("replicated", 2, ["workers_0_to_3", "workers_4_to_7"]),
        pytest.param("zero parameters", 2, ["workers_0_to_3", "workers_4_to_7"], marks=[pytest.mark.slow, only_whole]),
        pytest.param("horovod", 2, [f"worker_{k}" for k in range(WORKERS)], marks=pytest.mark.slow),
        pytest.param("local 3", 1, [f"worker_{k}" for k in range(WORKERS)], marks=[pytest.mark.slow, only_whole]),
        pytest.param("pipeline 2", 2, ["workers_0_to_7"], marks=pytest.mark.slow),
    ],
)
def test_a_name_says_whose_gradient_it_is_and_no_bit_depends_on_what_is_told(strategy, devices, names):
    if jax.device_count() < devices:
        pytest.skip("needs several devices")
    wanted = frozenset({LOCAL, UPDATES, "norm/local_gradients", "largest/parameter_gradients"})
    (before, plain), (after, report) = (
        trained(program(strategy, devices=devices, reductions=r), 2) for r in (frozenset(), wanted)
    )
    np.testing.assert_array_equal(plain.digest, report.digest)
    assert {name: x.tobytes() for name, x in named(before).items()} == {
        name: x.tobytes() for name, x in named(after).items()
    }
    found = told(report, LOCAL)
    assert found.keys() == {f"{who}/{name}" for who in names for name in EXPECTED}
    assert {located(f"{LOCAL}/{who}").workers for who in found} == {
        located(f"{LOCAL}/{who}/x/y").workers for who in names
    }
    if len(names) == 1:  # there is nothing that is summed afterwards
        summed = told(report, "largest/parameter_gradients")
        assert all(found[f"{names[0]}/{name}"] == summed[name] for name in EXPECTED)
    norms = told(report, "norm/local_gradients")
    assert all(found[name] <= norms[name] * (1 + 1e-5) for name in found)


@pytest.mark.parametrize("strategy", ["replicated", "zero", "local 1"])
def test_an_update_is_what_the_parameters_differ_by(strategy):
    if strategy != "replicated" and jax.device_count() < 2:
        pytest.skip("needs several devices")
    own = program(strategy, reductions=frozenset({UPDATES}))
    before = named(own.init())
    after, report = trained(own, 1)
    found = told(report, UPDATES)
    for name, value in found.items():
        old, new = (np.float64(state[f"params/{name}"]) for state in (before, named(after)))
        if strategy == "replicated" or strategy == "zero":
            assert value == pytest.approx(np.sqrt(np.mean((new - old) ** 2)), rel=1e-5, abs=1e-12)
        else:  # before the copies are averaged, each moves further than their mean does
            assert value >= np.sqrt(np.mean((new - old) ** 2)) * (1 - 1e-5)
    assert "fc/bias" in found and any(found.values())


def test_what_adam_would_add_has_the_schedule_and_no_correction_of_its_bias():
    """The formula of arXiv 2604.00726, of the moments in the state after each step."""

    def rate(done):
        return 0.01 / (1 + jnp.float32(done))

    own = program(optimizer=keras_adam(rate), rate=rate, devices=1, reductions=frozenset({ADAM}))
    state = own.place(own.init())
    for step in range(3):
        state, report = own.step(state, own.batch(0, step), 0, step)
        arrays, found = named(state), told(jax.device_get(report), ADAM)
        for name, value in found.items():
            m, v = (np.float64(arrays[f"opt_state/{moment}/{name}"]) for moment in "mv")
            assert value == pytest.approx(np.sqrt(np.mean((rate(step) * m / (np.sqrt(v) + 1e-8)) ** 2)), rel=1e-4)
    assert found.keys() == {name.removeprefix("gradient/") for name in own.state.gradients}


def test_what_cannot_be_told_is_said_in_one_line():
    sgd = make_workload("resnet18_sgd", dataset="digits", width=2, blocks=(1, 1, 1, 1))
    with pytest.raises(InputError, match=r"rt_jump watches rms/adam_steps, .* its optimizer has not Adam's moments"):
        beside_a_run("rt_jump", sgd.program(frozenset()), {})
    unknown = program(optimizer="adam")
    with pytest.raises(InputError, match="its learning rate is not known"):
        beside_a_run("rt_jump", unknown, {})
    assert history_ratio(sgd.program(frozenset())).of == "gradients_of_parameters"
    assert history_ratio(unknown).variances == ("stats/bn1/var", "stats/bn2/var")


def test_that_workers_share_a_device_is_said():
    sharing = [beside_a_run("asd", program(devices=count), {}).notes for count in (1, min(8, jax.device_count()))]
    assert sharing[0] == ("asd: a gradient before the exchange is that of the 8 workers of one device together",)
    assert jax.device_count() < 8 or sharing[1] == ()


@pytest.fixture
def usual_promotion():
    """Optax raises floats to integer powers."""
    with jax.numpy_dtype_promotion("standard"):
        yield


@pytest.mark.usefixtures("usual_promotion")
def test_a_step_of_ones_own_tells_its_gradient_its_updates_and_adams_steps():
    """Two dense layers with Adam, on one device; the learning rate counts as 1, and a line says so."""
    training = own_training.training()
    initial = training.init()
    traced = TracedTraining(training, initial, instrument(training.step, initial, training.batch(0, 0)))
    own = training_program(traced, frozenset({LOCAL, UPDATES, ADAM}))
    state, number = own.place(own.init()), 2
    for step in range(number):
        before = jax.tree.map(jnp.copy, state)
        state, report = own.step(state, own.batch(0, step), 0, step)
    report, old, new = jax.device_get(report), named(before), named(state)
    assert told(report, LOCAL).keys() == {f"worker_0/params/fc{layer}/kernel" for layer in (1, 2)}
    for name, value in told(report, UPDATES).items():
        moved = np.float64(new[name]) - np.float64(old[name])
        assert value == pytest.approx(np.sqrt(np.mean(moved**2)), rel=1e-4)
        # Adam's step has a correction of its bias that depends on the number of the step alone.
        share = 0.01 * np.sqrt(1 - 0.999**number) / (1 - 0.9**number)
        assert told(report, ADAM)[name] * share == pytest.approx(value, rel=1e-3)
    said = beside_a_run("rt_jump", own, {}).notes
    assert [note.partition(":")[0] for note in said] == ["rt_jump"] * 2
    assert beside_a_run("asd", own, {}).notes == ()
