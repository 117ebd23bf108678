"""The published ResNet-18 as a Flax module has the explicit one's gradients, and the verdicts of the same faults."""

import sys

import jax
import numpy as np
import pytest
from whole import WHOLE, only_whole

from fault_injection.machine.sources import ROOT
from fault_injection.models.fault import Operand
from fault_injection.models.observe.reductions import WHOLE as WHOLE_GRADIENTS
from fault_injection.workloads.registry import find_workload

sys.path.insert(0, str(ROOT / "examples" / "resnet18_flax"))
pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True, scope="module")
def as_users_have_it():
    with jax.numpy_dtype_promotion("standard"):
        yield


def test_gradients_of_kernels_agree():
    import my_run

    workload = find_workload("resnet18").embedded().changed(workers=1)
    program = workload.program(frozenset(), reductions=frozenset({WHOLE_GRADIENTS}))
    _, report = program.step(program.place(program.init()), program.batch(0, 0), 0, 0)
    told = jax.device_get(report.reductions)
    state = my_run.create_state(workload.seed)
    found, _ = jax.jit(my_run.gradients)(state.params, state.batch_stats, my_run.get_batch(workload.seed, 0, 0))
    for layer in (name for name, leaves in found.items() if "kernel" in leaves):
        explicit, flax = told[f"{WHOLE_GRADIENTS}/{layer}/kernel"], np.asarray(found[layer]["kernel"])
        assert np.abs(explicit - flax).max() <= 1e-5 * np.abs(explicit).max(), layer


@pytest.fixture(scope="module")
def drawn():
    """Strikes, and both networks that can be struck by them."""
    import compare

    strikes = compare.draw(0, 18 if WHOLE else 9)
    return strikes, compare.doors(strikes)


def test_the_same_faults_strike_the_same_numbers(drawn):
    """Each role and operand once, at the first step, where both networks are alike."""
    strikes, two = drawn
    assert {(one.role, one.operand) for one in strikes[:9]} == {
        (role, operand) for role in ("forward", "grad_in", "grad_wt") for operand in Operand
    }
    for strike in strikes[:9]:
        (old, loss, _), (other, other_loss, _) = (door.one_step(strike) for door in two)
        assert other == pytest.approx(old, rel=1e-3, abs=1e-6), strike
        assert other_loss == pytest.approx(loss, rel=1e-3, nan_ok=True), strike


@only_whole
def test_the_same_faults_have_the_same_verdicts(drawn):
    import compare

    strikes, two = drawn
    noise = compare.spread(two)
    pairs = [[door.verdict(strike, noise).outcome for door in two] for strike in strikes]
    # Which other kinds there are depends on the processor.
    assert "Masked" in (found := {pair[0].outcome for pair in pairs}) and len(found) >= 3
    met = [(strike, [{one.outcome} for one in pair]) for strike, pair in zip(strikes, pairs, strict=True)]
    differing = [(strike, outcomes) for strike, outcomes in met if not set.intersection(*outcomes)]
    assert len(differing) <= len(strikes) // 4
    # Training amplifies rounding: then twins of one network differ among themselves, too.  They are run until one of
    # either network comes to what one of the other has come to.
    for strike, outcomes in differing:
        for twin in range(1, compare.TWINS + 1):
            for door, of_twins in zip(two, outcomes, strict=True):
                of_twins.add(door.verdict(strike, noise, twin).outcome.outcome)
            if set.intersection(*outcomes):
                break
        assert set.intersection(*outcomes), strike
