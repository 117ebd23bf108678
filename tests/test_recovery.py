"""Steps that are undone: what the engine does, what a recovery makes of a fault, and that watching changes nothing."""

import dataclasses

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small import small
from toy import STEPS, linear

from fault_injection.detection.detector import STOP, Alarm
from fault_injection.detection.history_bound import history_bound
from fault_injection.detection.re_execution import ReExecution, ReExecutionSettings
from fault_injection.detection.recovery import RECOVERIES, needed
from fault_injection.detection.replicas import ReplicaComparison, ReplicaSettings
from fault_injection.detection.signals import KINDS, SignalReader, reductions_of
from fault_injection.detection.spike import GradientNorm
from fault_injection.detection.watch import Watch, Watcher
from fault_injection.explicit.optimizers import KerasAdamState, keras_adam
from fault_injection.models.fault import Operand
from fault_injection.models.site import make_fault
from fault_injection.runs.follow import follow
from fault_injection.runs.records import Recorder, Run
from fault_injection.runs.steps import Address, Back, addresses, numbered
from fault_injection.seam.trees import same_bits

pytestmark = pytest.mark.usefixtures("compiled_quickly")

WORKLOAD = linear()
PROGRAM = WORKLOAD.program()
LAST = Address(2, STEPS - 1)
STRUCK = Address(1, 0)  # the step before it is in another epoch


def fault(value=1e20):
    site = WORKLOAD.sites()["fc_grad_wt"]
    return make_fault(site, Operand.OUTPUT, 1, [1], flip=int(np.float32(value).view(np.uint32)))


class Rings(Watcher):
    """Stops at some steps, each as often as it is asked."""

    def __init__(self, steps, **more):
        super().__init__(PROGRAM, GradientNorm(), **more)
        self.steps = steps

    def look(self, at, state, report):
        self.memory = (self.memory or 0) + 1  # how many steps it has seen that were not undone
        return [Alarm(self.number(at), "loss", 0.0, STOP, 0.0)] if at in self.steps else [], 0.0


def run(watchers=(), faults=None, keep=0):
    recorder = Recorder(Run(0, (), 0))
    start = PROGRAM.place(PROGRAM.init())
    steps = addresses(Address(0, 0), LAST, STEPS)
    return follow(PROGRAM, start, steps, faults, [recorder, *watchers], keep).state, recorder.run


def assert_same_records(one, other):
    for a, b in zip(one.epochs, other.epochs, strict=True):
        for name in a:
            np.testing.assert_array_equal(a[name], b[name])


@pytest.mark.law
@pytest.mark.parametrize("recovery", ["rewind", "recompute"])
@pytest.mark.parametrize("latency", [0, 1])
def test_a_transient_fault_leaves_no_trace_where_its_step_is_executed_again(recovery, latency):
    """State and record are the golden ones in every bit, also where the fault is the first step of an epoch."""
    back = RECOVERIES[recovery]
    alarm = Address(STRUCK.epoch, STRUCK.step + latency)
    rings = Rings({alarm}, recovery=back)
    state, record = run([rings], {STRUCK: fault()}, back.steps)
    golden, golden_record = run()
    if back.steps > latency:
        assert same_bits(state, golden)
        assert_same_records(record, golden_record)
    else:
        assert not same_bits(state, golden)
    assert rings.memory == 3 * STEPS
    assert [action.step for action in rings.actions] == [alarm]
    assert numbered(alarm, STEPS) - numbered(rings.actions[0].first, STEPS) + 1 == back.steps


def test_an_alarm_that_comes_again_is_not_acted_on_again():
    rings = Rings({STRUCK}, recovery=RECOVERIES["rewind"])
    state, _ = run([rings], keep=2)
    assert len(rings.actions) == 1 and len(rings.alarms) == 2
    assert same_bits(state, run()[0])


@pytest.mark.law
@settings(max_examples=15, deadline=None)
@given(st.sets(st.integers(0, 3 * STEPS - 1), max_size=6), st.integers(1, 4))
def test_undoing_any_steps_of_a_fault_free_run_changes_no_bit(numbers, steps):
    rings = Rings({Address(*divmod(n, STEPS)) for n in numbers}, recovery=Back(steps, True))
    state, record = run([rings], keep=steps)
    golden, golden_record = run()
    assert same_bits(state, golden) and rings.memory == 3 * STEPS
    assert_same_records(record, golden_record)


def test_a_skipped_step_has_no_update():
    """The run goes on as if the step had not been; the batch after it is the next one's."""
    rings = Rings({STRUCK}, recovery=RECOVERIES["skip"])
    state, record = run([rings], {STRUCK: fault()}, 1)
    expected = PROGRAM.place(PROGRAM.init())
    without = (at for at in addresses(Address(0, 0), LAST, STEPS) if at != STRUCK)
    assert same_bits(state, follow(PROGRAM, expected, without).state)
    assert len(record.column("loss")) == 3 * STEPS and rings.memory == 3 * STEPS - 1


def test_a_step_executed_again_is_compared_with_the_first_time():
    """Only every n-th is, and only a fault in one of those is seen."""
    for every, seen in ((9, True), (10, False)):
        watcher = ReExecution(PROGRAM, ReExecutionSettings(every))
        state, _ = run([watcher], {STRUCK: fault(1.0)})
        assert numbered(STRUCK, STEPS) == 8
        assert {alarm.step for alarm in watcher.alarms} == ({8} if seen else set())
        assert all(np.isnan((alarm.value, alarm.threshold)).all() for alarm in watcher.alarms)  # a digest is no bound
    assert not same_bits(state, run()[0])


@pytest.mark.slow
def test_an_inverted_step_is_undone_up_to_rounding_and_a_huge_one_is_not():
    program = small().program(frozenset(), reductions=needed("inverse"))
    state = program.place(program.init())
    for step in range(6):  # from zero moments there is little to get back
        state, _ = program.step(state, program.batch(0, step), 0, step)
    before = jax.device_get(state)
    after, report = program.step(state, program.batch(0, 6), 0, 6)
    undone = jax.device_get(program.extras.undo(after, jax.device_get(report)))
    assert undone.opt_state.iterations == before.opt_state.iterations
    for part in (lambda s: s.params, lambda s: s.opt_state.m, lambda s: s.opt_state.v):
        for one, other in zip(*map(jax.tree.leaves, (part(undone), part(before))), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5 * np.abs(other).max())

    adam, gradient = keras_adam(0.1), {"w": np.float32([1e17])}
    params, state = (
        {"w": np.float32([1.0])},
        KerasAdamState(np.int32(3), {"w": np.float32([0.1])}, {"w": np.float32([0.2])}),
    )
    updates, after = adam.update(gradient, state)
    back, back_params = adam.inverse(gradient, after, jax.tree.map(np.add, params, updates))
    assert back_params["w"][0] == pytest.approx(1.0, rel=1e-5)
    assert abs(back.m["w"][0] - 0.1) > 0.05 and abs(back.v["w"][0] - 0.2) > 0.1


@dataclasses.dataclass
class Copies:
    """Stands for an array with a copy on each of two devices."""

    copies: tuple

    @property
    def addressable_shards(self):
        return [dataclasses.make_dataclass("Shard", ["data"])(copy) for copy in self.copies]


def test_copies_that_differ_in_one_bit_are_told_apart():
    slopes, offset = PROGRAM.init()
    other = slopes.copy()
    other.view(np.uint32)[0] ^= 1
    watcher = ReplicaComparison(PROGRAM, ReplicaSettings())
    same, different = Copies((slopes, slopes)), Copies((slopes, other))
    at = Address(0, 0)
    assert watcher.look(at, (same, Copies((offset, offset))), None)[0] == []
    found, _ = watcher.look(at, (different, Copies((offset, offset))), None)
    assert [alarm.tensor for alarm in found] == ["slopes"]


@pytest.mark.slow
def test_watching_changes_no_bit_and_sees_what_the_step_reports():
    """All kinds of signals but those of products and activations, which have tests of their own, on a network."""
    kinds = tuple(kind for kind in KINDS if not kind.endswith(("activations", "products")))
    workload = small()
    plain = workload.program(frozenset())
    telling = workload.program(frozenset(), reductions=reductions_of(kinds))
    steps = [Address(0, 0), Address(0, 1)]
    reports = {}
    for name, program in (("plain", plain), ("telling", telling)):
        recorder = Recorder(Run(0, (), 0))
        watch = Watch(program, GradientNorm()) if name == "telling" else None
        follow(program, program.place(program.init()), steps, observers=[recorder, *([watch] if watch else [])])
        reports[name] = recorder.run
    assert_same_records(reports["plain"], reports["telling"])

    _, report = telling.step(telling.place(telling.init()), telling.batch(0, 0), 0, 0)
    report = jax.device_get(report)
    found = SignalReader(telling, kinds).named(report)
    gradients = [value for name, value in report.reductions.items() if name.startswith("norm/parameter_gradients/")]
    assert found["gradient_norm"] == pytest.approx(np.linalg.norm(gradients))
    assert found["loss"] == report.loss
    assert found["largest/gradients/bn1"] == report.reductions["largest/gradients/bn1"]
    for leaf, value in zip(telling.state.watched, report.magnitude, strict=True):
        assert found[leaf.name] == value


def test_the_bound_of_history_is_the_published_one():
    """20 for a convolution at 32x32 positions of 1024 images; and no fault-free step comes near it."""
    workload = dataclasses.replace(small(), dataset="cifar10", width=64, batch_size=1024, workers=8)
    bounds = dict(history_bound(workload.program(frozenset())).bounds)
    halves = {"basicblock_1_basic_0_conv1": 16, "basicblock_2_basic_0_conv1": 8, "basicblock_4_basic_0_conv1": 2}
    for layer, side in halves.items():
        expected = 20 * np.sqrt(1024 * side * side / 1024**2)
        assert bounds[f"opt_state/m/{layer}/kernel"] == pytest.approx(expected)
        assert bounds[f"opt_state/v/{layer}/kernel"] == pytest.approx(expected**2)
    assert bounds["opt_state/m/fc/kernel"] == pytest.approx(20 / 32)
    own = {name.split("/", 2)[2] for name in bounds if name.startswith("opt_state/m/")}
    assert own == {name.removeprefix("gradient/") for name in workload.program(frozenset()).state.gradients}
