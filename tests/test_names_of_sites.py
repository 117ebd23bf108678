"""The gradient of a weight bears its name: it has its shape, and a strike in it moves it before any other parameter."""

import re

import jax
import many_steps
import numpy as np
import pytest

from fault_injection import instrument
from fault_injection.any_step.site_names import names
from fault_injection.seam.trees import leaf_names

QUICK = ("lstm", "one sum", "minibatches", "low rank, merged")
STRUCK = [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in many_steps.STEPS]

pytestmark = [
    pytest.mark.filterwarnings("ignore:.* multiply a vector in a loop"),  # L-BFGS does
    pytest.mark.usefixtures("compiled_quickly"),
]


@pytest.fixture(autouse=True)
def as_users_have_it():
    """Optax mixes types, which the other tests forbid."""
    with jax.numpy_dtype_promotion("standard"):
        yield


def listed(kind):
    return list(instrument(*many_steps.STEPS[kind]()).sites)


def parameters(state):
    """The parameters of a state, by the names that sites show."""
    tree = state.get("params", state)
    prefix = "params/" if tree is not state else ""
    shown = names([("", f"{prefix}{name}") for name in leaf_names(tree)])
    return {name[1:]: np.asarray(leaf) for name, leaf in zip(shown, jax.tree.leaves(tree), strict=True)}


def gradients(program, state):
    """The gradients of weights, each with the parameter that it bears the name of."""
    known = parameters(state)
    for name, site in program.sites.items():
        role, _, label = re.sub(r"#\d+$", "", name).partition(":")
        if role == "grad_wt" and "@" not in label:
            yield site, label, known[label]


def long_axes(shape):
    return sorted(length for length in shape if length > 1)


@pytest.mark.parametrize("kind", many_steps.STEPS)
def test_a_gradient_has_the_shape_of_the_weight_that_it_is_named_after(kind):
    step, state, batch = many_steps.STEPS[kind]()
    found = list(gradients(instrument(step, state, batch), state))
    for site, _, parameter in found:
        shape, turns = site.operands[2].shape, len(site.iterations)
        assert long_axes(parameter.shape) in (long_axes(shape), long_axes(shape[turns:])), site.name
    assert found or kind.startswith("stacked")  # these have names of several


@pytest.mark.parametrize("kind", STRUCK)
def test_a_strike_in_a_gradient_moves_the_parameter_that_it_is_named_after_first(kind):
    step, state, batch = many_steps.STEPS[kind]()
    program = instrument(step, state, batch)

    def stages(result):
        new, metrics = result
        return [parameters(stage) for stage in (*metrics.get("seen", ()), new)]

    clean = stages(program.reference(state, batch))
    for site, label, _ in gradients(program, state):
        start = (0,) * len(site.iterations)
        at = (0,) * (len(site.operands[2].shape) - len(start))
        changed = []
        for value in (3.0, -3.0):  # Adam's first step knows the sign alone
            fault = program.fault(site.name, "output", at, values=[value], iteration=start)
            pairs = zip(clean, stages(program(fault, state, batch)[0]), strict=True)
            changed += [{name for name in old if old[name].tobytes() != new[name].tobytes()} for old, new in pairs]
        first = next(filter(None, changed), set())
        # L-BFGS divides all gradients by one number that comes of all, and tries points in vain.  The gradient at
        # weights that were learned first reaches them all at once, through the first gradient.
        alone = kind not in ("L-BFGS", "meta-learned")
        assert first == {label} if alone else label in first or not first, (site.name, changed)


@pytest.mark.parametrize(
    ("kind", "label", "moved"),
    [
        ("fused", "p/q@p/k", {"p/q", "p/k"}),
        ("stacked", "q@k@v", {"q", "k", "v"}),
        ("stacked blocks", "blocks/0/up@blocks/3/up", {f"blocks/{i}/up" for i in range(4)}),
    ],
)
def test_the_gradient_of_weights_that_are_put_together_moves_each_of_them(kind, label, moved):
    """Each element moves one of them: the names are those of all, or of the first and the last of many."""
    step, state, batch = many_steps.STEPS[kind]()
    program = instrument(step, state, batch)
    clean, site = program.reference(state, batch)[0], program.sites[f"grad_wt:{label}"]
    turns, found = len(site.iterations), set()
    for place in np.ndindex(*site.operands[2].shape):
        fault = program.fault(site.name, "output", place[turns:], values=[3.0], iteration=place[:turns])
        new = program(fault, state, batch)[0][0]
        pairs = zip(leaf_names(state), jax.tree.leaves(clean), jax.tree.leaves(new), strict=True)
        (one,) = (name for name, old, new in pairs if old.tobytes() != new.tobytes())
        found.add(one)
    assert found == moved


def test_a_second_gradient_has_the_roles_of_the_first():
    roles = ["forward:a", "forward:b", "grad_wt:b", "grad_in:b", "grad_wt:a"]
    twice = [*roles, *(f"{name}#2" for name in roles)]
    assert listed("sharpness-aware") == twice
    assert [name.replace("params/", "") for name in listed("minibatches")] == twice
    for kind in ("adversarial", "adversaries", "meta-learned"):
        assert not [name for name in listed(kind) if name.startswith("update")]
    assert [name for name in listed("adversaries") if name.startswith("grad_wt:g")] == [
        "grad_wt:g/two",
        "grad_wt:g/one",
    ]


def test_what_an_optimizer_multiplies_is_an_update_of_its_matrix():
    for kind in ("Muon", "L-BFGS"):
        found = {name.partition("#")[0] for name in listed(kind) if name.startswith("update")}
        assert {"update:params/a", "update:params/b"} <= found
        assert not [name for name in found if "/opt" in name or ":opt" in name]


def test_quantised_training_has_the_roles_that_it_has_without():
    expected = {f"{role}:{name}" for role in ("forward", "grad_wt", "grad_in") for name in "abc"}
    for kind in ("quantised", "quantised again"):
        assert set(listed(kind)) == expected


def test_adapters_that_are_added_to_weights_say_both():
    found = listed("low rank, merged")
    assert {"forward:frozen/one", "forward:frozen/two", "grad_in:frozen/two"} <= set(found)
    assert {"grad_wt:trained/one/lora_a", "grad_wt:trained/one/lora_b"} <= set(found)
    assert "grad_wt:trained/one/lora_a@trained/one/lora_b" in found
    assert not [name for name in found if name.startswith("grad_wt:frozen")]


def test_a_turn_of_layers_that_is_computed_again_has_its_names():
    assert {"recompute:a", "recompute:c", "grad_wt:b", "grad_wt:d"} <= set(listed("checkpointed"))
