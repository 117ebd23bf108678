"""Faults between the passes and the new state: a worker's gradient, the summed one, and the update."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small import small

from fault_injection.commands.main import main
from fault_injection.explicit.batch_source import OpenData
from fault_injection.explicit.optimizers import keras_adam
from fault_injection.explicit.passes import forward_and_backward
from fault_injection.explicit.program import explicit_program
from fault_injection.explicit.recipe import Recipe
from fault_injection.faults.injection import ALL
from fault_injection.faults.injection_file import format_injection, parse_injection
from fault_injection.models.bits import ALL_ONES
from fault_injection.models.combinators import chain
from fault_injection.models.fault import Operand, inactive_fault
from fault_injection.models.layer import Context
from fault_injection.models.layers.activation import relu
from fault_injection.models.layers.dense import dense
from fault_injection.models.site import make_fault
from fault_injection.runs.witness import check_struck
from fault_injection.seam.beside import faulty_step
from fault_injection.seam.digest import digest
from fault_injection.seam.measure import Measure
from fault_injection.seam.stages import EXCHANGED, GRADIENT, UPDATE, WORKER_GRADIENT
from fault_injection.seam.state_faults import state_sites
from fault_injection.seam.strategies import DDP, REPLICATED
from fault_injection.seam.trees import leaf_names, same_bits

WORKERS, BATCH, INPUTS, CLASSES = 4, 8, 5, 3
NETWORK, ADAM = chain(dense("hidden", 6), relu(), dense("fc", CLASSES)), keras_adam(0.01)


class Drawn:
    """Batches of random numbers."""

    def train(self, epoch, step):
        random = np.random.default_rng([epoch, step])
        x = random.standard_normal((WORKERS, BATCH, INPUTS), np.float32)
        return {"input": x, "target": random.integers(CLASSES, size=(WORKERS, BATCH), dtype=np.int32)}

    def test(self):
        return iter(())


@functools.cache
def program(supported=frozenset(), strategy=REPLICATED):
    recipe = Recipe(
        NETWORK,
        ADAM,
        jax.ShapeDtypeStruct((INPUTS,), np.float32),
        lambda: OpenData(Drawn(), Measure("loss", "lower", 1.0, 0.1), "drawn"),
        workers=WORKERS,
        batch_size=WORKERS * BATCH,
        steps_per_epoch=10,
        seed=1,
        strategy=strategy,
    )
    return explicit_program(recipe, supported)


STRIKING = functools.partial(program, frozenset(program().state.exchanged) | {"fc"})


@functools.cache
def before():
    """A state after some steps, so that Adam has a history."""
    own = program()
    state = own.place(own.init())
    for step in range(3):
        state, _ = own.step(state, own.batch(0, step), 0, step)
    return jax.device_get(state)


@functools.cache
def golden():
    own = program()
    return jax.device_get(own.step(own.place(before()), own.batch(0, 3), 0, 3))


def struck(fault):
    """State and report after the fourth step with a fault."""
    own = STRIKING()
    return jax.device_get(own.faulty_step(own.place(before()), own.batch(0, 3), 0, 3, fault))


def gradients(workers):
    """The sum of some workers' gradients, by the passes that the step is made of."""
    batch = jax.tree.map(lambda part: part[np.array(workers)], Drawn().train(0, 3))
    ctx = Context(jax.random.key(0), jnp.array(workers, jnp.int32))
    state = before()
    return forward_and_backward(NETWORK, state.params, state.stats, batch, ctx, WORKERS * BATCH).grads


def test_support_of_such_faults_adds_nothing_to_the_plain_step():
    """All steps but the struck ones are plain; the program is the same, so its time is."""
    plain, supporting = (
        program(),
        program(frozenset({"gradient/fc/kernel", "params/fc/kernel", "worker_gradient/fc/bias"})),
    )
    assert supporting.extras.lower["step"]().as_text() == plain.extras.lower["step"]().as_text()


@given(
    stage=st.sampled_from(EXCHANGED),
    path=st.sampled_from(leaf_names(program().state.abstract.params)),
    worker=st.integers(0, WORKERS - 1),
    at=st.integers(0, 10**6),
    bit=st.integers(0, 31),
)
@settings(max_examples=60)
def test_a_struck_element_is_what_arithmetic_says_and_all_others_keep_their_bits(stage, path, worker, at, bit):
    site = program().state.exchanged[f"{stage}/{path}"]
    shape = site.shapes[Operand.INPUT]
    place = np.unravel_index(at % np.prod(shape), shape)
    index = int(np.ravel_multi_index(place, shape))
    of = worker if stage == WORKER_GRADIENT else ALL
    state, report = struck(make_fault(site, Operand.INPUT, of, [index], keep=ALL_ONES, flip=1 << bit))
    old, new = (words[:1].view(np.float32)[0] for words in (report.struck.old, report.struck.new))
    assert report.struck.old[0] ^ report.struck.new[0] == 1 << bit
    assert (report.struck.hits, report.struck.operand_changed) == (1, 1)

    layer, name = path.split("/")
    total = gradients(range(WORKERS))[layer][name][place]
    share = gradients([worker])[layer][name][place]
    start, clean = before(), golden()[0]
    m, v, p = (np.float64(tree[layer][name][place]) for tree in (start.opt_state.m, start.opt_state.v, start.params))
    update = np.float64(clean.params[layer][name][place]) - p
    read = {WORKER_GRADIENT: share, GRADIENT: total, UPDATE: update}[stage]
    np.testing.assert_allclose(old, read, rtol=1e-3, atol=1e-7)
    with np.errstate(all="ignore"):
        g = np.float64({WORKER_GRADIENT: np.float64(total) - share + new, GRADIENT: new, UPDATE: total}[stage])
        m, v = m + (g - m) * 0.1, v + (g * g - v) * 0.001
        if stage != UPDATE:
            new = -0.01 * np.sqrt(1 - 0.999**4) / (1 - 0.9**4) * m / (np.sqrt(v) + 1e-7)
        expected = np.float32([m, v, p + new])
    found = np.array([tree[layer][name][place] for tree in (state.opt_state.m, state.opt_state.v, state.params)])
    if np.isfinite(expected).all():
        np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-6)

    for tree, other in zip(jax.tree.leaves(state), jax.tree.leaves(clean), strict=True):
        assert np.sum(np.asarray(tree).view(np.uint32) != np.asarray(other).view(np.uint32)) <= 1


def test_a_step_that_strikes_nothing_is_the_plain_step():
    own, rest = golden(), struck(inactive_fault())
    assert same_bits(own[0], rest[0])
    assert rest[1].struck.hits == 0
    np.testing.assert_array_equal(own[1].digest, rest[1].digest)


def test_an_operation_is_struck_beside_them():
    site = small().sites()["fc"]
    fault = make_fault(dataclasses.replace(site), Operand.OUTPUT, 1, [0], flip=np.float32(5).view(np.uint32))
    assert struck(fault)[1].struck.hits == 1


def test_several_elements_of_a_gradient_are_struck_together():
    site = program().state.exchanged["gradient/fc/kernel"]
    state, report = struck(make_fault(site, Operand.INPUT, ALL, [0, 4, 7], flip=0))
    assert report.struck.operand_changed == 3
    differ = np.flatnonzero(state.opt_state.m["fc"]["kernel"] != golden()[0].opt_state.m["fc"]["kernel"])
    assert differ.tolist() == [0, 4, 7]


# ---- Parts of the state --------------------------------------------------------------------

PARTS = {name: site for name, site in state_sites(program().state).items() if not site.layer}


def test_a_part_has_the_elements_of_its_leaves():
    size = sum(leaf.size for leaf in jax.tree.leaves(program().state.abstract.params))
    assert {name: site.shapes[Operand.INPUT] for name, site in PARTS.items()} == dict.fromkeys(
        ["params", "opt_state/m", "opt_state/v"], (size,)
    )


@given(part=st.sampled_from(list(PARTS)), seed=st.integers(0, 10**6))
@settings(max_examples=20)
def test_faults_in_a_part_are_faults_in_its_leaves(part, seed):
    """Inverted bits, new ones and copies, also from one leaf to another."""
    random, (size,) = np.random.default_rng(seed), PARTS[part].shapes[Operand.INPUT]
    index, source = random.permutation(size)[:9], random.integers(size, size=9)
    keep = random.choice(np.uint32([0, 0xFFFFFFFF]), 9)
    source, flip = np.where(np.arange(9) < 3, source, index), random.integers(2**32, size=9, dtype=np.uint32)
    fault = make_fault(PARTS[part], Operand.INPUT, ALL, index, source=source, keep=keep, flip=flip)

    own, start = program(), before()
    leaves = [np.asarray(leaf) for name, leaf in named(start) if name.startswith(f"{part}/")]
    words = np.concatenate([leaf.ravel() for leaf in leaves]).view(np.uint32)
    changed = words.copy()
    changed[index] = (words[source] & keep) ^ flip
    parts = iter(np.split(changed.view(np.float32), np.cumsum([leaf.size for leaf in leaves])[:-1]))
    by_hand = [
        next(parts).reshape(np.shape(leaf)) if name.startswith(f"{part}/") else leaf for name, leaf in named(start)
    ]
    expected = jax.tree.unflatten(jax.tree.structure(start), by_hand)

    state, report = faulty_step(own, own.place(start), own.batch(0, 3), 0, 3, fault)
    assert same_bits(state, own.step(own.place(expected), own.batch(0, 3), 0, 3)[0])
    assert report.struck.operand_changed == np.sum(changed != words)
    check_struck(part, fault, jax.device_get(report.struck))


def named(state):
    return zip(leaf_names(state), jax.tree.leaves(state), strict=True)


# ---- One worker's copy --------------------------------------------------------------------


def own_copies(steps, strike=None):
    """The states after each of some steps, where each worker has its own copy; `strike` is a fault in the first."""
    own = program(strategy=DDP)
    state, found = own.place(own.init()), []
    for step in range(steps):
        batch = own.batch(0, step)
        if strike is not None and step == 0:
            state, report = faulty_step(own, state, batch, 0, step, strike)
        else:
            state, report = own.step(state, batch, 0, step)
        found.append(jax.device_get((state, report)))
    return found


def test_copies_stay_alike_without_a_fault_and_train_as_one_state_does():
    own = program()
    state = own.place(own.init())
    for step, (copies, told) in enumerate(own_copies(5)):
        state, report = own.step(state, own.batch(0, step), 0, step)
        assert told.loss == pytest.approx(float(report.loss), rel=1e-5)
        for shared, leaf in zip(jax.tree.leaves(state), jax.tree.leaves(copies), strict=True):
            assert same_bits(leaf[:1], leaf[1:2]) and same_bits(leaf[:1], leaf[-1:])
            np.testing.assert_allclose(leaf[0], shared, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "bit"),
    [("params/fc/kernel", 20), ("opt_state/m", 30), pytest.param("opt_state/iterations", 20, marks=pytest.mark.slow)],
)
def test_one_workers_copy_diverges_as_its_rule_says(name, bit):
    """The others' copies stay alike: all read one gradient, in which the struck worker's share is another."""
    own, worker = program(strategy=DDP), 2
    fault = make_fault(state_sites(own.state)[name], Operand.INPUT, worker, [0], flip=1 << bit, keep=ALL_ONES)
    clean, found = own_copies(4), own_copies(4, fault)
    assert found[0][1].struck.operand_changed == 1
    start = jax.tree.map(np.array, jax.device_get(own.init()))
    paths = [path for path in leaf_names(start) if path == name or path.startswith(f"{name}/")]
    struck = dict(zip(leaf_names(start), jax.tree.leaves(start), strict=True))[paths[0]]
    struck[worker : worker + 1].reshape(-1).view(np.uint32)[0] ^= 1 << bit
    by_hand = start.params, start.opt_state
    for step in range(4):
        batch = own.batch(0, step)
        total = jax.tree.map(jnp.zeros_like, jax.tree.map(lambda leaf: leaf[0], by_hand[0]))
        for r in range(WORKERS):
            params = jax.tree.map(lambda leaf, r=r: leaf[r], by_hand[0])
            part = jax.tree.map(lambda leaf, r=r: leaf[r : r + 1], batch)
            ctx = Context(jax.random.key(0), jnp.array([r], jnp.int32))
            share = forward_and_backward(NETWORK, params, {}, part, ctx, WORKERS * BATCH).grads
            total = jax.tree.map(jnp.add, total, share)
        each = []
        for r in range(WORKERS):
            params, history = jax.tree.map(lambda leaf, r=r: leaf[r], by_hand)
            updates, history = ADAM.update(total, history, params)
            each.append((optax.apply_updates(params, updates), history))
        by_hand = jax.tree.map(lambda *leaves: np.stack(leaves), *each)
        state, report = found[step]
        expected = jax.tree.leaves(by_hand)
        for leaf, other in zip(jax.tree.leaves((state.params, state.opt_state)), expected, strict=True):
            np.testing.assert_allclose(leaf, other, rtol=2e-3, atol=1e-5)
            others = np.delete(np.asarray(leaf), worker, axis=0)
            assert all(same_bits(others[0], other) for other in others)
        assert (report.digest != clean[step][1].digest).any()
        np.testing.assert_array_equal(report.digest, digest(state))


# ---- Files and commands -------------------------------------------------------------------

ROWS = """model,resnet18
target,{target}
{worker}target_epoch,0
target_step,0
inj_pos,0/1
inj_bits,xor:40000000
learning_rate,0.03
seed,123
dataset,digits
width,4
"""


def rows(target, worker=None):
    return ROWS.format(target=target, worker="" if worker is None else f"target_worker,{worker}\n")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (rows("gradient/fc/kernel"), "before the optimizer reads the summed gradient"),
        (rows("worker_gradient/fc/kernel", 3), "before the gradient of worker 3 is added"),
        (rows("update/fc/kernel"), "before the update is added to the parameters"),
        (rows("params/fc/kernel", 3) + "strategy,ddp\n", "before worker 3 reads its copy of the state"),
        (rows("params").replace("0/1", "1000"), "element 1000 has its bits 40000000 inverted in params ["),
        (rows("update/fc/kernel").replace("inj_pos,0/1", "inj_lane,5/16"), "20 elements from 0/5 to 30/9"),
    ],
)
def test_the_rows_of_a_file(text, sentence):
    injection = parse_injection(text)
    assert sentence in injection.sentence()
    assert parse_injection(format_injection(injection)) == injection


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (rows("gradient/fc/kernal"), "is no leaf of resnet18; did you mean 'gradient/fc/kernel'?"),
        (rows("gradient/fc/kernel", 3), "all workers share 'gradient/fc/kernel'; leave out target_worker"),
        (rows("params/fc/kernel", 3), "leave out target_worker, or give each its own copy: strategy,ddp"),
        (rows("params/fc/kernel") + "strategy,ddp\n", "'params/fc/kernel' is one worker's; expected a row"),
        (rows("worker_gradient/fc/kernel"), "is one worker's; expected a row 'target_worker,…'"),
        (rows("update/fc/kernel").replace("pos,0/1", "lane,5/4"), "'5/4'; expected a lane and the number of lanes"),
        (
            rows("update/fc/bias").replace("pos,0/1", "lane,50/64"),
            "computes nothing: update/fc/bias has 10 elements",
        ),
        (rows("update/fc/bias") + "inj_lane,0/2\n", "inj_lane says which elements are struck, and so does inj_pos"),
        (rows("worker_gradient/fc/kernel", 8), "target_worker 8 is not among the 8 workers"),
    ],
)
def test_a_mistake_is_one_line(text, message, tmp_path, capsys):
    path = tmp_path / "wrong.csv"
    path.write_text(text)
    assert main(["replay", str(path), "--check"]) == 2
    said = capsys.readouterr().err
    assert message in said and said.count("\n") == 1
