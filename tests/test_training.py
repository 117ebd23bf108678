"""The training step of every workload: the same arithmetic gives the same bits, with and without fault support."""

import contextlib
import dataclasses
import functools
import json
import os
import re
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import test_dlrm
import test_transformer
from command_line import answer
from whole import some

from fault_injection.machine.environment import available_processors
from fault_injection.models.bits import ALL_ONES
from fault_injection.models.fault import Operand, inactive_fault
from fault_injection.models.site import make_fault
from fault_injection.runs.outcome import IMMEDIATE
from fault_injection.seam.digest import digest, magnitude
from fault_injection.workloads.image import PUBLISHED
from fault_injection.workloads.registry import make_workload, restore_workload

AS_COMMANDS = {"xla_backend_optimization_level": 3}  # XLA's default: quick tests compile with less
SMALL = {"dataset": "digits", "width": 4, "batch_size": 32, "workers": 4}
# One block per stage has every kind of operation and compiles in half the time; so have the first stages of those
# networks whose later stages repeat them.
ONE_BLOCK = {name: (1,) * len(workload.blocks) for name, workload in PUBLISHED.items()}
ONE_BLOCK |= {"effnet": (1, 1, 1, 0, 0, 0, 0), "densenet": (1, 1, 0, 0), "nfnet": (1, 1, 0, 0)}
# Each compiles two programs; one workload of each kind is enough for every change.
LARGE = ("resnet18 struck anywhere", "effnet", "densenet", "nfnet")
# Of the quick workload one of each kind: support for all its sites takes three times as long to compile.
RESNET = [
    f"{layer}{role}"
    for layer in ("conv1", "basicblock_2_basic_0_conv1", "basicblock_2_basic_0_downsample", "fc")
    for role in ("", "_grad_in", "_grad_wt")
]
OTHERS = {"transformer": test_transformer, "dlrm": test_dlrm}


@functools.cache
def trained(name):
    """A workload, its program, and the sites that it can strike: all, or one of each kind."""
    if name in OTHERS:
        return OTHERS[name].small(), OTHERS[name].program(), OTHERS[name].STRUCK
    network = name.removesuffix(" struck anywhere")
    workload = make_workload(network, **SMALL, blocks=ONE_BLOCK[network])
    sites = RESNET if name == "resnet18" else workload.sites()
    return workload, workload.program(frozenset(sites)), tuple(sites)


SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in some(LARGE, LARGE[:1])]


@pytest.fixture(params=["resnet18", *OTHERS, *SLOW])
def each(request):
    return trained(request.param)


@pytest.fixture
def resnet18():
    return trained("resnet18")


def start(program):
    return program.place(program.init())


def faulty_step(program, state, step, fault):
    return program.faulty_step(state, program.batch(0, step), 0, step, fault)


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


@pytest.mark.parametrize(
    "each", ["resnet18", *(pytest.param(name, marks=pytest.mark.law) for name in OTHERS), *SLOW], indirect=True
)
def test_an_inactive_fault_changes_no_bit_of_any_state(each):
    _, program, _ = each
    plain, faulty = start(program), start(program)
    for step in range(5):
        faulty, report = faulty_step(program, faulty, step, inactive_fault())
        plain, plain_report = program.step(plain, program.batch(0, step), 0, step)
        assert leaves(plain) == leaves(faulty)
        np.testing.assert_array_equal(plain_report.digest, report.digest)
        assert (plain_report.loss, plain_report.metric) == (report.loss, report.metric)
        assert report.struck.hits == 0


COUNTS = {
    "resnet18": (make_workload("resnet18"), 63),  # as published
    "small resnet18": (make_workload("resnet18", **SMALL, blocks=(2, 2, 2, 2)), 63),
    "transformer": (test_transformer.small(), 3 * (7 + 2 + 1) + 2),  # projections, products, head; the embedding
    "dlrm": (test_dlrm.small(), 2 * 8 + 3 * (2 + 2 + 1)),  # tables; dense layers and interaction
}


@pytest.mark.parametrize("name", COUNTS)
def test_a_workload_has_its_number_of_sites(name):
    workload, count = COUNTS[name]
    assert len(workload.sites()) == count


def test_one_executable_serves_all_sites_operands_workers_and_positions(each):
    """Operands that are integers, such as tokens, too."""
    w, program, struck = each
    sites, state, random = w.sites(), start(program), np.random.default_rng(0)

    def strike(name, operand, worker):
        index = random.integers(np.prod(sites[name].shapes[operand]))
        mask = random.integers(1, 2**32, dtype=np.uint32)
        fault = make_fault(sites[name], operand, worker, [index], flip=mask, keep=ALL_ONES)
        after, report = faulty_step(program, state, 3, fault)
        return mask, report.digest, digest(after), jax.device_get(report.struck)

    strike(struck[0], Operand.INPUT, 0)
    with compilations() as compiled:
        for name in struck:
            for operand in Operand:
                mask, stated, found, seen = strike(name, operand, random.integers(w.workers))
                assert seen.hits == seen.operand_changed == 1, (name, operand)
                assert seen.new[0] == seen.old[0] ^ mask
                np.testing.assert_array_equal(stated, found)
    assert not compiled


# An index is struck, which reads one of so many rows of a table.
INDICES = {"transformer": ("embed_tokens", 128), "dlrm": ("emb_0", 9)}


@pytest.mark.law
@pytest.mark.parametrize("name", INDICES)
@pytest.mark.parametrize("index, read", [(5, 5), (2**31 - 1, -1), (-1, 0)])
def test_a_struck_index_reads_another_row_the_nearest_one_if_it_lies_outside(name, index, read):
    workload, program, _ = trained(name)
    site, rows = INDICES[name]
    faults = [
        make_fault(workload.sites()[site], Operand.INPUT, 1, [3], flip=np.int64(value) & 0xFFFFFFFF)
        for value in (index, read % rows)
    ]
    (one, _), (other, _) = (faulty_step(program, start(program), 0, fault) for fault in faults)
    assert leaves(one) == leaves(other)


RESTORED = {
    "transformer": {**test_transformer.OPTIONS, "tied": "no", "dataset": "folder"},
    "dlrm_criteo": {"max_rows": 1000},
    "resnet18": SMALL,
}


@pytest.mark.parametrize("name", RESTORED)
def test_a_workload_is_restored_from_json(name):
    workload = make_workload(name, **RESTORED[name])
    assert restore_workload(json.loads(json.dumps(dataclasses.asdict(workload)))) == workload


# How a replay of a fault ends.
ENDS = [
    # A wrong score above the diagonal is masked, even if it is infinite.
    ("transformer", {"layer": "layers_0_self_attn_scores", "position": "0/0/2/3", "value": "inf"}, "Masked"),
    ("transformer", {"layer": "layers_0_self_attn_scores", "position": "0/0/3/2", "value": "inf"}, IMMEDIATE),
    # So is an interaction that the dense layers do not read.
    ("dlrm", {"layer": "interaction", "stage": "fwrd_inject", "position": "0/2/3", "value": "inf"}, "Masked"),
    ("dlrm", {"layer": "interaction", "stage": "fwrd_inject", "position": "0/3/2", "value": "inf"}, IMMEDIATE),
]


@pytest.mark.slow
@pytest.mark.parametrize("name, fault, outcome", ENDS)
def test_a_replay_has_a_verdict(capsys, tmp_path, cache, name, fault, outcome):
    file = OTHERS[name].injection_file(tmp_path / "mine.csv", **fault)
    found = answer(capsys, "replay", file, "--cache", cache, "--out", tmp_path / "out")
    assert found["outcome"].startswith(outcome)
    expected = {"transformer": ("loss", "lower"), "dlrm": ("accuracy", "higher")}[name]
    assert (found["measure"]["name"], found["measure"]["better"]) == expected


LEARNT = {
    # Guessing by the letter before gives 2.45 nats per token.
    "transformer": (lambda end: end.loss < 1.95, 3.309),
    # As well as is known of Adult.
    "dlrm": (lambda end: end.metric > 0.845, 0.760),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", some([*LEARNT], ["dlrm"]))
def test_the_default_learns(name):
    workload, (learnt, chance) = make_workload(name), LEARNT[name]
    program = workload.program(frozenset())
    state = start(program)
    for epoch in range(workload.epochs):
        for step in range(workload.steps_per_epoch):
            state, _ = program.step(state, program.batch(epoch, step), epoch, step)
    assert learnt(program.evaluate(state))
    assert program.measure().chance == pytest.approx(chance, abs=1e-3)


def test_the_gradient_of_the_images_feeds_nothing(resnet18):
    """Whatever strikes `conv1_grad_in`, the next state has the control's bits."""
    w, program, _ = resnet18
    state = start(program)
    control, _ = faulty_step(program, state, 0, inactive_fault())
    for operand in Operand:
        fault = make_fault(w.sites()["conv1_grad_in"], operand, 2, [500], flip=0x7F800000)
        faulty, report = faulty_step(program, state, 0, fault)
        assert report.struck.operand_changed == 1
        assert leaves(faulty) == leaves(control)


def test_only_the_worker_named_is_struck(resnet18):
    w, program, _ = resnet18
    state = start(program)
    fault = make_fault(w.sites()["fc"], Operand.OUTPUT, 4, [0], flip=0x7F800000)  # there are workers 0 to 3
    control, _ = faulty_step(program, state, 0, inactive_fault())
    faulty, report = faulty_step(program, state, 0, fault)
    assert report.struck.hits == 0
    assert leaves(faulty) == leaves(control)


@pytest.mark.law
@pytest.mark.parametrize("element", [0, 7, 1023])
@pytest.mark.parametrize("bit", [0, 23, 31])
def test_a_digest_sees_every_single_bit(element, bit):
    words = np.random.default_rng(0).integers(0, 2**32, 1024, np.uint32)
    other = words.copy()
    other[element] ^= np.uint32(1 << bit)
    one, two = ({"w": jnp.asarray(w.view(np.float32))} for w in (words, other))
    assert digest(one) != digest(two)


@pytest.mark.law
@pytest.mark.parametrize("value", [np.nan, -np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("size", [1, 1000, 4095, 4096, 100_000])
def test_a_magnitude_shows_every_non_finite_element(size, value):
    """Also where XLA's own maximum loses a NaN: on CPUs, as commands compile, from 4,096 elements on."""
    compiled = jax.jit(magnitude, compiler_options=AS_COMMANDS)
    tensor = np.linspace(-3, 2, size, dtype=np.float32)
    assert magnitude([jnp.asarray(tensor)]) == compiled([jnp.asarray(tensor)]) == 3
    for at in {0, size // 2, size - 1}:
        struck = tensor.copy()
        struck[at] = value
        for each in (magnitude, compiled):
            assert not np.isfinite(each([jnp.asarray(struck)])), at


PROGRAM = """
import sys
import jax
import numpy as np
from fault_injection.machine.environment import prepare
prepare()
from fault_injection.workloads.registry import make_workload
for out, devices in zip(sys.argv[1:], {devices}, strict=True):
    program = make_workload({workload!r}, **{options}).program(devices=devices)
    state = program.place(program.init())
    for step in range({steps}):
        state, report = program.step(state, program.batch(0, step), 0, step)
    leaves = dict(zip([leaf.name for leaf in program.state.leaves], jax.tree.leaves(state), strict=True))
    np.savez(out, digest=report.digest, loss=report.loss, **jax.device_get(leaves))
"""


def in_own_process(repository, tmp_path, workload, options, devices=(None,), flags="", steps=3):
    """Digest, loss and state after a few steps on each number of devices, computed by a process of its own."""
    first = len(list(tmp_path.iterdir()))
    outs = [tmp_path / f"{first + number}.npz" for number in range(len(devices))]
    program = PROGRAM.format(workload=workload, options=options, devices=devices, steps=steps)
    env = {**os.environ, "XLA_FLAGS": flags, "NPROC": str(available_processors())}
    subprocess.run([sys.executable, "-c", program, *outs], cwd=repository, env=env, check=True)
    return [dict(np.load(out)) for out in outs]


SMALL_RESNET = SMALL | {"blocks": ONE_BLOCK["resnet18"]}
# With how far the gradients of eight devices may be from those of one: each device rounds its part of a sum.
TRAINED = {
    "resnet18": ("resnet18", SMALL_RESNET, 1e-5),
    "transformer": ("transformer", test_transformer.OPTIONS, 1e-5),
    "float8": ("transformer", test_transformer.OPTIONS | {"precision": "float8"}, 1e-2),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", some([*TRAINED], ["float8"]))
def test_two_processes_compute_the_same_bits(repository, tmp_path, name):
    workload, options, _ = TRAINED[name]
    (one,), (two,) = (in_own_process(repository, tmp_path, workload, options) for _ in range(2))
    assert all(one[name].tobytes() == two[name].tobytes() for name in one)


@pytest.mark.slow
@pytest.mark.parametrize("name", some([*TRAINED], ["resnet18", "transformer"]))
def test_eight_devices_compute_what_one_computes(repository, tmp_path, name):
    """The first moment of an optimizer after one step is a tenth of the gradient."""
    workload, options, rtol = TRAINED[name]
    options, flags = options | {"workers": 8}, "--xla_force_host_platform_device_count=8"
    one, eight = in_own_process(repository, tmp_path, workload, options, (1, 8), flags, steps=1)
    np.testing.assert_allclose(one["loss"], eight["loss"], rtol=rtol / 10)
    compared = 0
    for leaf, gradient in one.items():
        # A bias before a batch norm has no gradient but rounding noise.
        if re.search("/(m|mu)/", leaf) and not leaf.endswith("/bias"):
            assert np.abs(gradient - eight[leaf]).max() <= rtol * np.abs(gradient).max(), leaf
            compared += 1
        if leaf.startswith("stats/maxima/"):  # the largest value over all devices
            np.testing.assert_allclose(gradient, eight[leaf], rtol=rtol)
    assert compared == {"resnet18": 37, "transformer": 11}[workload]
