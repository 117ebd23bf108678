"""DLRM computes what PyTorch computes, and the transformer what Hugging Face's `LlamaForCausalLM` computes.

A fixture holds numbers of the library for its configurations: DLRM has one; of the transformer, T1 has as many heads
of keys as of queries and a head of its own, T2 has half as many and a head that shares the table.  Where the form of
the arithmetic decides, a fixture holds the results of several forms; ours is `FORM`.

`test_parity.py` collects the classes `Test…`: parity is tested there, whatever the workload.
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

from fault_injection.explicit.network_outputs import outputs_of
from fault_injection.explicit.optimizers import clipped_adamw, keras_sgd
from fault_injection.explicit.passes import forward_and_backward
from fault_injection.explicit.sites import list_sites
from fault_injection.models.fault import Operand, inactive_fault
from fault_injection.models.layer import Context
from fault_injection.models.loss import binary_cross_entropy, nats_per_token, predicted
from fault_injection.models.networks.dlrm import dlrm
from fault_injection.models.networks.transformer import transformer
from fault_injection.models.site import make_fault
from fault_injection.questions.vulnerability.components import Component
from fault_injection.questions.vulnerability.criteria import Wanted
from fault_injection.questions.vulnerability.trials import Trial, Trials

FORWARD = 1e-5  # loss, logits, operands and gradients without a fault, relative to the largest element
INJECTED = 1e-4  # gradients after an injection
K = 64  # one executable for all injections
QUICKLY = functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})  # compiles faster
OPERANDS = {"input": Operand.INPUT, "kernel": Operand.WEIGHT, "weight": Operand.WEIGHT, "output": Operand.OUTPUT}


class Case:
    """A configuration: network, parameters, batch, the numbers stored of them, and what computes ours."""

    def __init__(self, name, stored, injections, network, batch, head):
        self.name, self.stored, self.injections = name, stored, injections
        self.network, self.batch, self.head = network, batch, head
        self.params = {}
        for entry in stored["manifest"]:
            layer, leaf = entry["name"].split("/")
            self.params.setdefault(layer, {})[leaf] = recipe.weight(**entry)
        found = jax.eval_shape(lambda: network.init((0,), batch["input"].shape)[0])
        assert jax.tree.map(np.shape, self.params) == jax.tree.map(np.shape, found)

    @functools.cached_property
    def sites(self):
        return list_sites(self.network, jax.ShapeDtypeStruct(self.batch["input"].shape[1:], np.int32))

    def compiled(self, supported):
        """Both passes: with support for faults at some sites, or without, observing the operands of all."""
        observe = frozenset() if supported else frozenset({"operands"})

        @QUICKLY
        def run(params, batch, fault):
            ctx = Context(
                key=jax.random.key(0), workers=np.arange(1), fault=fault, supported=supported, observe=observe
            )
            found = forward_and_backward(self.network, params, {}, batch, ctx, batch["target"].size, self.head)
            return found._replace(grads=whole(found.grads, found.seen.rows, params))

        return run

    @functools.cached_property
    def _fault_free(self):
        return self.compiled(frozenset())

    @functools.cached_property
    def _faulty(self):
        return self.compiled(frozenset(entry["layer"] for entry in self.injections))

    def fault_free(self, params):
        return jax.device_get(self._fault_free(params, self.batch, None))

    def faulty(self, fault):
        return jax.device_get(self._faulty(self.params, self.batch, fault))

    @functools.cached_property
    def golden(self):
        return self.fault_free(self.params)

    @functools.cached_property
    def clean(self):
        return self.faulty(inactive_fault(K))

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


def global_norm(grads):
    """In float64, as the fixture's."""
    with np.errstate(over="ignore"):
        return math.sqrt(sum(np.square(np.float64(leaf)).sum() for leaf in jax.tree.leaves(grads)))


@functools.cache
def cases_of(kind, path):
    """The configurations of a fixture, as a subclass of `Parity` reads them; none where there is no fixture."""
    return kind.read(recipe.load(path)) if path.exists() else []


class Parity:
    """What is compared with a library, whatever the network."""

    FIXTURE: str
    FORM: str  # of the arithmetic
    UNREAD: frozenset[str] = frozenset()  # sites that we have and the library has not
    AFTER = FORWARD  # parameters after steps of the optimizer
    QUICK: tuple[str, ...]  # configurations that are enough for every change: each compiles an executable of its own

    def pytest_generate_tests(self, metafunc):
        """One test per configuration, injection or fault of a parameter; the configuration is in its id."""
        cases = cases_of(type(self), metafunc.config.stash[FIXTURES] / self.FIXTURE)
        each = {"case": [pytest.param(case, id=case.name) for case in cases]}
        for argument, entries, label in (
            ("injection", lambda case: case.injections, "{layer}-{fmodel}-{value}"),
            ("parameter_fault", lambda case: case.stored.get("parameter_faults", ()), "{name}-bit{bit}"),
        ):
            each[argument] = [
                pytest.param(
                    (case, entry),
                    id=f"{case.name}-{i}-{label.format(**entry)}",
                    marks=[] if case.name in self.QUICK else [pytest.mark.slow],
                )
                for case in cases
                for i, entry in enumerate(entries(case))
            ]
        for argument in each.keys() & set(metafunc.fixturenames):
            metafunc.parametrize(argument, each[argument], scope="session" if argument == "case" else None)

    def expected_of(self, entry):
        """The stored results in our form of the arithmetic, where it decides; else the library's."""
        forms = entry.get("sensitive", {})
        if self.FORM not in forms:
            return entry
        form = forms.get(forms[self.FORM].get("as"), forms[self.FORM])
        return {**{name: entry[name] for name in entry if name not in ("grads_changed", "grad_norm")}, **form}

    def test_loss_logits_and_gradients(self, case):
        golden, stored = case.golden, case.stored["golden"]
        np.testing.assert_allclose(golden.loss, stored["loss"], rtol=FORWARD)
        self.assert_logits_and_metric(case, golden, stored)
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
        assert set(case.golden.seen.sites) - self.UNREAD == {name.split("|")[0] for name in found}
        assert not all_mismatches(found, stored, FORWARD)

    def test_injection(self, injection):
        case, entry = injection
        faulty, expected = case.faulty(case.fault(entry)), self.expected_of(entry)
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
        grads, before = named(faulty.grads), named(case.clean.grads)
        assert not recipe.mismatch("logits", faulty.logits, expected["logits"], FORWARD)
        assert not all_mismatches(grads, expected["grads"], INJECTED)
        assert {n for n, g in grads.items() if not np.isfinite(g).all()} == set(expected["params_nonfinite"])
        if np.isfinite(norm := expected.get("grad_norm", np.nan)):
            np.testing.assert_allclose(global_norm(faulty.grads), norm, rtol=INJECTED)
        if "grads_changed" in expected:
            assert sum(before[n].tobytes() != grads[n].tobytes() for n in grads) == expected["grads_changed"]

    def test_two_steps_of_the_optimizer(self, case):
        """Of whole tables here; `test_dlrm.py` shows that a program's step, which touches rows alone, is the same."""
        params, stored, optimizer = jax.device_put(case.params), case.stored["optimizer"], self.optimizer()
        opt_state, update = optimizer.init(params), QUICKLY(optimizer.update)
        for step in stored["steps"]:
            found = case.fault_free(params)
            np.testing.assert_allclose(found.loss, step["loss_before"], rtol=self.AFTER)
            np.testing.assert_allclose(global_norm(found.grads), step["grad_norm"], rtol=self.AFTER)
            updates, opt_state = update(found.grads, opt_state, params)
            params = optax.apply_updates(params, updates)
            assert not all_mismatches(named(jax.device_get(params)), step["params"], self.AFTER)
        np.testing.assert_allclose(case.fault_free(params).loss, stored["loss_after_2"], rtol=self.AFTER)


class TestTransformer(Parity):
    FIXTURE = "transformer.json.gz"
    FORM = "mask_select+rmsnorm_xhat"  # docs/backward.md: Attention, RMS norm
    AFTER = 5e-5  # a gradient near 0 gives a noisy parameter
    QUICK = ("transformer-T1",)

    @staticmethod
    def optimizer():
        return clipped_adamw(1e-3)

    @staticmethod
    def read(fixture):
        cases = []
        for name, stored in fixture["configs"].items():
            c = stored["config"]
            assert (c["rope_theta"], c["rms_eps"]) == (10000.0, 1e-05)
            names = {
                "blocks": "layers",
                **{n: n for n in ("vocabulary", "width", "heads", "kv_heads", "tied", "hidden")},
            }
            network = transformer(**{ours: c[theirs] for ours, theirs in names.items()})
            tokens, targets = recipe.tokens(c["vocabulary"], c["b"], c["T"])
            batch = {"input": tokens[None], "target": targets[None]}
            injections = [entry for entry in fixture["injections"] if entry["config"] == name]
            cases.append(Case(f"transformer-{name}", stored, injections, network, batch, nats_per_token))
        return cases

    @staticmethod
    def assert_logits_and_metric(case, golden, stored):
        assert golden.metric == golden.loss
        expected = np.array(stored["logits"])
        np.testing.assert_allclose(golden.logits[0], expected, rtol=0, atol=FORWARD * np.abs(expected).max())


class TestDlrm(Parity):
    FIXTURE = "dlrm.json.gz"
    FORM = "relu_greater"  # the gradient passes where the activation is positive, so not where it is NaN
    UNREAD = frozenset(
        {"bot_0_grad_in"}
    )  # nothing reads the gradient of the numbers, but a dense layer has a site for it
    QUICK = ("dlrm",)

    @staticmethod
    def optimizer():
        return keras_sgd(0.1)

    @staticmethod
    def read(stored):
        c = stored["config"]
        assert c["bottom"][-1] == c["dimension"] and c["top"][-1] == 1
        network = dlrm(c["dense"], c["cardinalities"], c["dimension"], c["bottom"][:-1], c["top"][:-1])
        numbers, categories, labels = recipe.clicks(c["cardinalities"], c["b"], c["dense"])
        columns = np.concatenate([numbers.view(np.int32), categories], axis=-1)
        batch = {"input": columns[None], "target": labels[None]}
        return [Case("dlrm", stored, stored["injections"], network, batch, binary_cross_entropy)]

    @staticmethod
    def assert_same_logits(found, stored):
        """Non-finite ones alike; each of the others to FORWARD of itself, or of the largest ordinary one."""
        stored = np.array(stored)
        np.testing.assert_allclose(found, stored, rtol=FORWARD, atol=FORWARD * min(10, np.nanmax(np.abs(stored))))

    def assert_logits_and_metric(self, case, golden, stored):
        self.assert_same_logits(golden.logits[0, :, 0], stored["logits"])
        decided = np.array(stored["logits"]) > 0
        assert golden.metric == pytest.approx((decided == case.batch["target"][0]).mean())

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
        self.assert_same_logits(found, entry["logits"])
        assert np.isnan(found).sum() == entry["nan_logits"]
        changed = np.asarray(predicted(found[:, None]) != predicted(clean[:, None])) | np.isnan(found)
        assert changed.sum() == entry["changed_decisions"]
        with np.errstate(all="ignore"):
            error = np.abs(np.float64(found) - np.float64(clean)).max()
        np.testing.assert_allclose(error, entry["max_logit_error"], rtol=1e-4, atol=FORWARD)

    def test_trials_of_parameter_faults(self, case):
        """The same faults as `pvf` does them, those of a perceptron or of the tables in one call."""
        dense = case.stored["config"]["dense"]
        columns = {f"params/emb_{k}/table": dense + k for k in range(len(case.stored["config"]["cardinalities"]))}
        workload = types.SimpleNamespace(lookups=lambda: columns)
        state = types.SimpleNamespace(params=case.params, stats={})
        tests = [case.batch | {"weight": np.ones(case.batch["target"].shape)}]
        lab = Trials(workload, outputs_of(case.network, state, tests, None), Wanted("decision", 0.5))
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
