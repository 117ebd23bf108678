"""Strategies: each trains as one shared state does, sums in its own order, starts by its own rule, and is struck."""

import dataclasses
import functools
import itertools
import os
import subprocess
import sys

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small import small
from strategy_programs import (
    BATCH,
    NAMES,
    NETWORK,
    WORKERS,
    expected_at_start,
    named,
    program,
    random_state,
    trained,
)
from whole import some

from fault_injection.commands.main import main
from fault_injection.detection.replicas import replicas
from fault_injection.explicit.mesh import AXIS, SPLIT, WHOLE, mesh_of
from fault_injection.explicit.pipeline import stage_sizes, staged
from fault_injection.explicit.sites import list_sites
from fault_injection.explicit.start import owned
from fault_injection.explicit.sums import ring_sum
from fault_injection.faults.injection import ALL
from fault_injection.machine.errors import InputError
from fault_injection.models.bits import ALL_ONES
from fault_injection.models.fault import Operand, inactive_fault
from fault_injection.models.site import make_fault
from fault_injection.runs.witness import check_struck
from fault_injection.seam.beside import faulty_step
from fault_injection.seam.state_faults import state_sites
from fault_injection.seam.strategies import StartRule, parse_strategy
from fault_injection.seam.trees import leaf_names, same_bits

STEPS = 20
several_devices = pytest.mark.skipif("jax.device_count() < 2", reason="one device holds everything")


# ---- The option ---------------------------------------------------------------------------


@pytest.mark.parametrize("text", NAMES)
def test_a_strategy_is_written_as_it_is_read(text):
    assert str(parse_strategy(text)) == text
    assert small(strategy=text).rules == parse_strategy(text)


ROWS = """model,resnet18
target,{target}
target_epoch,0
target_step,0
inj_pos,0/1
inj_bits,xor:40000000
learning_rate,0.03
seed,123
dataset,digits
width,2
blocks,1/1/1/1
batch_size,128
workers,4
horizon,2
strategy,{strategy}
"""


@pytest.mark.parametrize(
    ("strategy", "target", "message"),
    [
        ("zerro", "params/fc/kernel", "strategy 'zerro'; expected replicated, ddp, horovod, horovod broadcast, zero, "),
        ("local", "params/fc/kernel", "strategy 'local'; expected replicated"),
        ("local 0", "params/fc/kernel", "local N (from 1) or pipeline S (from 2)"),
        ("pipeline 1", "params/fc/kernel", "local N (from 1) or pipeline S (from 2)"),
        ("pipeline 10", "params/fc/kernel", "the chain of resnet18 has 9 parts; expected at most as many stages"),
        ("local 2", "gradient/fc/kernel", "'gradient/fc/kernel' is no leaf of resnet18"),
        ("horovod", "update/fc/kernel", "'update/fc/kernel' is no leaf of resnet18"),
        ("horovod", "params/fc/kernel", "'params/fc/kernel' is one worker's"),
    ],
)
def test_what_a_strategy_does_not_have_is_refused_in_one_line(strategy, target, message, tmp_path, capsys):
    (tmp_path / "wrong.csv").write_text(ROWS.format(target=target, strategy=strategy))
    assert main(["replay", str(tmp_path / "wrong.csv"), "--check"]) == 2
    said = capsys.readouterr().err
    assert message in said and said.count("\n") == 1


# ---- Training without a fault --------------------------------------------------------------


def close(one, other, of=1e-5):
    """Whether leaves differ by no more than a share of the largest element of their part."""
    parts = [name.partition("/")[0] for name in one]
    largest = {
        part: max(np.abs(other[n]).max() for n, p in zip(other, parts, strict=True) if p == part) for part in parts
    }
    for (name, leaf), part in zip(one.items(), parts, strict=True):
        assert np.abs(leaf.astype(np.float64) - other[name]).max() <= of * largest[part], name


@pytest.mark.parametrize("strategy", [name for name in NAMES if name not in ("replicated", "local 3")])
def test_without_a_fault_every_strategy_trains_as_one_shared_state_does(strategy):
    """With plain gradient descent the mean of the workers' steps is the step with the mean gradient."""
    own = program(strategy)
    state, report = trained(own, STEPS)
    shared, golden = trained(program(), STEPS)
    for worker in range(WORKERS):
        close(named(own.state.single(state, worker)), named(shared))
    assert report.loss == pytest.approx(float(golden.loss), rel=1e-5)
    assert np.any(named(shared)["params/fc/kernel"] != named(program().init())["params/fc/kernel"])
    evaluated = own.evaluate(own.place(state)), program().evaluate(program().place(shared))
    assert evaluated[0].loss == pytest.approx(evaluated[1].loss, rel=1e-5)


@pytest.mark.parametrize("optimizer", ["adam", "adamw"])
@pytest.mark.parametrize("strategy", ["zero", "zero parameters"])
def test_shards_change_no_bit(strategy, optimizer):
    """Also where the optimizer clips the norm of the whole gradient."""
    (state, report), (shared, golden) = (trained(program(name, optimizer), STEPS) for name in (strategy, "replicated"))
    assert same_bits(state, shared)
    np.testing.assert_array_equal(report.digest, golden.digest)
    np.testing.assert_array_equal(report.magnitude, golden.magnitude)


@several_devices
@pytest.mark.parametrize(
    ("strategy", "sharded"), [("zero", ("opt_state",)), ("zero parameters", ("opt_state", "params"))]
)
def test_a_device_holds_its_share_of_what_is_sharded_and_keeps_it_through_steps(strategy, sharded):
    own = program(strategy, "adam")
    state, _ = own.step(own.place(own.init()), own.batch(0, 0), 0, 0)
    cut = 0
    for name, leaf in zip(leaf_names(state), jax.tree.leaves(state), strict=True):
        share = own.devices if name.startswith(sharded) and any(n % own.devices == 0 for n in leaf.shape) else 1
        assert {shard.data.size for shard in leaf.addressable_shards} == {leaf.size // share}, name
        cut += share > 1
    assert cut >= 4 * len(sharded)


@pytest.mark.parametrize("optimizer", ["sgd"])
def test_copies_that_go_their_own_ways_are_single_workers_that_are_averaged(optimizer):
    """Each worker alone is a program of its own, on its own batches; every third step, their states are averaged."""
    alone = [program("replicated", optimizer, only=r, devices=1) for r in range(WORKERS)]
    states = [each.place(each.init()) for each in alone]
    own = program("local 3", optimizer)
    state = own.place(own.init())
    for number in range(8):
        at = divmod(number, own.steps_per_epoch)
        state, report = jax.block_until_ready(own.step(state, own.batch(*at), *at))
        pairs = [each.step(states[r], each.batch(*at), *at) for r, each in enumerate(alone)]
        states, reports = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
        if number % 3 == 2:
            mean = jax.tree.map(
                lambda *leaves: np.mean(np.stack(leaves), 0, dtype=leaves[0].dtype), *map(jax.device_get, states)
            )
            states = [each.place(mean) for each in alone]
        for r in range(WORKERS):
            close(named(own.state.single(jax.device_get(state), r)), named(states[r]), 1e-4)
        assert report.loss == pytest.approx(np.mean([float(one.loss) for one in reports]), rel=1e-4)
        gradients = np.stack([one.magnitude[: len(own.state.gradients)] for one in reports]).max(0)
        np.testing.assert_allclose(report.magnitude[: len(own.state.gradients)], gradients, rtol=1e-3, atol=1e-6)
        kernel = np.asarray(state.params["fc"]["kernel"])
        assert same_bits(kernel[0], kernel[1]) == (number % 3 == 2)


# ---- The order of sums ---------------------------------------------------------------------


@pytest.mark.law
@given(each=st.integers(1, 3), sizes=st.lists(st.integers(1, 9), min_size=1, max_size=3), seed=st.integers(0, 99))
@settings(max_examples=8)
def test_a_ring_adds_piece_by_piece_in_the_order_of_the_workers(each, sizes, seed):
    """Bit by bit as NumPy adds float32, on however many devices there are."""
    devices = jax.device_count()
    workers, random = each * devices, np.random.default_rng(seed)
    tree = {
        str(i): np.float32(random.standard_normal((workers, n, 2)) * 10.0 ** random.integers(-6, 6, (workers, n, 2)))
        for i, n in enumerate(sizes)
    }
    flat = np.concatenate([leaf.reshape(workers, -1) for leaf in tree.values()], 1)
    size = -(-flat.shape[1] // workers)
    expected = np.zeros(flat.shape[1], np.float32)
    for k in range(flat.shape[1]):
        first = k // size
        total = flat[first, k]
        for further in range(1, workers):
            total = np.float32(total + flat[(first + further) % workers, k])
        expected[k] = total
    ring = functools.partial(ring_sum, axis=AXIS, devices=devices)
    summing = jax.shard_map(ring, mesh=mesh_of(devices), in_specs=SPLIT, out_specs=WHOLE, check_vma=False)
    found = jax.block_until_ready(jax.jit(summing)(tree))
    assert np.concatenate([np.asarray(leaf).reshape(-1) for leaf in found.values()]).tobytes() == expected.tobytes()


@several_devices
def test_the_step_of_horovod_sums_around_a_ring():
    found = {}
    for name in ("ddp", "horovod"):
        own = program(name)
        found[name] = "collective_permute" in own.extras.lower["step"]().as_text()
    assert found == {"ddp": False, "horovod": True}


# ---- The stages of a pipeline --------------------------------------------------------------


@given(sizes=st.lists(st.integers(0, 9), min_size=1, max_size=7), stages=st.integers(1, 4))
def test_the_largest_stage_is_as_small_as_any_split_makes_it(sizes, stages):
    if len(sizes) < stages:
        with pytest.raises(ValueError, match="cannot be split"):
            stage_sizes(sizes, stages)
        return
    counts = stage_sizes(sizes, stages)
    assert len(counts) == stages and sum(counts) == len(sizes) and min(counts) >= 1

    def smallest(sizes, stages):
        if stages == 1:
            return sum(sizes)
        cuts = range(1, len(sizes) - stages + 2)
        return min(max(sum(sizes[:cut]), smallest(sizes[cut:], stages - 1)) for cut in cuts)

    ends = np.cumsum([0, *counts])
    assert max(sum(sizes[a:b]) for a, b in itertools.pairwise(ends)) == smallest(sizes, stages)


# ---- The start -----------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", NAMES)
def test_a_start_takes_of_each_loader_what_the_rule_says(strategy):
    """To the bit, also of what is not a number."""
    own, single = program(strategy, "adam"), program("replicated", "adam").state.abstract
    loaded, asked = [random_state(single, r) for r in range(own.state.loaders)], []

    def load(r):
        asked.append(r)
        return loaded[r]

    state = named(own.start(load))
    assert sorted(asked) == [*range(own.state.loaders)]
    assert own.state.loaders == parse_strategy(strategy).loaders(WORKERS)
    stages = [list(params) for _, params in staged(NETWORK, parse_strategy(strategy).stages or 1, (1, BATCH, 8, 8, 3))]
    for name, leaf in state.items():
        stage = next((k for k, layers in enumerate(stages) if set(layers) & set(name.split("/"))), 0)
        expected = expected_at_start(strategy, name, [named(one)[name] for one in loaded], stage)
        assert leaf.tobytes() == expected.tobytes(), name
        assert (leaf.shape, leaf.dtype) == (expected.shape, expected.dtype)


@pytest.mark.parametrize("strategy", NAMES)
def test_a_start_from_one_state_is_that_state_in_its_place(strategy):
    """The step that is compiled for one is that for the other."""
    own = program(strategy)
    golden = own.init()
    state, placed = own.start(lambda r: own.state.single(golden, min(r, WORKERS - 1))), own.place(golden)
    assert same_bits(state, placed)
    assert jax.tree.map(lambda leaf: leaf.sharding, state) == jax.tree.map(lambda leaf: leaf.sharding, placed)


def test_a_program_of_any_other_kind_starts_from_its_only_loader():
    other = dataclasses.replace(program(), joined=None, place=lambda state: ("placed", state))
    assert (other.start(lambda r: f"state {r}"), other.state.loaders) == (("placed", "state 0"), 1)


def test_a_state_of_another_shape_is_refused_with_its_loader():
    own = program("ddp")
    wrong = program().init()
    wrong.params["fc"]["kernel"] = wrong.params["fc"]["kernel"].T
    with pytest.raises(
        InputError, match=r"loader 2 has read params/fc/kernel as float32\[5, 8\]; expected float32\[8, 5\]"
    ):
        own.start(lambda r: wrong if r == 2 else program().init())


@pytest.mark.law
@given(
    rule=st.sampled_from([StartRule.FIRST, StartRule.SHARE, StartRule.STAGE]),
    loaders=st.integers(1, 9),
    size=st.integers(0, 50),
)
def test_every_element_has_one_owner(rule, loaders, size):
    parts = [np.arange(size)[owned(rule, r, loaders, size, stage=loaders - 1)] for r in range(loaders)]
    np.testing.assert_array_equal(np.concatenate(parts), np.arange(size))


# ---- Faults --------------------------------------------------------------------------------

STRUCK = frozenset({"conv2", "conv1_grad_wt", "worker_gradient/fc/kernel"})
SITES = list_sites(NETWORK, jax.ShapeDtypeStruct((BATCH, 8, 8, 3), np.float32))


def step(own, fault=None):
    """State and report of one step, on the host."""
    state = own.place(own.init())
    told = (
        own.step(state, own.batch(0, 0), 0, 0)
        if fault is None
        else faulty_step(own, state, own.batch(0, 0), 0, 0, fault)
    )
    return jax.device_get(told)


# What supports faults takes long to compile: one strategy is enough here, and `.ci/run` has all of them.
STEPPING = [name for name in NAMES if name != "horovod broadcast"]  # which starts otherwise, and steps as horovod does
MOST = [name if name == "zero" else pytest.param(name, marks=pytest.mark.slow) for name in STEPPING]
UNSTRUCK = some(MOST, [name for name in MOST if name == "zero" or name.values[0] in ("ddp", "pipeline 4")])


@pytest.mark.parametrize("strategy", UNSTRUCK)
def test_an_inactive_fault_changes_no_bit(strategy):
    own = program(strategy, "adam", STRUCK)
    (plain, golden), (faulty, report) = step(own), step(own, inactive_fault())
    assert same_bits(plain, faulty)
    np.testing.assert_array_equal(golden.digest, report.digest)
    assert report.struck.hits == 0


@pytest.mark.parametrize("strategy", MOST)
@pytest.mark.parametrize("name", ["conv2", "conv1_grad_wt"])
def test_an_operation_of_one_worker_is_struck_once(strategy, name):
    """Also where a stage's forward pass is computed twice."""
    own = program(strategy, "adam", STRUCK)
    fault = make_fault(SITES[name], Operand.OUTPUT, 2, [3], flip=np.float32(7).view(np.uint32))
    state, report = step(own, fault)
    check_struck(name, fault, report.struck)
    assert not same_bits(own.state.single(state, 2), own.state.single(step(own)[0], 2))


@pytest.mark.parametrize(
    ("strategy", "optimizer", "name", "bit"),
    [
        ("zero", "adam", "params/fc/kernel", 22),
        ("zero", "adam", "opt_state/m", 30),  # of a zero, which becomes two
        ("zero parameters", "adam", "params", 30),
        ("pipeline 2", "sgd", "params/fc/kernel", 22),
        ("pipeline 2", "sgd", "opt_state/iterations", 22),
    ],
)
def test_a_fault_in_the_state_strikes_the_one_that_all_workers_share(strategy, optimizer, name, bit):
    own, shared = program(strategy, optimizer), program("replicated", optimizer)
    fault = make_fault(state_sites(own.state)[name], Operand.INPUT, ALL, [0], flip=1 << bit, keep=ALL_ONES)
    (state, report), (expected, golden) = step(own, fault), step(shared, fault)
    assert report.struck.operand_changed == golden.struck.operand_changed == 1
    close(named(state), named(expected))
    assert same_bits(state, expected) or strategy.startswith("pipeline")
    assert not same_bits(state, step(own)[0])


def statistics(state, worker):
    """One worker's running statistics, by name."""
    return {name: leaf[worker] for name, leaf in named(state.stats).items()}


def test_buffers_of_worker_0_reach_all_before_the_next_forward_pass():
    """As PyTorch does it: what another worker's statistics were is forgotten, and what worker 0's were is not."""
    own = program("ddp buffers")
    plain, _ = step(own)
    alone, _ = trained(program(only=0), 1)  # at the first step the parameters are the same
    for worker in range(WORKERS):
        close(statistics(plain, worker), named(alone.stats))
    site = state_sites(own.state)["stats/bn1/mean"]
    reached = {}
    for worker in (0, 2):
        fault = make_fault(site, Operand.INPUT, worker, [3], keep=ALL_ONES, flip=np.array([0x42000000], np.uint32))
        struck, report = step(own, fault)
        assert report.struck.operand_changed == 1
        means = [[statistics(state, r)["bn1/mean"] for r in range(WORKERS)] for state in (struck, plain)]
        reached[worker] = [np.flatnonzero(one != other).tolist() for one, other in zip(*means, strict=True)]
        assert same_bits(struck.params, plain.params)
    assert reached == {0: [[3]] * WORKERS, 2: [[]] * WORKERS}


@several_devices
@pytest.mark.parametrize("strategy", ["local 3", "zero parameters"])
def test_devices_that_differ_without_a_fault_are_not_compared(strategy):
    with pytest.raises(InputError, match="replicas compares"):
        replicas(program(strategy))


@pytest.mark.slow
def test_this_holds_on_eight_devices(repository):
    if jax.device_count() > 1:
        return  # this is the process that the test has started
    # Collectives of a process wait for one another; each device needs a thread, and its operations need others.
    environment = os.environ | {"XLA_FLAGS": "--xla_force_host_platform_device_count=8", "NPROC": "16"}
    options = ["-x", "-p", "no:cacheprovider", "tests/test_strategies.py"]
    command = [sys.executable, "-m", "pytest", *options]
    done = subprocess.run(command, cwd=repository, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:]
