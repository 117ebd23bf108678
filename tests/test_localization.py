"""An alarm names what was struck, by the name of its tensor; strikes are counted for each worker by itself."""

import numpy as np
import pytest

from fault_injection.detection.detector import STOP, Alarm
from fault_injection.detection.localization import PointedAt, located, names
from fault_injection.detection.log_reading import raised
from fault_injection.detection.strikes import MINUTE, Strikes
from fault_injection.models.observe.reductions import local_gradient


@pytest.mark.parametrize(
    ("tensor", "expected"),
    [
        ("loss", PointedAt()),
        ("gradient_norm", PointedAt()),
        ("probe", PointedAt()),
        ("largest/activations/conv1", PointedAt(site="conv1")),
        ("dr_dna/activations/fc", PointedAt(site="fc")),
        ("variance_checksum/products/block/q_grad_in", PointedAt(site="block/q_grad_in")),
        ("norm/gradients/bn1", PointedAt(site="bn1")),
        ("rms/updates/fc/bias", PointedAt(leaf="fc/bias")),
        ("rms/adam_steps/fc/bias", PointedAt(leaf="fc/bias")),
        ("opt_state/m/fc/bias", PointedAt(leaf="opt_state/m/fc/bias")),
        ("slopes", PointedAt(leaf="slopes")),
        ("norm/scale", PointedAt(leaf="norm/scale")),  # of a user's state
        (f"largest/local_gradients/{local_gradient(2, 3, 'fc/kernel')}", PointedAt(leaf="fc/kernel", workers=(2, 3))),
    ],
)
def test_the_name_of_a_tensor_tells_where_it_is_from(tensor, expected):
    assert located(tensor) == expected


def test_an_alarm_names_the_layer_that_was_struck_and_no_other():
    alarms = [
        *("largest/activations/conv1", "checksum/products/conv1_grad_in", "opt_state/v/conv1/kernel"),
        *("rms/updates/conv1/kernel", "largest/local_gradients/worker_0/conv1/kernel", "params/conv1/kernel"),
    ]
    targets = [
        "conv1",
        "conv1_grad_wt",
        "gradient/conv1/kernel",
        "worker_gradient/conv1/bias",
        "opt_state/m/conv1/bias",
    ]
    assert all(names(alarm, target) for alarm in alarms for target in targets)
    assert not any(names(alarm, target.replace("conv1", "conv11")) for alarm in alarms for target in targets)
    assert not any(names("loss", target) for target in targets)


def test_parameters_of_a_users_state_may_lie_deep():
    """Of two layers whose names end alike."""
    parameters = {f"opt/mu/{block}/q/kernel": f"params/{block}/q/kernel" for block in "ab"}
    parameters |= {name: name for name in parameters.values()}
    assert names("opt/mu/a/q/kernel", "params/a/q/kernel", parameters)
    assert not names("opt/mu/a/q/kernel", "params/b/q/kernel", parameters)


class Clock:
    """What `raised` reads of a log: the times of its rows."""

    times = np.arange(0.0, 40.0, 6.0) * MINUTE


def test_the_strikes_of_one_worker_are_none_of_another():
    def alarms(workers):
        found = [f"largest/local_gradients/worker_{worker}/fc/kernel" for worker in workers]
        return [(row, Alarm(row, name, 1.0, STOP, 0.5)) for row, name in enumerate(found)]

    assert raised(alarms([0, 1, 0, 1]), Clock, Strikes()) is None
    assert raised(alarms([0, 1, 0, 1, 0, 1]), Clock, Strikes()) == 4
