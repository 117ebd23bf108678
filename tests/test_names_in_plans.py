"""Plans choose by the names that `sites` prints, whatever characters a user's tree has in them."""

import pytest

from fault_injection.machine.errors import InputError
from fault_injection.machine.reading import matches
from fault_injection.questions.outcomes.plan_file import parse_plan
from fault_injection.questions.vulnerability.plan_file import read_pvf_plan
from fault_injection.workloads.registry import find_workload

FILE = """
import jax
import jax.numpy as jnp
from fault_injection import Measure, Training

X = jnp.asarray([[1.0, 2.0], [3.0, -1.0], [0.5, 0.25], [-1.0, 1.0]])


def loss(state, x):
    h = jnp.tanh(x @ state["params"]["w"]) @ state["params"]["up [x]"]
    return jnp.mean((h @ state["w"] - 1) ** 2)


@jax.jit
def step(state, x):
    value, grads = jax.value_and_grad(loss)(state, x)
    return jax.tree.map(lambda p, g: p - 0.1 * g, state, grads), {"loss": value}


def init():
    return {"params": {"w": jnp.ones((2, 3)), "up [x]": jnp.ones((3, 5))}, "w": jnp.ones((5, 1))}


def training():
    measure = Measure("loss", "lower", chance=1.0, tolerance=0.1, limits=(0.0, 10.0))
    return Training(init, step, lambda epoch, step: X, 4, 2, lambda state: {"loss": loss(state, X)}, measure)
"""


@pytest.fixture
def training(tmp_path):
    file = tmp_path / "named.py"
    file.write_text(FILE)
    return f"{file}:training"


@pytest.mark.parametrize(
    ("stages", "name"), [(["state"], "params/up [x]"), (["backward"], "grad_wt:params/up_x_"), (["state"], "w")]
)
def test_a_name_with_characters_of_patterns_is_chosen_as_it_is_printed(training, stages, name):
    found = parse_plan(f'workload = "{training}"\n[faults]\nexperiments = 1\nstages = {stages}\nsites = ["{name}"]\n')
    assert found.sites == (name,)
    without = f'workload = "{training}"\n[faults]\nexperiments = 1\nstages = {stages}\nsites = ["!{name}"]\n'
    assert name not in parse_plan(without).sites


def plan(tmp_path, training, rest):
    file = tmp_path / "plan.toml"
    file.write_text(f'workload = "{training}"\n{rest}\n')
    return read_pvf_plan(file)


@pytest.mark.parametrize(
    ("pattern", "leaves"),
    [
        ("params/up [x]", {"params/up [x]"}),
        ("up [x]", {"params/up [x]"}),
        ("params/*", {"params/up [x]", "params/w"}),
        ("params/w", {"params/w"}),
        ("w", {"w"}),
        ("p*", {"params/w"}),  # of short names: this one needs its long one, because another is called `w`
    ],
)
def test_components_are_chosen_by_the_names_of_sites_or_without_their_beginning(tmp_path, training, pattern, leaves):
    found = plan(tmp_path, training, f'[components]\none = ["{pattern}"]\n[faults]\nflips = [1]\n')
    (cell,) = (cell for cell in found.cells if not cell.of_layer)
    assert set(cell.component.leaves) == leaves


def test_all_parameters_are_all(tmp_path, training):
    """Also where a name without its beginning is another's."""
    found = plan(tmp_path, training, "[faults]\nflips = [1]\n")
    all_parameters = set(find_workload(training).parameters())
    assert all_parameters == {"params/w", "params/up [x]", "w"}
    assert {leaf for cell in found.cells for leaf in cell.component.leaves} == all_parameters
    of_layers = [leaf for cell in found.cells if cell.of_layer for leaf in cell.component.leaves]
    assert sorted(of_layers) == sorted(all_parameters)


def test_what_fits_nothing_is_refused(tmp_path, training):
    with pytest.raises(
        InputError, match=r"no parameter of .*named.py:training fits its patterns; did you mean .up \[x\].\?"
    ):
        plan(tmp_path, training, '[components]\none = ["up [y]"]\n[faults]\nflips = [1]\n')
    assert not matches("up x", ["up [y]"])
