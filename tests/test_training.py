"""The training step: the same arithmetic gives the same bits, with and without fault support."""

import contextlib
import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fault_injection.training.session import Session

from fault_injection.training.explicit import State, digest, magnitude
from fault_injection.training.workloads import WORKLOADS, make_workload
from models.fault import Operand, inactive_fault, make_fault
from models.site import list_sites

SMALL = {"dataset": "digits", "width": 4, "batch_size": 32, "workers": 4}


ONE_BLOCK = {name: {"blocks": (1,) * len(WORKLOADS[name].blocks)} for name in ("effnet", "densenet", "nfnet")}
# Each compiles two programs; one workload is enough for every change.
OTHERS = {name: pytest.param(name, marks=pytest.mark.slow) for name in ("resnet18_nobn", *ONE_BLOCK)}


@pytest.fixture(scope="module", params=["resnet18", *OTHERS.values()])
def session(request):
    return Session(make_workload(request.param, **SMALL, **ONE_BLOCK.get(request.param, {})))


@pytest.fixture(scope="module")
def resnet18():
    return Session(make_workload("resnet18", **SMALL))


def sites_of(session):
    example = jax.ShapeDtypeStruct((session.workload.worker_batch, 32, 32, 3), "float32")
    return list_sites(session.program.network, example)


def leaves(state):
    return [leaf.tobytes() for leaf in jax.tree.leaves(jax.device_get(state))]


@contextlib.contextmanager
def compilations():
    """Collects the names of programs compiled inside."""
    found = []

    def listen(event, duration, **details):
        if event.endswith("backend_compile_duration"):
            found.append(details)

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        yield found
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)


def test_an_inactive_fault_changes_no_bit_of_any_state(session):
    plain = faulty = session.start()
    for step in range(5):
        faulty, report = session.faulty_step(faulty, 0, step, inactive_fault())
        ((_, plain, plain_report),) = session.steps(plain, 0, step, step + 1)
        assert leaves(plain) == leaves(faulty)
        np.testing.assert_array_equal(plain_report.digest, report.digest)
        assert report.struck.hits == 0


@pytest.mark.parametrize("session", ["resnet18", *(OTHERS[name] for name in ONE_BLOCK)], indirect=True)
def test_one_executable_serves_all_sites_operands_workers_and_positions(session):
    w = session.workload
    sites = sites_of(session)
    assert w.name != "resnet18" or len(sites) == 63
    state = session.start()
    random = np.random.default_rng(0)

    def strike(site, operand, worker):
        index = random.integers(np.prod(sites[site].shapes[operand]))
        fault = make_fault(sites[site], operand, worker, [index], flip=random.integers(2**32, dtype=np.uint32))
        return session.faulty_step(state, 0, 3, fault)[1].struck

    strike(next(iter(sites)), Operand.INPUT, 0)
    with compilations() as compiled:
        for site in sites:
            for operand in Operand:
                seen = strike(site, operand, random.integers(w.workers))
                assert seen.hits == 1, (site, operand)
                assert seen.operand_changed == 1, (site, operand)
    assert not compiled


def test_the_gradient_of_the_images_feeds_nothing(resnet18):
    """Whatever strikes `conv1_grad_in`, the next state has the control's bits."""
    state = resnet18.start()
    control, _ = resnet18.faulty_step(state, 0, 0, inactive_fault())
    for operand in Operand:
        fault = make_fault(sites_of(resnet18)["conv1_grad_in"], operand, 2, [500], flip=0x7F800000)
        faulty, report = resnet18.faulty_step(state, 0, 0, fault)
        assert report.struck.operand_changed == 1
        assert leaves(faulty) == leaves(control)


def test_only_the_worker_named_is_struck(resnet18):
    state = resnet18.start()
    fault = make_fault(sites_of(resnet18)["fc"], Operand.OUTPUT, 4, [0], flip=0x7F800000)  # there are workers 0 to 3
    control, _ = resnet18.faulty_step(state, 0, 0, inactive_fault())
    faulty, report = resnet18.faulty_step(state, 0, 0, fault)
    assert report.struck.hits == 0
    assert leaves(faulty) == leaves(control)


@pytest.mark.parametrize("element", [0, 7, 1023])
@pytest.mark.parametrize("bit", [0, 23, 31])
def test_a_digest_sees_every_single_bit(element, bit):
    words = np.random.default_rng(0).integers(0, 2**32, 1024, np.uint32)
    other = words.copy()
    other[element] ^= np.uint32(1 << bit)
    one, two = (State({"l": {"w": jnp.asarray(w.view(np.float32))}}, {}, ()) for w in (words, other))
    assert digest(one) != digest(two)


@pytest.mark.parametrize("value", [np.nan, -np.nan, np.inf, -np.inf])
def test_a_magnitude_shows_every_non_finite_element(value):
    tensor = np.linspace(-3, 2, 1000, dtype=np.float32)
    assert magnitude([jnp.asarray(tensor)]) == 3
    tensor[500] = value
    assert not np.isfinite(magnitude([jnp.asarray(tensor)]))


PROGRAM = """
import sys
import jax
import numpy as np
from fault_injection.machine.environment import prepare
prepare()
from fault_injection.training.session import Session
from fault_injection.training.workloads import make_workload
session = Session(make_workload({workload!r}, **{options}), devices={devices})
state = session.start()
for step, state, report in session.steps(state, 0, 0, {steps}):
    pass
leaves = dict(zip(session.names.digest, jax.tree.leaves(state)))
np.savez(sys.argv[1], digest=report.digest, loss=report.loss, **jax.device_get(leaves))
"""


def in_own_process(repository, tmp_path, devices=None, flags="", steps=3, **options):
    """Digest, loss and state after a few steps, computed by a process of its own."""
    out = tmp_path / f"{len(list(tmp_path.iterdir()))}.npz"
    program = PROGRAM.format(workload="resnet18", options=SMALL | options, devices=devices, steps=steps)
    env = {**os.environ, "XLA_FLAGS": flags}
    subprocess.run([sys.executable, "-c", program, out], cwd=repository, env=env, check=True)
    return dict(np.load(out))


def test_two_processes_compute_the_same_bits(repository, tmp_path):
    one, two = (in_own_process(repository, tmp_path) for _ in range(2))
    assert all(one[name].tobytes() == two[name].tobytes() for name in one)


def test_eight_devices_compute_what_one_computes(repository, tmp_path):
    """The first moment of Adam after one step is a tenth of the gradient."""
    flags = "--xla_force_host_platform_device_count=8"
    one, eight = (in_own_process(repository, tmp_path, devices, flags, steps=1, workers=8) for devices in (1, 8))
    np.testing.assert_allclose(one["loss"], eight["loss"], rtol=1e-6)
    compared = 0
    for name, gradient in one.items():
        # A bias before a batch norm has no gradient but rounding noise.
        if name.startswith("opt_state/m/") and not name.endswith("/bias"):
            assert np.abs(gradient - eight[name]).max() <= 1e-5 * np.abs(gradient).max(), name
            compared += 1
    assert compared == 61
