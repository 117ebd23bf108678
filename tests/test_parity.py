"""The networks compute what the published implementation computes, and the transformer what Hugging Face's Llama does.

Each fixture holds numbers of the published TensorFlow implementation for one workload; the transformer's are in
`library_parity.py`, with PyTorch's for DLRM.
`pytest tests/test_parity.py --fixtures DIR` reads other cases of the same format.
"""

import collections
from functools import cache
from types import SimpleNamespace

import jax
import numpy as np
import optax
import pytest
import recipe
from conftest import FIXTURES
from library_parity import QUICKLY, TestDlrm, TestTransformer  # noqa: F401
from whole import only_whole

from fault_injection.explicit.batch_source import OpenData
from fault_injection.explicit.passes import forward_and_backward
from fault_injection.explicit.program import explicit_program
from fault_injection.explicit.recipe import Recipe
from fault_injection.explicit.sites import list_sites
from fault_injection.explicit.state import ExplicitState
from fault_injection.models.fault import Operand, inactive_fault
from fault_injection.models.layer import Context
from fault_injection.models.loss import cross_entropy
from fault_injection.models.networks import NETWORKS
from fault_injection.models.site import make_fault
from fault_injection.seam.measure import Measure
from fault_injection.workloads.image import PUBLISHED
from fault_injection.workloads.image_recipe import OPTIMIZERS

STRICT = 1e-4  # forward values, relative to the largest element
LOOSE = 2e-2  # single gradients: one ReLU at almost exactly zero may flip with rounding
# Cases with such ReLUs: how far they move gradients and backward operands.  Which of them flip, and so which
# layers' gradients move, depends on the processor.
FLIPPED = {"densenet": LOOSE, "nfnet": 5e-3}
# There, behind hundreds of narrow layers, one moves this many tensors further, up to so far.
HANDFUL = {"densenet": (5, 5e-2)}
QUICK = ("resnet18", "resnet18_sgd")  # share a network; one is enough for every change
OTHERS = ("densenet",)  # whose kinds of layers other networks have, and whose hundreds of layers compile for minutes
OBSERVED = frozenset({"operands", "gradients"})  # of the fault-free step
K = 64  # one executable for all injections
OPERANDS = {"input": "input", "kernel": "weight", "output": "output"}
INJECTED = collections.defaultdict(set)  # the sites that fixtures strike, by network: others are not compiled for
COMPILED = {"effnet": jax.jit}  # without optimisation, its depthwise convolutions take twenty times as long
MODELS = {"INPUT": Operand.INPUT, "WT": Operand.WEIGHT}


def marked(workload, *values, id):
    """A parameter, with the slow mark but for QUICK workloads."""
    marks = [] if workload in QUICK else [pytest.mark.slow, *([only_whole] if workload in OTHERS else [])]
    return pytest.param(*values, id=id, marks=marks)


def pytest_generate_tests(metafunc):
    """One test per fixture, injection, or case of two workers; the workload is in its id."""
    if metafunc.cls is not None:  # it has a hook of its own
        return
    fixtures = [recipe.load(path) for path in sorted(metafunc.config.stash[FIXTURES].glob("*.json.gz"))]
    fixtures = [fixture for fixture in fixtures if fixture["workload"] in PUBLISHED]
    if "case" in metafunc.fixturenames:
        cases = [marked(fixture["workload"], fixture, id=fixture["workload"]) for fixture in fixtures]
        metafunc.parametrize("case", cases, scope="session")
    entries = {
        "injection": lambda fixture: fixture["injections"],
        "two_workers": lambda fixture: fixture.get("multi_replica", {"cases": []})["cases"],
    }
    for argument in entries.keys() & set(metafunc.fixturenames):
        values = []
        for fixture in fixtures:
            for i, entry in enumerate(entries[argument](fixture)):
                workload, spec = fixture["workload"], entry.get("spec", entry)
                spec = spec or {"layer": "fault-free", "fmodel": "none"}
                name = f"{workload}-{i}-{spec['layer']}-{spec['fmodel']}"
                INJECTED[PUBLISHED[workload].network].add(spec["layer"])
                values.append(marked(workload, (fixture, entry), id=name))
        metafunc.parametrize(argument, values)


@cache
def network_of(workload):
    w = PUBLISHED[workload]
    return NETWORKS[w.network](width=w.width, blocks=w.blocks, dropout_rate=0.0)


def optimizer_of(workload, rate):
    w = PUBLISHED[workload]
    return OPTIMIZERS[w.optimizer](optax.polynomial_schedule(rate, w.end_learning_rate, 1, w.decay_steps))


def weights_of(case):
    """Parameters and statistics of a fixture, as the network names them."""
    params, stats = {}, {}
    for entry in case["manifest"]:
        layer, name = entry["name"].replace("_skip_gain", "/skip_gain").rsplit("/", 1)
        params.setdefault(layer, {})[name] = recipe.weight(**entry)
    for entry in case["bn_manifest"]:
        layer = entry["name"].rsplit("/", 1)[0]
        zero = np.zeros(entry["shape"], np.float32)
        stats[layer] = {"mean": zero, "var": zero + 1}
    return jax.device_put((params, stats))  # as steps return them: an executable serves both


def batch_of(case, workers):
    image, label = recipe.images(case["N"])
    return {"input": image.reshape(workers, -1, *image.shape[1:]), "target": label.reshape(workers, -1)}


@cache
def compiled(network):
    """One executable for all workloads that share a network: for the fault-free step and for all injections.

    That an inactive fault changes no bit, `test_training.py` proves.
    """
    built = network_of(next(name for name in PUBLISHED if PUBLISHED[name].network == network))

    @COMPILED.get(network, QUICKLY)
    def run(params, stats, batch, fault):
        workers = np.arange(batch["target"].shape[0])
        ctx = Context(jax.random.key(0), workers, fault=fault, observe=OBSERVED, supported=frozenset(INJECTED[network]))
        return forward_and_backward(built, params, stats, batch, ctx, batch["target"].size)

    return run


def run(case, fault, workers=1):
    params, stats = weights_of(case)
    network = PUBLISHED[case["workload"]].network
    loss, _, stats, grads, seen, logits = jax.device_get(
        compiled(network)(params, stats, batch_of(case, workers), fault)
    )
    return {"loss": loss, "stats": stats, "grads": grads, "seen": seen, "logits": logits}


@pytest.fixture(scope="session")
def golden(case):
    return run(case, inactive_fault(K))


def named(tree):
    joined = {(layer, name): leaf for layer, leaves in tree.items() for name, leaf in leaves.items()}
    return {"/".join(path).replace("/skip_gain", "_skip_gain"): leaf for path, leaf in joined.items()}


def named_stats(stats):
    long = {"mean": "moving_mean", "var": "moving_variance"}
    return {f"{layer}/{long[name]}": leaf for layer, leaves in stats.items() for name, leaf in leaves.items()}


def all_mismatches(arrays, stored, rtol, skip=()):
    assert stored.keys() <= arrays.keys()
    found = (recipe.mismatch(name, arrays[name], stored[name], rtol) for name in stored if name not in skip)
    return [text for text in found if text]


def far_off(case, arrays, stored, rtol, skip=()):
    """What is off by more than `rtol`, a handful that is off by little more left out where such are known."""
    found = all_mismatches(arrays, stored, rtol, skip)
    most, furthest = HANDFUL.get(case["workload"], (0, rtol))
    return all_mismatches(arrays, stored, furthest, skip) if rtol >= LOOSE and len(found) <= most else found


def assert_gradients(case, grads, entry, loose, flipped):
    """All within `loose` of their largest element; within STRICT, or what nfnet's ReLUs move, but for the share
    `flipped` of them, where the two CPU libraries behind the fixture agree that well themselves."""
    stored, noise, skip = entry["grads"], entry.get("grads_noise", {}), case["golden"]["zero_grad_params"]
    assert not far_off(case, named(grads), stored, loose, skip)
    skip = {*skip, *(name for name in noise if noise[name] > STRICT / 10)}
    strict = FLIPPED["nfnet"] if case["workload"] == "nfnet" else STRICT
    moved = all_mismatches(named(grads), stored, strict, skip)
    assert len(moved) <= flipped * len(stored), moved


def test_loss_logits_and_running_statistics(case):
    network, (params, stats), batch = network_of(case["workload"]), weights_of(case), batch_of(case, 1)

    @QUICKLY
    def forward(params, stats, batch):
        ctx = Context(key=jax.random.key(0), workers=np.arange(1))
        logits, stats, _, _ = network.forward(params, stats, batch["input"], ctx)
        return logits, stats, cross_entropy(logits, batch["target"])[0]

    logits, stats, loss = jax.device_get(forward(params, stats, batch))
    np.testing.assert_allclose(loss.mean(), case["golden"]["loss"], rtol=1e-5)
    np.testing.assert_allclose(logits[0], case["golden"]["logits"], rtol=1e-4, atol=1e-4)
    assert not all_mismatches(named_stats(stats), case["golden"]["bn_moving"], STRICT)


# One parameter, the case, and no other: pytest would make the fixtures below again and again.


def test_every_operand_of_every_published_site(case, golden):
    for stage, rtol in (("fwd_sites", STRICT), ("bwd_sites", FLIPPED.get(case["workload"], 10 * STRICT))):
        found, stored = {}, {}
        for site, operands in case["golden"][stage].items():
            for theirs, ours in OPERANDS.items():
                tensor = golden["seen"].tensors["operands"][site][ours][0]
                assert list(tensor.shape) == operands[theirs]["shape"], (site, ours)
                found[f"{site}|{theirs}"], stored[f"{site}|{theirs}"] = tensor, operands[theirs]
        assert not far_off(case, found, stored, rtol)


def test_gradients(case, golden):
    known = case["workload"] in FLIPPED
    assert_gradients(case, golden["grads"], case["golden"], FLIPPED.get(case["workload"], LOOSE), flipped=int(known))
    assert not recipe.mismatch(
        "grad_start", grad_start(case, golden["seen"].tensors), case["golden"]["grad_start"], STRICT
    )


def grad_start(case, tensors):
    """The gradient where the published explicit backward pass starts."""
    if case["workload"] == "nfnet":  # at the last block's output: its last convolution's, but for the skip gain
        gain = next(recipe.weight(**entry) for entry in case["manifest"] if entry["kind"] == "skip_gain")
        return tensors["operands"]["NF_ResNet_block_7_conv2_grad_in"]["input"][0] / gain
    return tensors["gradients"]["bn2" if case["workload"] == "effnet" else "pool"][0]


@cache
def sites_of(workload, worker_batch):
    return list_sites(network_of(workload), jax.ShapeDtypeStruct((worker_batch, 32, 32, 3), np.float32))


def fault_of(case, spec, worker, workers=1):
    operand = MODELS.get(spec["fmodel"].removeprefix("N64_"), Operand.OUTPUT)
    index = np.ravel_multi_index(np.array(spec["pos"]).T, spec["operand_shape"])
    values = np.array(spec["values"], np.float32).view(np.uint32)
    site = sites_of(case["workload"], case["N"] // workers)[spec["layer"]]
    assert site.shapes[operand] == tuple(spec["operand_shape"])
    return make_fault(site, operand, worker, index, flip=values, size=K)


def assert_injected(case, faulty, entry, spec, stats_name):
    struck, count = faulty["seen"].struck, len(spec["values"])
    assert struck.hits == 1
    old = struck.old[:count].view(np.float32)
    known = spec["golden_at_pos"]
    np.testing.assert_allclose(old[: len(known)], known, rtol=1e-2, atol=1e-4 * np.abs(known).max())
    np.testing.assert_array_equal(struck.new[:count].view(np.float32), np.float32(spec["values"]))
    assert struck.operand_changed == np.sum(struck.old[:count] != struck.new[:count])

    expected = entry.get("xla", entry)  # accelerator arithmetic where given
    if entry.get("two_pass_only"):
        assert not np.isfinite(faulty["loss"])
        return
    np.testing.assert_allclose(faulty["loss"], expected["loss"], rtol=1e-4)
    if "nonfinite_params" in expected:
        nonfinite = {n for n, g in named(faulty["grads"]).items() if not np.isfinite(g).all()}
        if case["workload"] == "densenet":
            # There a NaN closes its dropout mask, also at rate 0, so that fewer gradients are NaN, and less of each.
            assert nonfinite >= set(expected["nonfinite_params"])
            assert len(nonfinite) == (484 if expected["nonfinite_params"] else 0)  # of 490
            expected = {**expected, "grads": {n: s for n, s in expected["grads"].items() if n not in nonfinite}}
        else:
            assert nonfinite == set(expected["nonfinite_params"])
    assert_gradients(case, faulty["grads"], {**entry, **expected}, LOOSE, flipped=0.5)
    if stats_name in expected:
        assert not all_mismatches(named_stats(faulty["stats"]), expected[stats_name], 10 * STRICT)
    if "grads_changed" in entry:
        clean = run(case, inactive_fault(K))
        before, after = named(clean["grads"]), named(faulty["grads"])
        changed = sum(before[name].tobytes() != after[name].tobytes() for name in before)
        assert changed == entry["grads_changed"]


def test_injection(injection):
    case, entry = injection
    faulty = run(case, fault_of(case, entry, 0))
    assert_injected(case, faulty, entry, entry, "bn_moving")


@pytest.mark.slow  # a program of its own
def test_two_workers(two_workers):
    case, entry = two_workers
    spec = entry["spec"]
    fault = inactive_fault(K) if spec is None else fault_of(case, spec, spec["target_replica"], workers=2)
    result = run(case, fault, workers=2)
    if spec is None:
        np.testing.assert_allclose(result["loss"], entry["loss"], rtol=1e-5)
        # A ReLU that flips moves every gradient before its layer, and which one flips depends on the processor.
        assert_gradients(case, result["grads"], entry, LOOSE, flipped=0.5)
        stored = entry["bn_moving_mean_over_replicas"]
        assert not all_mismatches(named_stats(result["stats"]), stored, STRICT)
    else:
        assert_injected(case, result, entry, spec, "bn_moving_mean_over_replicas")


@pytest.fixture(scope="session")
def trained(case):
    """States after one and two steps on the same batch, losses before them and of a third forward pass."""
    rate = case["optimizer"]["steps"][0]["lr"]  # nfnet's was made with another than the workload's
    optimizer = optimizer_of(case["workload"], rate)
    step = compiled(PUBLISHED[case["workload"]].network)

    @QUICKLY
    def update(grads, opt_state, params):
        updates, opt_state = optimizer.update(grads, opt_state, params)
        return optax.apply_updates(params, updates), opt_state

    params, stats = weights_of(case)
    state, states, losses = ExplicitState(params, stats, optimizer.init(params)), [], []
    for _ in range(3):
        loss, _, stats, grads, *_ = step(state.params, state.stats, batch_of(case, 1), inactive_fault(K))
        params, opt_state = update(grads, state.opt_state, state.params)
        state = ExplicitState(params, stats, opt_state)
        states.append(jax.device_get(state))
        losses.append(float(loss))
    return states, losses


def test_optimizer(case, trained):
    states, losses = trained
    skip = set(case["golden"]["zero_grad_params"])
    # Adam turns the noise of gradients that are zero in exact arithmetic into ±rate, which moves
    # running means a little in the second step; and so the smallest gradients, where a ReLU moves them.
    noise = FLIPPED.get(case["workload"], 0)
    moved = 1e-2 if case["workload"] == "effnet" else 5e-3
    for step, (before, params, stats) in enumerate([(1e-5, 2e-4, 1e-4), (5e-3, 5e-3, moved)]):
        stored = case["optimizer"]["steps"][step]
        np.testing.assert_allclose(losses[step], stored["loss_before"], rtol=before)
        assert not all_mismatches(named(states[step].params), stored["params"], max(noise, params), skip)
        assert not all_mismatches(named_stats(states[step].stats), stored["bn_moving"], max(noise, stats))


def test_evaluation_uses_the_running_statistics(case, trained):
    states, losses = trained
    stored = case["optimizer"]
    # Two steps may have brought the loss near zero, where its relative error means nothing: densenet's falls from
    # 2.99 to 0.010 in the fixture, and to 0.019 on other processors.
    np.testing.assert_allclose(losses[2], stored["loss_after_2"], rtol=2e-2, atol=5e-3 * losses[0])
    predictions, labels = np.array(stored["eval_predictions"]), np.array(case["labels"])
    expected = -np.log(np.maximum(predictions[np.arange(len(labels)), labels], 1e-45)).mean()
    state, batch = states[1].replace(stats=states[2].stats), batch_of(case, 1)
    assert np.isclose(evaluated(case, state, batch).loss, expected, rtol=5e-2)


def evaluated(case, state, batch):
    """What the program's own evaluation says of a state on one batch."""
    image = batch["input"].shape[2:]
    test = [{**batch, "weight": np.ones_like(batch["target"], np.float32)}]
    recipe = Recipe(
        network_of(case["workload"]),
        optimizer_of(case["workload"], 1e-3),
        jax.ShapeDtypeStruct(image, np.float32),
        lambda: OpenData(
            SimpleNamespace(test=lambda: iter(test)), Measure("accuracy", "higher", 0.1, 0.02), "a fixture"
        ),
        workers=1,
        batch_size=case["N"],
        steps_per_epoch=1,
        seed=0,
    )
    program = explicit_program(recipe)
    return program.evaluate(program.place(state))
