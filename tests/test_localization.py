"""An alarm names what was struck, by the name of its tensor; strikes are counted for each worker by itself."""

import numpy as np
import pytest

from fault_injection.detection.detector import STOP, Alarm
from fault_injection.detection.localization import Localized, PointedAt, Target, localized, located
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
        ("dr_dna_layer/activations/fc", PointedAt(site="fc")),
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


SITE = Target("conv2_grad_in", "conv2", 3)


@pytest.mark.parametrize(
    ("tensor", "struck", "expected"),
    [
        ("checksum/products/conv2_grad_in", SITE, (True, True, False)),
        ("checksum/products/conv2", SITE, (False, True, False)),
        ("checksum/products/conv21", SITE, (False, False, False)),
        ("opt_state/m/conv2/kernel", SITE, (False, True, False)),
        ("largest/activations/conv2", SITE, (False, True, False)),
        ("loss", SITE, (False, False, False)),
        ("", SITE, (False, False, False)),
        ("gradient_norm", Target("loss_grad_in", "", 0), (False, False, False)),
        ("gradient/conv2/kernel/worker 3", SITE, (False, True, True)),
        ("rank_2/conv2", SITE, (False, True, False)),
        ("loss of worker 3", Target("params/fc/kernel", "params/fc/kernel", -1), (False, False, False)),
        ("params/fc/kernel", Target("params/fc/kernel", "params/fc/kernel", -1), (True, True, False)),
        ("opt_state/v/fc/kernel", Target("params/fc/kernel", "params/fc/kernel", -1), (False, True, False)),
        ("opt_state/v/fc/bias", Target("params/fc/kernel", "params/fc/kernel", -1), (False, False, False)),
        ("1/0/mu/head", Target("grad_wt:0/head", "0/head", 0), (False, True, False)),
        ("largest/activations/forward:0/head", Target("grad_wt:0/head", "0/head", 0), (False, True, False)),
        ("1/0/mu/Dense_1/kernel", Target("x", "0/params/Dense_0/kernel", 0), (False, False, False)),
        ("params/m", Target("forward:m", "m", 0), (False, True, False)),  # a layer that is called as a container is
    ],
)
def test_an_alarm_names_the_site_the_layer_and_the_worker_or_not(tensor, struck, expected):
    assert localized(tensor, struck) == Localized(*expected)


class Clock:
    """What `raised` reads of a log: the times of its rows."""

    times = np.arange(0.0, 40.0, 6.0) * MINUTE


def test_the_strikes_of_one_worker_are_none_of_another():
    def alarms(workers):
        found = [f"largest/local_gradients/worker_{worker}/fc/kernel" for worker in workers]
        return [(row, Alarm(row, name, 1.0, STOP, 0.5)) for row, name in enumerate(found)]

    assert raised(alarms([0, 1, 0, 1]), Clock, Strikes()) is None
    assert raised(alarms([0, 1, 0, 1, 0, 1]), Clock, Strikes()) == 4
