"""DLRM computes what PyTorch computes.

The fixture holds numbers of one configuration.  Where the form of the arithmetic decides, it holds
the results of several forms; ours is FORM.
"""

import functools
import math
import types

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import recipe
from conftest import FIXTURES

from fault_injection.explicit.optimizers import keras_sgd
from fault_injection.explicit.passes import forward_and_backward
from fault_injection.explicit.sites import list_sites
from fault_injection.models.fault import Operand, inactive_fault
from fault_injection.models.layer import Context
from fault_injection.models.loss import binary_cross_entropy, predicted
from fault_injection.models.networks.dlrm import dlrm
from fault_injection.models.site import make_fault
from fault_injection.questions.vulnerability.components import Component
from fault_injection.questions.vulnerability.criteria import Wanted
from fault_injection.questions.vulnerability.trials import Trial, Trials

FORM = "relu_greater"  # the gradient passes where the activation is positive, so not where it is NaN
FORWARD = 1e-5  # loss, logits, operands, gradients and SGD's parameters, relative to the largest element
INJECTED = 1e-4  # gradients after an injection
RATE = 0.1
K = 64  # one executable for all injections
QUICKLY = functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})  # compiles faster
OPERANDS = {"input": Operand.INPUT, "kernel": Operand.WEIGHT, "weight": Operand.WEIGHT, "output": Operand.OUTPUT}


class Case:
    """What the fixture describes: network, parameters, batch, and what runs them."""

    def __init__(self, stored):
        c = self.config = stored["config"]
        self.stored = stored
        assert c["bottom"][-1] == c["dimension"] and c["top"][-1] == 1
        self.network = dlrm(c["dense"], c["cardinalities"], c["dimension"], c["bottom"][:-1], c["top"][:-1])
        self.params = {}
        for entry in stored["manifest"]:
            layer, leaf = entry["name"].split("/")
            self.params.setdefault(layer, {})[leaf] = recipe.weight(**entry)
        numbers, categories, labels = recipe.clicks(c["cardinalities"], c["b"], c["dense"])
        columns = np.concatenate([numbers.view(np.int32), categories], axis=-1)
        self.batch = {"input": columns[None], "target": labels[None]}
        found = jax.eval_shape(lambda: self.network.init((0,), columns[None].shape)[0])
        assert jax.tree.map(np.shape, self.params) == jax.tree.map(np.shape, found)

    @functools.cached_property
    def sites(self):
        return list_sites(self.network, jax.ShapeDtypeStruct(self.batch["input"].shape[1:], np.int32))

    @functools.cache  # noqa: B019  (there is one case in a session)
    def compiled(self, supported, observe=frozenset()):
        """Both passes, with the gradients of whole tables."""

        @QUICKLY
        def run(params, batch, fault):
            ctx = Context(
                key=jax.random.key(0), workers=np.arange(1), fault=fault, supported=supported, observe=observe
            )
            found = forward_and_backward(
                self.network, params, {}, batch, ctx, batch["target"].size, binary_cross_entropy
            )
            return found._replace(grads=whole(found.grads, found.seen.rows, params))

        return run

    @functools.cached_property
    def golden(self):
        return self.fault_free(self.params, frozenset({"operands"}))

    def fault_free(self, params, observe=frozenset()):
        return jax.device_get(self.compiled(frozenset(), observe)(params, self.batch, None))

    @functools.cached_property
    def infer(self):
        @QUICKLY
        def logits(params):
            ctx = Context(key=jax.random.key(0), workers=np.arange(1), train=False)
            return self.network.forward(params, {}, self.batch["input"], ctx)[0]

        return logits

    def fault(self, entry):
        site, operand = self.sites[entry["layer"]], OPERANDS[entry["operand"]]
        assert site.shapes[operand] == tuple(entry["operand_shape"])
        assert site.stage == {"fwrd_inject": "forward", "bkwd_inject": "backward"}[entry["stage"]]
        index = np.ravel_multi_index(np.array(entry["pos"]).T, entry["operand_shape"])
        values = np.array(entry["values"], np.float32).view(np.uint32)
        return make_fault(site, operand, 0, index, flip=values, size=K)


def whole(grads, rows, params):
    """The gradients with those of whole tables in place of those of the rows that were read."""
    table = {name: grads[name] for name in grads}
    for name, read in rows.items():
        layer, leaf = name.split("/")
        zero = jnp.zeros_like(params[layer][leaf])
        table[layer] = table[layer] | {leaf: zero.at[read].add(grads[layer][leaf], mode="drop")}
    return table


def named(tree):
    return {f"{layer}/{name}": leaf for layer, leaves in tree.items() for name, leaf in leaves.items()}


def all_mismatches(arrays, stored, rtol):
    assert stored.keys() == arrays.keys()
    found = (recipe.mismatch(name, arrays[name], stored[name], rtol) for name in stored)
    return [text for text in found if text]


def assert_same_logits(found, stored):
    """Non-finite ones alike; each of the others to FORWARD of itself, or of the largest ordinary one."""
    stored = np.array(stored)
    np.testing.assert_allclose(found, stored, rtol=FORWARD, atol=FORWARD * min(10, np.nanmax(np.abs(stored))))


def global_norm(grads):
    """In float64, as the fixture's."""
    with np.errstate(over="ignore"):
        return math.sqrt(sum(np.square(np.float64(leaf)).sum() for leaf in jax.tree.leaves(grads)))


def expected_of(entry):
    """The stored results in our form of the arithmetic, where it decides; else the oracle's."""
    forms = entry.get("sensitive", {})
    if FORM not in forms:
        return entry
    form = forms.get(forms[FORM].get("as"), forms[FORM])
    return {**{name: entry[name] for name in entry if name not in ("grads_changed", "grad_norm")}, **form}


_cases = {}


class TestDlrm:
    """`test_parity.py` collects it: parity is tested there, whatever the workload."""

    def pytest_generate_tests(self, metafunc):
        """One test per injection and fault of a parameter, with the workload in its id."""
        path = metafunc.config.stash[FIXTURES] / "dlrm.json.gz"
        if path.exists() and path not in _cases:
            _cases[path] = Case(recipe.load(path))
        cases = [_cases[path]] if path in _cases else []
        each = {
            "case": [(case, "dlrm") for case in cases],
            "injection": [
                ((case, e), f"dlrm-{i}-{e['layer']}-{e['fmodel']}-{e['value']}")
                for case in cases
                for i, e in enumerate(case.stored["injections"])
            ],
            "parameter_fault": [
                ((case, e), f"dlrm-{i}-{e['name']}-bit{e['bit']}")
                for case in cases
                for i, e in enumerate(case.stored["parameter_faults"])
            ],
        }
        for argument in each.keys() & set(metafunc.fixturenames):
            values = [pytest.param(value, id=id) for value, id in each[argument]]
            metafunc.parametrize(argument, values, scope="session" if argument == "case" else None)

    def test_loss_logits_and_gradients(self, case):
        golden, stored = case.golden, case.stored["golden"]
        np.testing.assert_allclose(golden.loss, stored["loss"], rtol=FORWARD)
        assert_same_logits(golden.logits[0, :, 0], stored["logits"])
        decided = np.array(stored["logits"]) > 0
        assert golden.metric == pytest.approx((decided == case.batch["target"][0]).mean())
        assert not all_mismatches(named(golden.grads), stored["grads"], FORWARD)
        np.testing.assert_allclose(global_norm(golden.grads), stored["grad_norm"], rtol=FORWARD)

    def test_every_operand_of_every_site(self, case):
        found, stored = {}, {}
        for stage in ("fwd_sites", "bwd_sites"):
            for site, operands in case.stored["golden"][stage].items():
                for theirs, summary in operands.items():
                    tensor = case.golden.seen.tensors["operands"][site][OPERANDS[theirs].name.lower()][0]
                    assert list(tensor.shape) == summary["shape"], (site, theirs)
                    found[f"{site}|{theirs}"], stored[f"{site}|{theirs}"] = tensor, summary
        # Nothing reads the gradient of the numbers, but a dense layer has a site for it.
        assert set(case.golden.seen.sites) - {"bot_0_grad_in"} == {name.split("|")[0] for name in found}
        assert not all_mismatches(found, stored, FORWARD)

    def test_injection(self, injection):
        case, entry = injection
        run = case.compiled(frozenset(e["layer"] for e in case.stored["injections"]))
        faults = (case.fault(entry), inactive_fault(K))
        faulty, clean = (jax.device_get(run(case.params, case.batch, fault)) for fault in faults)
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
        if np.isfinite(norm := expected.get("grad_norm", np.nan)):
            np.testing.assert_allclose(global_norm(faulty.grads), norm, rtol=INJECTED)
        if "grads_changed" in expected:
            assert sum(before[n].tobytes() != grads[n].tobytes() for n in grads) == expected["grads_changed"]

    def test_parameter_fault(self, parameter_fault):
        """One bit of a stored parameter is flipped, and the batch evaluated."""
        case, entry = parameter_fault
        layer, leaf = entry["name"].split("/")
        struck = case.params[layer][leaf].copy()
        element = struck[tuple(entry["pos"])]
        np.testing.assert_allclose(element, entry["golden_at_pos"], rtol=1e-6)
        flipped = (element.view(np.uint32) ^ np.uint32(1 << entry["bit"])).view(np.float32)
        np.testing.assert_allclose(flipped, entry["value"], rtol=1e-6)
        struck[tuple(entry["pos"])] = flipped
        params = case.params | {layer: case.params[layer] | {leaf: struck}}

        clean, found = (np.asarray(case.infer(p))[0, :, 0] for p in (case.params, params))
        assert_same_logits(found, entry["logits"])
        assert np.isnan(found).sum() == entry["nan_logits"]
        changed = np.asarray(predicted(found[:, None]) != predicted(clean[:, None])) | np.isnan(found)
        assert changed.sum() == entry["changed_decisions"]
        with np.errstate(all="ignore"):
            error = np.abs(np.float64(found) - np.float64(clean)).max()
        np.testing.assert_allclose(error, entry["max_logit_error"], rtol=1e-4, atol=FORWARD)

    def test_trials_of_parameter_faults(self, case):
        """The same faults as `pvf` does them, those of a perceptron or of the tables in one call."""
        dense = case.config["dense"]
        workload = types.SimpleNamespace(
            recipe=lambda: types.SimpleNamespace(network=case.network),
            lookups=lambda: {f"params/emb_{k}/table": dense + k for k in range(len(case.config["cardinalities"]))},
        )
        state = types.SimpleNamespace(params=case.params, stats={})
        tests = [case.batch | {"weight": np.ones(case.batch["target"].shape)}]
        lab = Trials(workload, state, Wanted("decision", 0.5), tests)
        entries = {part: [] for part in ("bot", "emb", "top")}
        for entry in case.stored["parameter_faults"]:
            entries[entry["name"][:3]].append(entry)
        for part, those in entries.items():
            leaves = [f"params/{name}" for name in named(case.params) if name.startswith(part)]
            sizes = [named(case.params)[leaf.removeprefix("params/")].size for leaf in leaves]
            of = Component(part, tuple(leaves), tuple(sizes))
            faults = []
            for e in those:
                at = leaves.index(f"params/{e['name']}")
                shape = named(case.params)[e["name"]].shape
                index = sum(sizes[:at]) + np.ravel_multi_index(e["pos"], shape)
                faults.append(Trial.inverted(np.array([index]), 1 << e["bit"]))
            judged = lab.judge(of, faults)
            assert judged.wrong.tolist() == [e["changed_decisions"] for e in those]
            for error, e in zip(judged.error, those, strict=True):
                np.testing.assert_allclose(error, e["max_logit_error"], rtol=1e-4, atol=FORWARD)

    def test_two_steps_of_sgd(self, case):
        """Of whole tables here; `test_dlrm.py` shows that a program's step, which touches rows alone, is the same."""
        params, stored = jax.device_put(case.params), case.stored["optimizer"]
        optimizer = keras_sgd(RATE)
        opt_state = optimizer.init(params)
        for step in stored["steps"]:
            found = case.fault_free(params)
            np.testing.assert_allclose(found.loss, step["loss_before"], rtol=FORWARD)
            np.testing.assert_allclose(global_norm(found.grads), step["grad_norm"], rtol=FORWARD)
            updates, opt_state = optimizer.update(found.grads, opt_state, params)
            params = optax.apply_updates(params, updates)
            assert not all_mismatches(named(jax.device_get(params)), step["params"], FORWARD)
        np.testing.assert_allclose(case.fault_free(params).loss, stored["loss_after_2"], rtol=FORWARD)
