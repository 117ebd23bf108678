"""A probe sees a state that answers otherwise; a step is executed again after a load, whatever its number."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from strategy_programs import program

from fault_injection.detection.detector import STOP
from fault_injection.detection.probe import Probe, ProbeSettings
from fault_injection.detection.re_execution import ReExecution, ReExecutionSettings
from fault_injection.runs.steps import Address


@pytest.fixture(scope="module")
def states():
    """A program, and the states after each of some steps."""
    own = program(devices=1)
    state, found = own.place(own.init()), []
    for number in range(12):
        at = divmod(number, own.steps_per_epoch)
        state, report = own.step(state, own.batch(*at), *at)
        found.append((Address(*at), jax.tree.map(jnp.copy, state), jax.device_get(report)))
    return own, found


def watched(own, found, change=lambda number, state: state, **settings):
    """Numbers of the steps with an alarm, and the watcher."""
    watching = Probe(own, ProbeSettings(every=1, warm_up=5, **settings))
    for number, (at, state, report) in enumerate(found):
        watching.after_step(at, change(number, state), report)
    return [alarm.step for alarm in watching.alarms], watching


def test_a_probe_compares_the_losses_of_fixed_examples(states):
    own, found = states
    assert watched(own, found)[0] == []
    batch = own.forward.tests()[0]
    first, second = (np.asarray(own.forward.infer(state, batch, None).loss) for _, state, _ in found[-2:])
    memory = watched(own, found)[1].memory
    assert memory.distances.last[0, -1] == pytest.approx(np.sqrt(np.mean((second - first) ** 2)), rel=1e-5)


@pytest.mark.parametrize("value", [30.0, np.nan])
def test_a_probe_sees_a_parameter_or_a_running_statistic_that_is_wrong(states, value):
    own, found = states

    def of_parameter(number, state):
        kernel = state.params["fc"]["kernel"]
        wrong = state.params | {"fc": state.params["fc"] | {"kernel": kernel.at[0, 0].set(value)}}
        return state.replace(params=wrong) if number == 9 else state

    def of_statistic(number, state):  # which no training step reads
        mean = state.stats["bn2"]["mean"]
        wrong = state.stats | {"bn2": state.stats["bn2"] | {"mean": mean.at[0].set(-value)}}  # large activations
        return state.replace(stats=wrong) if number == 9 else state

    for change in (of_parameter, of_statistic):
        alarms, watching = watched(own, found, change)
        assert alarms[0] == 9
        assert all(alarm.level == STOP and alarm.tensor == "probe" for alarm in watching.alarms)


def test_an_answer_without_numbers_is_an_alarm_also_at_the_first_probe(states):
    own, found = states

    def wrong(number, state):
        return jax.tree.map(lambda leaf: leaf * jnp.nan if leaf.dtype == jnp.float32 else leaf, state)

    assert watched(own, found[:2], wrong)[0] == [0, 1]


def test_steps_are_checked_after_a_load(states):
    own, _ = states
    watching = ReExecution(own, ReExecutionSettings(every=4, after_load=2))
    state = own.place(own.init())
    watching.starts(Address(1, 0), state, None)  # number 5
    assert [number for number in range(5, 13) if watching.due(number)] == [5, 6, 7, 11]
    watching.starts(Address(2, 0), state, None)
    assert [number for number in range(10, 16) if watching.due(number)] == [10, 11, 15]
    watching = ReExecution(own, ReExecutionSettings(every=4))
    watching.starts(Address(1, 0), state, None)
    assert [number for number in range(5, 13) if watching.due(number)] == [7, 11]
