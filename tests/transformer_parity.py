"""The transformer computes what Hugging Face's Llama computes.

The fixture holds numbers of `LlamaForCausalLM` for two configurations: T1 with as many heads of keys
as of queries and a head of its own, T2 with half as many and a head that shares the table.
Where the form of the arithmetic decides, it holds the results of several forms; ours is FORM.
"""

import functools
import math

import jax
import numpy as np
import optax
import pytest
import recipe
from conftest import FIXTURES

from fault_injection.explicit.optimizers import clipped_adamw
from fault_injection.explicit.passes import forward_and_backward
from fault_injection.explicit.sites import list_sites
from fault_injection.models.fault import Operand, inactive_fault
from fault_injection.models.layer import Context
from fault_injection.models.loss import nats_per_token
from fault_injection.models.networks.transformer import transformer
from fault_injection.models.site import make_fault

FORM = "mask_select+rmsnorm_xhat"  # docs/backward.md: Attention, RMS norm
FORWARD = 1e-5  # loss, logits, operands and gradients without a fault, relative to the largest element
INJECTED = 1e-4  # gradients after an injection
ADAMW = 5e-5  # parameters after a step: a gradient near 0 gives a noisy one
RATE = 1e-3
K = 64  # one executable for all injections
QUICKLY = functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})  # compiles faster
OPERANDS = {"input": Operand.INPUT, "kernel": Operand.WEIGHT, "weight": Operand.WEIGHT, "output": Operand.OUTPUT}


def parts(case):
    """Network, parameters and batch of a configuration; cached by its name, which says them all."""
    name, stored = case
    if name not in _parts:
        c = stored["config"]
        assert (c["rope_theta"], c["rms_eps"]) == (10000.0, 1e-05)
        names = {"blocks": "layers", **{n: n for n in ("vocabulary", "width", "heads", "kv_heads", "tied", "hidden")}}
        network = transformer(**{ours: c[theirs] for ours, theirs in names.items()})
        params = {}
        for entry in stored["manifest"]:
            layer, leaf = entry["name"].split("/")
            params.setdefault(layer, {})[leaf] = recipe.weight(**entry)
        found = jax.eval_shape(lambda: network.init((0,), (1, c["b"], c["T"]))[0])
        assert jax.tree.map(np.shape, params) == jax.tree.map(np.shape, found)
        tokens, targets = recipe.tokens(c["vocabulary"], c["b"], c["T"])
        _parts[name] = network, jax.device_put(params), {"input": tokens[None], "target": targets[None]}
    return _parts[name]


_parts = {}


@functools.cache
def compiled(network, supported):
    """Both passes: with support for faults at some sites, or without, observing the operands of all."""
    observe = frozenset() if supported else frozenset({"operands"})

    @QUICKLY
    def run(params, batch, fault):
        ctx = Context(key=jax.random.key(0), workers=np.arange(1), fault=fault, supported=supported, observe=observe)
        return forward_and_backward(network, params, {}, batch, ctx, batch["target"].size, nats_per_token)

    return run


def fault_free(case, params):
    network, _, batch = parts(case)
    return jax.device_get(compiled(network, frozenset())(params, batch, None))


def golden_of(case):
    """Without a fault; kept by the configuration's name."""
    if case[0] not in _golden:
        _golden[case[0]] = fault_free(case, parts(case)[1])
    return _golden[case[0]]


_golden = {}


def named(tree):
    return {f"{layer}/{name}": leaf for layer, leaves in tree.items() for name, leaf in leaves.items()}


def all_mismatches(arrays, stored, rtol):
    assert stored.keys() == arrays.keys()
    found = (recipe.mismatch(name, arrays[name], stored[name], rtol) for name in stored)
    return [text for text in found if text]


def global_norm(grads):
    """In float64, as the fixture's."""
    with np.errstate(over="ignore"):
        return math.sqrt(sum(np.square(np.float64(leaf)).sum() for leaf in jax.tree.leaves(grads)))


@functools.cache
def sites_of(network, shape):
    return list_sites(network, jax.ShapeDtypeStruct(shape, np.int32))


def fault_of(case, entry):
    network, _, batch = parts(case)
    site, operand = sites_of(network, batch["input"].shape[1:])[entry["layer"]], OPERANDS[entry["operand"]]
    assert site.shapes[operand] == tuple(entry["operand_shape"])
    assert site.stage == {"fwrd_inject": "forward", "bkwd_inject": "backward"}[entry["stage"]]
    index = np.ravel_multi_index(np.array(entry["pos"]).T, entry["operand_shape"])
    values = np.array(entry["values"], np.float32).view(np.uint32)
    return make_fault(site, operand, 0, index, flip=values, size=K)


def expected_of(entry):
    """The stored results in our form of the arithmetic, where it decides; else the oracle's."""
    forms = entry.get("sensitive", {})
    if FORM not in forms:
        return entry
    form = forms.get(forms[FORM].get("as"), forms[FORM])
    return {**{name: entry[name] for name in entry if name != "grads_changed"}, **form}


class TestTransformer:
    """`test_parity.py` collects it: parity is tested there, whatever the workload."""

    def pytest_generate_tests(self, metafunc):
        """One test per configuration or injection, which is in its id."""
        path = metafunc.config.stash[FIXTURES] / "transformer.json.gz"
        fixture = recipe.load(path) if path.exists() else {"configs": {}, "injections": []}
        if "case" in metafunc.fixturenames:
            metafunc.parametrize(
                "case",
                fixture["configs"].items(),
                ids=[f"transformer-{name}" for name in fixture["configs"]],
                scope="session",
            )
        if "injection" in metafunc.fixturenames:
            entries = fixture["injections"]
            ids = [
                f"transformer-{e['config']}-{i}-{e['layer']}-{e['fmodel']}-{e['value']}" for i, e in enumerate(entries)
            ]
            struck = {
                name: frozenset(e["layer"] for e in entries if e["config"] == name) for name in fixture["configs"]
            }
            cases = [((e["config"], fixture["configs"][e["config"]]), e, struck[e["config"]]) for e in entries]
            # One configuration is enough for every change: each compiles an executable of its own.
            marks = [[] if e["config"] == "T1" else [pytest.mark.slow] for e in entries]
            values = [pytest.param(case, id=id, marks=m) for case, id, m in zip(cases, ids, marks, strict=True)]
            metafunc.parametrize("injection", values)

    def test_loss_logits_and_gradients(self, case):
        golden = golden_of(case)
        stored = case[1]["golden"]
        np.testing.assert_allclose(golden.loss, stored["loss"], rtol=FORWARD)
        assert golden.metric == golden.loss
        expected = np.array(stored["logits"])
        np.testing.assert_allclose(golden.logits[0], expected, rtol=0, atol=FORWARD * np.abs(expected).max())
        assert not all_mismatches(named(golden.grads), stored["grads"], FORWARD)
        np.testing.assert_allclose(global_norm(golden.grads), stored["grad_norm"], rtol=FORWARD)

    def test_every_operand_of_every_site(self, case):
        golden = golden_of(case)
        found, stored = {}, {}
        for stage in ("fwd_sites", "bwd_sites"):
            for site, operands in case[1]["golden"][stage].items():
                for theirs, summary in operands.items():
                    tensor = golden.seen.tensors["operands"][site][OPERANDS[theirs].name.lower()][0]
                    assert list(tensor.shape) == summary["shape"], (site, theirs)
                    found[f"{site}|{theirs}"], stored[f"{site}|{theirs}"] = tensor, summary
        assert set(golden.seen.sites) == {name.split("|")[0] for name in found}
        assert not all_mismatches(found, stored, FORWARD)

    def test_injection(self, injection):
        case, entry, supported = injection
        network, params, batch = parts(case)
        run = compiled(network, supported)
        faulty, clean = (jax.device_get(run(params, batch, f)) for f in (fault_of(case, entry), inactive_fault(K)))
        expected = expected_of(entry)
        struck, count = faulty.seen.struck, len(entry["values"])
        assert struck.hits == 1
        known = entry["golden_at_pos"]
        old = struck.old[:count].view(np.float32)[: len(known)]
        np.testing.assert_allclose(old, known, rtol=1e-3, atol=1e-4 * np.abs(known).max())
        np.testing.assert_array_equal(struck.new[:count].view(np.float32), np.float32(entry["values"]))
        assert struck.operand_changed == np.sum(struck.old[:count] != struck.new[:count])

        assert np.isfinite(faulty.loss) == np.isfinite(expected["loss"])
        if np.isfinite(expected["loss"]):
            np.testing.assert_allclose(faulty.loss, expected["loss"], rtol=FORWARD)
        grads, before = named(faulty.grads), named(clean.grads)
        assert not recipe.mismatch("logits", faulty.logits, expected["logits"], FORWARD)
        assert not all_mismatches(grads, expected["grads"], INJECTED)
        assert {n for n, g in grads.items() if not np.isfinite(g).all()} == set(expected["params_nonfinite"])
        if "grads_changed" in expected:
            assert sum(before[n].tobytes() != grads[n].tobytes() for n in grads) == expected["grads_changed"]

    def test_two_steps_of_adamw(self, case):
        params = parts(case)[1]
        optimizer = clipped_adamw(RATE)
        opt_state, update = optimizer.init(params), QUICKLY(optimizer.update)
        stored = case[1]["optimizer"]
        for step in stored["steps"]:
            found = fault_free(case, params)
            np.testing.assert_allclose(found.loss, step["loss_before"], rtol=ADAMW)
            np.testing.assert_allclose(global_norm(found.grads), step["grad_norm"], rtol=ADAMW)
            updates, opt_state = update(found.grads, opt_state, params)
            params = optax.apply_updates(params, updates)
            assert not all_mismatches(named(jax.device_get(params)), step["params"], ADAMW)
        np.testing.assert_allclose(fault_free(case, params).loss, stored["loss_after_2"], rtol=ADAMW)
