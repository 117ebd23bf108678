"""The value-based detectors decide as scalar code written from the published description does, and forget no NaN."""

import functools
import math
import statistics

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fault_injection.detection.activation_range import ActivationRange
from fault_injection.detection.asd import Asd
from fault_injection.detection.asd_activations import AsdActivations
from fault_injection.detection.asd_environment import AsdConfig, AsdThresholds, read_config, read_thresholds
from fault_injection.detection.asd_v1 import AsdV1
from fault_injection.detection.asd_v3 import AsdV3
from fault_injection.detection.detector import STOP
from fault_injection.detection.history_bound import HistoryBound
from fault_injection.detection.history_ratio import HistoryRatio
from fault_injection.detection.nonfinite import NonFinite
from fault_injection.detection.probe import ProbeSettings
from fault_injection.detection.rt_jump import RtJump
from fault_injection.detection.spike import GradientNorm, LossSpike
from fault_injection.detection.strikes import MINUTE, Counted, Strikes
from fault_injection.detection.update_norm import UpdateNorm
from fault_injection.detection.value_based import value_based

NAN, INF = math.nan, math.inf
WRONG = ("3,3", "3,4", "5,2", "5", "5,4,3", "5.0,3", "x")  # pairs of thresholds
# Ordinary sizes, with what detectors are about among them.
VALUES = st.one_of(
    st.floats(0.5, 2.0),
    st.sampled_from([0.0, NAN, INF, 1.0, 9.0, 11.0, 99.0, 101.0, 999.0, 1001.0, 1e4, 1.1e4, 9e5, 1.1e6, 1e30, 1e200]),
    st.floats(0, 1e12),
)
SEQUENCES = st.one_of(st.lists(VALUES, max_size=40), st.lists(st.floats(0.5, 2.0), min_size=100, max_size=140)).flatmap(
    lambda quiet: st.lists(VALUES, max_size=20).map(lambda loud: quiet + loud)
)
DETECTORS = [
    *(Asd(), AsdActivations(), AsdV1(), AsdV3(), GradientNorm(), LossSpike(), NonFinite()),
    *(HistoryBound((("x", 20.0),)), HistoryRatio(("x",)), ActivationRange(), UpdateNorm(), ProbeSettings()),
]


def decisions(detector, sequence):
    """Level of each value, given one by one."""
    memory, found = detector.init(["x"]), []
    with np.errstate(all="ignore"):
        for value in sequence:
            memory, alarms = detector.update(memory, np.array([value]))
            found.append(int(alarms.level[0]))
    return found


def asd(sequence):
    """The current open algorithm, for one gradient."""
    average, previous, n, found = 0.0, 0.0, 0, []
    for value in sequence:
        x = value * value
        if x == 0:
            previous = 0.0
            found.append(0)
            continue
        if not math.isfinite(x):
            found.append(1)
            continue
        first = second = x
        if n >= 10 and average != 0:
            c = 1 - 0.99**n
            first, second = 1e6 * average / c, 1e2 * average / c
        anomaly = x > first and abs(x - previous) > first
        if not anomaly and x <= second:
            n += 1
            average = 0.99 * average + 0.01 * x
        previous = x
        found.append(int(anomaly))
    return found


def asd_v1(sequence):
    """The first algorithm: two bounds of the norm, and two of its jump in units of the range."""
    history, found = [], []
    for x in sequence:
        jump = 0.0
        if len(history) >= 100 and max(history) != min(history):
            jump = abs(x - history[-1]) / (max(history) - min(history))
        level = 0
        if x > 1e4 or jump > 5e3:
            level = 2
        if not math.isfinite(x) or x > 1e6 or jump > 1e5:
            level = 1
        if level != 1:
            history.append(x)
        found.append(level)
    return found


def asd_v3(sequence):
    """The second algorithm, whose average is seeded with the first value that is not zero."""
    average, n, found = 0.0, 0, []
    for value in sequence:
        x = value * value
        if not math.isfinite(x):
            found.append(1)
            continue
        if average == 0:
            average, n = x, 0
        if average == 0:
            found.append(0)
            continue
        mean = average / (1 - 0.99**n) if n else average
        level = 1 if x > 1e6 * mean else 2 if x > 1e4 * mean else 0
        if level != 1:
            average, n = 0.99 * average + 0.01 * x, n + 1
        found.append(level)
    return found


def history_ratio(sequence, most=100.0):
    """So many times the largest value without an alarm, of three at least."""
    calm, found = [], []
    for x in sequence:
        far = not math.isfinite(x) or (len(calm) >= 3 and 0 < max(calm) < x / most)
        found.append(int(far))
        calm += [] if far else [x]
    return found


def activation_range(sequence):
    """Ten times the largest value without an alarm, once there is one that is not zero."""
    largest, found = 0.0, []
    for x in sequence:
        far = not math.isfinite(x) or (largest > 0 and x > 10 * largest)
        largest = largest if far else max(largest, x)
        found.append(int(far))
    return found


@pytest.mark.parametrize(
    ("detector", "oracle"),
    [
        *((Asd(), asd), (AsdActivations(), asd), (AsdV1(), asd_v1), (AsdV3(), asd_v3)),
        *((ActivationRange(), activation_range), (HistoryRatio(), history_ratio)),
        (HistoryRatio(("x",)), functools.partial(history_ratio, most=10.0)),
    ],
)
@settings(max_examples=60, deadline=None)
@given(SEQUENCES)
@example([1.0] * 20 + [NAN, 2000.0, 1.0, 2000.0])  # a NaN must not hide the jump after it
@example([1.0] * 120 + [NAN, 1e7, 1.0])
@example([0.0] * 5 + [1.0] * 12 + [0.0, 1500.0])
@example([0.0] * 5 + [1.0] * 12 + [1100.0, 0.0, 1100.0, 1100.0])  # a zero hides no jump
@example([3.0] * 130 + [2e4])  # constant: no range, so no jump
@example([1.0] * 9 + [1e9])  # still warming up
def test_decisions_are_those_of_the_published_description(detector, oracle, sequence):
    assert decisions(detector, sequence) == oracle(sequence)


@pytest.mark.parametrize("detector", DETECTORS, ids=lambda d: type(d).__name__)
@settings(max_examples=25, deadline=None)
@given(SEQUENCES)
def test_what_is_not_finite_raises_an_alarm_and_is_not_remembered(detector, sequence):
    """The excess is above 1 exactly where the level stops; after a NaN decisions are as if it had not been there."""
    memory = detector.init(["x"])
    with np.errstate(all="ignore"):
        for value in sequence:
            memory, alarms = detector.update(memory, np.array([value]))
            assert (alarms.excess[0] > 1) == (alarms.level[0] == STOP)
            if not math.isfinite(value):
                assert alarms.level[0] == STOP and alarms.excess[0] == INF
    finite = [value for value in sequence if math.isfinite(value)]
    given = zip(decisions(detector, sequence), sequence, strict=True)
    assert [level for level, value in given if math.isfinite(value)] == decisions(detector, finite)


@pytest.mark.parametrize("detector", DETECTORS, ids=lambda d: type(d).__name__)
def test_decisions_inside_a_compiled_step_are_the_same(detector):
    """Of several tensors at once, in float32."""
    rng = np.random.default_rng(3)
    steps = (rng.random((160, 3)) + 0.5).astype(np.float32)
    steps[50, 0], steps[120, 1], steps[130], steps[140, 2] = NAN, 5e6, 3e5, INF
    memories = [detector.init(["a", "b", "x"])] * 2
    compiled = jax.jit(detector.update)
    for values in steps:
        with np.errstate(all="ignore"):
            memories[0], beside = detector.update(memories[0], values)
        with jax.numpy_dtype_promotion("strict"):
            memories[1], inside = compiled(memories[1], jnp.asarray(values))
        np.testing.assert_array_equal(beside.level, inside.level)


def rt_jump(steps):
    """The published code, line by line: norm and sizes of a step, from which its alarm follows."""
    mean, count, before, norm_before, found = 0.0, 0, None, None, []
    for number, (norm, *sizes) in enumerate(steps):
        size = NAN if any(map(math.isnan, sizes)) else max(sizes)
        alarm = not math.isfinite(norm)
        if before is not None:
            jump, rise = abs(size - before), norm - norm_before
            if number < 1000:
                count += 1
                mean += (jump - mean) / count
            if number >= 10 and rise > 0:
                alarm = alarm or jump > mean / (0.05 * math.sqrt(rise))
        before, norm_before = size, norm
        found.append(alarm)
    return found


NAMES = ["rms/adam_steps/a", "gradient_norm", "rms/adam_steps/b"]
SIZES = st.one_of(st.floats(0.01, 0.02), st.floats(0.01, 0.02), st.sampled_from([0.0, 1.0, 50.0, INF, NAN]))
NORM = st.one_of(st.floats(0.5, 2.0), st.floats(0, 1e6), st.sampled_from([0.0, 1e30, NAN, INF]))
CALM = st.tuples(st.floats(0.5, 2.0), st.floats(0.01, 0.02), st.floats(0.01, 0.02))


def rt_alarms(steps):
    """Of each step the names that its alarms have."""
    detector = RtJump()
    memory, found = detector.init(NAMES), []
    with np.errstate(all="ignore"):
        for norm, one, other in steps:
            memory, alarms = detector.update(memory, np.array([one, norm, other]))
            assert ((alarms.excess > 1) == (alarms.level == STOP)).all()
            found.append([name for name, level in zip(NAMES, alarms.level, strict=True) if level])
    return found


@settings(max_examples=150, deadline=None)
@given(st.lists(CALM, max_size=40), st.lists(st.tuples(NORM, SIZES, SIZES), max_size=6), st.lists(CALM, max_size=8))
@example([(1.0, 0.01, 0.02)] * 30, [(1e4, 0.01, 5.0)], [(1.0, 0.01, 0.02)] * 3)
@example([(1.0, 0.01, 0.02)] * 30, [(1.0, NAN, 0.02), (1e4, 0.01, 5.0)], [])  # W is NaN: no jump is seen again
@example([(1.0, 0.01, 0.02)] * 5, [(NAN, 0.01, 0.02), (1e4, 0.01, 0.02)], [])
@example([(1.0, 0.0, 0.0)] * 30, [(0.0, 0.0, 0.0), (2.0, 0.0, 0.0), (3.0, 1.0, 0.0)], [])
def test_rt_jump_decides_as_the_published_code(calm, loud, after):
    steps = [*calm, *loud, *after]
    assert [bool(names) for names in rt_alarms(steps)] == rt_jump(steps)


def test_the_traps_of_rt_jump_are_those_of_the_published_code():
    """It names the parameter; what jumps in the warm-up enters W, and a NaN stays in it; W ends with the warm-up."""
    calm = [(1.0 + 0.1 * (step % 2), 0.01, 0.02 + 0.001 * (step % 2)) for step in range(1200)]
    loud = (400.0, 0.01, 0.6)
    assert rt_alarms([*calm[:40], loud])[-1] == ["rms/adam_steps/b"]
    assert rt_alarms([*calm[:20], (1.0, 0.01, 900.0), *calm[:20], loud])[-1] == []
    assert rt_alarms([*calm[:20], (1.0, 0.01, NAN), *calm, loud])[-1] == []
    assert "gradient_norm" in rt_alarms([*calm[:40], (INF, 0.01, 0.02)])[-1]
    late = (1.0, 0.01, 900.0)  # with a norm that falls: no alarm
    assert rt_alarms([*calm[:1100], late, *calm[:20], loud])[-1] == ["rms/adam_steps/b"]


def test_rt_jump_inside_a_compiled_step_decides_alike():
    """With sizes of so many parameters that XLA's maximum would lose a NaN."""
    detector, rng = RtJump(), np.random.default_rng(0)
    names = ["gradient_norm", *(f"rms/adam_steps/{i}" for i in range(5000))]
    memories, compiled = [detector.init(names)] * 2, jax.jit(detector.update)
    for step in range(30):
        values = np.full(len(names), 0.01, np.float32) + rng.random(len(names)).astype(np.float32) * 1e-4
        values[0] = 100.0 if step == 25 else 1.0
        values[77] = {25: 0.5, 27: NAN}.get(step, 0.01)
        memories[0], beside = detector.update(memories[0], values)
        memories[1], inside = compiled(memories[1], jnp.asarray(values))
        np.testing.assert_array_equal(beside.level, inside.level)
        assert bool(beside.level.any()) == (step == 25)
    assert np.isnan(memories[1].mean[0])


def test_asd_samples_the_gradients_of_each_worker():
    """Every n-th local gradient, for each worker by itself; what a log has is watched, all of it."""
    local = [f"largest/local_gradients/worker_{worker}/{name}" for worker in (0, 1) for name in "abcd"]
    for detector, names, expected in (
        (Asd(), local, [1, 0, 0, 1, 1, 0, 0, 1]),
        (Asd(grad_sample_interval=1), local, [1] * 8),
        (Asd(), ["grad_max/a", "grad_max/b"], [1, 1]),
    ):
        memory = detector.init(names)
        for value in [1.0] * 20 + [1e5]:
            memory, alarms = detector.update(memory, np.full(len(names), value))
        assert alarms.level.tolist() == expected


def test_a_spike_is_what_lies_beyond_so_many_deviations():
    """A value just below the threshold raises none, one just above does; a lasting change is accepted in the end."""
    detector, rng = GradientNorm(deviations=5.0), np.random.default_rng(0)
    quiet = list(10 + rng.standard_normal(200))
    memory = detector.init(["x"])
    for value in quiet:
        memory, _ = detector.update(memory, np.array([value]))
    threshold = float(detector.update(memory, np.array([10.0]))[1].threshold[0])
    assert threshold == pytest.approx(10 + 5 * statistics.stdev(quiet[-50:]), rel=0.2)
    assert detector.update(memory, np.array([threshold * (1 - 1e-9)]))[1].level[0] == 0
    assert detector.update(memory, np.array([threshold * (1 + 1e-9)]))[1].level[0] == STOP
    lasting = decisions(detector, [*quiet, *[40.0] * 60])[200:]
    assert lasting[0] == STOP and lasting[-1] == 0


@given(st.lists(st.floats(0, 1000), max_size=30).map(sorted), st.integers(1, 4))
def test_strikes_are_counted_on_a_clock(minutes, number):
    """Independent: all of what was counted and not raised before, by their times."""
    strikes, struck, counted, last = Strikes(number=number), Counted(), [], None
    for minute in minutes:
        struck, raised = strikes.update(struck, minute * MINUTE)
        expected = False
        if last is None or minute * MINUTE - last >= 5 * MINUTE:
            last = minute * MINUTE
            counted.append(last)
            recent = counted[-number:]
            expected = len(recent) == number and last - recent[0] <= 480 * MINUTE
            if expected:
                counted = []
        assert raised == expected


@pytest.mark.parametrize(
    ("minutes", "raised"),
    [
        ((0, 5, 10), [False, False, True]),
        ((0, 4.99, 5, 9.99, 10), [False, False, False, False, True]),
        ((0, 240, 480), [False, False, True]),
        ((0, 240, 480.01), [False, False, False]),
        ((0, 300, 600, 700), [False, False, False, True]),
    ],
)
def test_three_strikes(minutes, raised):
    struck, found = Counted(), []
    for minute in minutes:
        struck, up = Strikes().update(struck, minute * MINUTE)
        found.append(up)
    assert found == raised


mindspore = functools.partial(AsdConfig, grad_sample_interval=10)
ASKED = AsdConfig(with_checksum=True, grad_sample_interval=1)


@pytest.mark.parametrize(
    ("environment", "expected", "notes"),
    [
        ({}, AsdConfig(), 0),
        ({"NPU_ASD_CONFIG": "enable:false"}, AsdConfig(enable=False), 0),
        ({"MS_NPU_ASD_CONFIG": "enable:true, cooldown:1,upper_thresh1:60"}, mindspore(cooldown=1, upper_thresh1=60), 0),
        ({"NPU_ASD_CONFIG": "upper_thresh1:2,upper_thresh2:3"}, AsdConfig(upper_thresh2=3), 1),
        ({"NPU_ASD_CONFIG": "strikes_num:-1,strikes_window:x,enable:yes,foo,bar:1"}, AsdConfig(), 5),
        ({"NPU_ASD_CONFIG": "with_checksum:true,grad_sample_interval:1"}, ASKED, 1),
        ({"NPU_ASD_CONFIG": "cooldown:2", "MS_NPU_ASD_CONFIG": "cooldown:3"}, mindspore(cooldown=3), 1),
        ({"NPU_ASD_CONFIG": "cooldown=2,strikes_num:2"}, AsdConfig(strikes_num=2), 1),  # torch_npu is strict
        ({"MS_NPU_ASD_CONFIG": "cooldown=2,strikes_num:2, more=1"}, mindspore(cooldown=2, strikes_num=2), 0),
        ({"MS_NPU_ASD_CONFIG": "cooldown=x,nothing"}, mindspore(), 2),
    ],
)
def test_settings_of_asd_are_read_as_the_vendors_do(environment, expected, notes):
    found, said = read_config(environment)
    assert found == expected and len(said) == notes


@pytest.mark.parametrize(
    ("environment", "expected", "notes"),
    [
        ({}, AsdThresholds(), 0),
        ({"NPU_ASD_ENABLE": "3"}, AsdThresholds(enable=3), 0),
        ({"NPU_ASD_ENABLE": "4"}, AsdThresholds(), 1),
        ({"NPU_ASD_UPPER_THRESH": "100, 3"}, AsdThresholds(upper=(100, 3)), 0),
        ({"NPU_ASD_SIGMA_THRESH": "4,3"}, AsdThresholds(sigma=(4, 3)), 0),
        *(({"NPU_ASD_UPPER_THRESH": text}, AsdThresholds(), 1) for text in WRONG),
    ],
)
def test_thresholds_of_asd_are_read_as_the_vendors_do(environment, expected, notes):
    found, said = read_thresholds(environment)
    assert found == expected and len(said) == notes


def test_thresholds_are_those_of_the_settings():
    v1 = value_based("asd_v1", {"NPU_ASD_UPPER_THRESH": "100,10"})
    assert decisions(v1.detector, [9, 11, 101]) == [0, 2, 1]
    asd = value_based("asd", {"NPU_ASD_CONFIG": "upper_thresh1:3,upper_thresh2:3,strikes_num:1"})
    assert decisions(asd.detector, [*[1] * 12, 1.7, 1.0, 2.2]) == [*[0] * 14, 1]
    assert asd.strikes.update(Counted(), 0.0)[1]
