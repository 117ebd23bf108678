"""Commands × trainings × schedules × what is struck: all say the same of one fault.

A replay of an experiment, the campaign that follows every run, the campaign by default, a row of a scoreboard and a
restart from the altered checkpoint are five ways to one faulty run: bits struck, losses and verdict agree, or the
default's verdict is a guess that says so.
"""

import dataclasses
import functools
import itertools
import pathlib

import jax
import module_training
import momentum_training
import numpy as np
import premises_steps
import pytest
import small
import test_dlrm
import test_transformer
from whole import WHOLE

from fault_injection.checkpoints.continuation import alteration, named_arrays
from fault_injection.detection.nonfinite import NonFinite
from fault_injection.faults.schedule import SCHEDULE
from fault_injection.machine.sources import ROOT
from fault_injection.models.bits import host_words, of_host_words, rewritten
from fault_injection.questions.outcomes.conditions import CONDITIONS, Conditions
from fault_injection.questions.outcomes.experiment import Laboratory, run_experiment
from fault_injection.questions.outcomes.plan_file import parse_plan
from fault_injection.questions.outcomes.sampling import choose, draw_experiment, injection_of
from fault_injection.questions.scoreboard.settings import Settings
from fault_injection.questions.scoreboard.tasks import Bench, watched
from fault_injection.runs.golden_run import Golden
from fault_injection.runs.replay_run import replay
from fault_injection.seam.workload import format_option
from fault_injection.workloads.registry import find_workload

pytestmark = pytest.mark.usefixtures("compiled_quickly")

SCHEDULES = ("once", "permanent", "every 3", "probability 0.5")
PLAN = """
workload = "{name}"
[faults]
experiments = 4
epochs = [1]
seed = 6
{struck}
[faults.models]
{models}
[run]
exit = "full"
"""
OPERATION, LEAF = 'RD = { weight = 1, values = "worst_case" }', "FLIPS_2 = 1"


def own(module, name):
    return f"{module.__file__}:{name}"


# By name: the workload, an operation, leaves of the state, and what is struck of a gradient with its fault model.
TRAININGS = {
    "image": (
        lambda: small.small(epochs=3),
        small.SITE,
        "params/fc/*",
        ('stages = ["gradient"]\nsites = ["gradient/fc/*"]', LEAF),
    ),
    "transformer": (
        test_transformer.small,
        "layers_0_self_attn_mix_grad_in",
        "params/*",
        ('stages = ["gradient"]\nsites = ["gradient/*"]', LEAF),
    ),
    "dlrm": (
        functools.partial(test_dlrm.small, epochs=3),
        "top_0",
        "params/top_*",
        ('stages = ["gradient"]\nsites = ["gradient/top_*"]', LEAF),
    ),
    "momentum": (
        lambda: find_workload(own(momentum_training, "training")),
        "forward:params/fc1",
        "params/*",
        ('sites = ["grad_wt:params/fc1"]', OPERATION),
    ),
    "accumulated": (
        lambda: find_workload(own(premises_steps, "accumulated")),
        "forward:*",
        "opt/*",
        ('sites = ["grad_wt:*"]', OPERATION),
    ),
    "averaged": (
        lambda: find_workload(own(premises_steps, "averaged")),
        "forward:*",
        "shadow/*",
        ('sites = ["grad_wt:*"]', OPERATION),
    ),
    "module": (
        lambda: find_workload(own(module_training, "training")),
        "forward:*",
        "0/layers/*",
        ('sites = ["grad_wt:*"]', OPERATION),
    ),
    "equinox": (
        lambda: find_workload(f"{ROOT}/examples/equinox/my_run.py:training"),
        "forward:*",
        "0/layers/*",
        ('sites = ["grad_wt:*"]', OPERATION),
    ),
}
QUICK = {("module", "every 3", "operand"), ("momentum", "once", "state"), ("momentum", "permanent", "gradient")}


@pytest.fixture(autouse=True)
def as_users_have_it():
    """Optax mixes types, which the other tests forbid."""
    with jax.numpy_dtype_promotion("standard"):
        yield


@functools.cache
def plan_of(training, target):
    """The plan of the campaign that follows every run, with the options of the workload."""
    if training == "equinox":
        pytest.importorskip("equinox", reason="no extra of this project; `module` is in its style")
    make, operation, leaves, gradient = TRAININGS[training]
    workload = make()
    struck, models = {
        "operand": (f'sites = ["{operation}"]', OPERATION),
        "state": (f'stages = ["state"]\nsites = ["{leaves}"]', LEAF),
        "gradient": gradient,
    }[target]
    text = PLAN.format(name=workload.name, struck=struck, models=models)
    own_options = (
        ""
        if ":" in workload.name
        else "[options]\n"
        + "".join(f"{name} = {toml(value)}\n" for name, value in workload.options().items() if value is not None)
    )
    return parse_plan(text.replace("[faults]\n", f"{own_options}[faults]\n", 1), pathlib.Path("plan"))


def toml(value):
    plain = format_option(value)
    return repr(plain) if isinstance(plain, int | float) else f'"{plain}"'


@pytest.fixture(scope="module")
def golden_of(cache):
    """By training: its golden run, by a program that can strike what the three targets need."""
    found = {}

    def golden(training):
        if training not in found:
            plans = [plan_of(training, target) for target in ("operand", "gradient")]
            with jax.numpy_dtype_promotion("standard"):
                program = plans[0].workload.program(frozenset().union(*(plan.supported for plan in plans)), 1)
                found[training] = Golden(plans[0].workload, program, cache)
                found[training].make(plans[0].workload.epochs)
        return found[training]

    return golden


TARGETS = ("operand", "state", "gradient")


def met(cell):
    """Whether a cell is in the smaller matrix: each target once, and with each other schedule one of the targets."""
    training, schedule, target = (names.index(one) for names, one in zip(AXES, cell, strict=True))
    return schedule == 0 or (training + schedule + target) % len(TARGETS) == 0 or cell in QUICK


AXES = ([*TRAININGS], SCHEDULES, TARGETS)
CELLS = [
    pytest.param(*cell, marks=() if cell in QUICK else pytest.mark.slow)
    for cell in itertools.product(*AXES)
    if WHOLE or met(cell)  # by default each pair of two of the three is met
]


@pytest.mark.parametrize(("training", "schedule", "target"), CELLS)
def test_all_commands_say_the_same_of_a_fault(golden_of, tmp_path, training, schedule, target):
    golden = golden_of(training)
    full = dataclasses.replace(plan_of(training, target), schedule=SCHEDULE.parse(schedule))
    by_default = dataclasses.replace(full, exit=CONDITIONS, audit=0.5, audit_near=None)
    labs = {plan.exit: Laboratory(plan, golden, Conditions(), golden.folder / "walks") for plan in (full, by_default)}
    bench = Bench(labs["full"], {"nonfinite": NonFinite()}, {})  # which remembers nothing of the golden run
    for number in range(1 if (training, schedule, target) not in QUICK else 2):
        result = run_experiment(labs["full"], number)
        injection = injection_of(full, number)
        told = replay(injection, golden)
        assert (int(told.struck.old[0]), int(told.struck.new[0])) == (result.old_bits, result.new_bits)
        assert told.outcome.outcome == result.outcome
        losses = np.frombuffer(result.curve, "<f4").reshape(result.steps, -1)[:, 0]
        np.testing.assert_array_equal(told.faulty.column("loss")[injection.step :][: len(losses)], losses)

        default = run_experiment(labs[CONDITIONS], number)
        assert (default.old_bits, default.new_bits) == (result.old_bits, result.new_bits)
        audited = draw_experiment(by_default, number).audited
        if default.exit != CONDITIONS:  # a proof, or the end
            assert default.outcome == result.outcome
        elif audited:
            assert default.audit_outcome == result.outcome
        else:
            assert default.early_rule == result.early_rule is not None  # it says that it is a guess
        if schedule != "once" or (target == "state" and not audited):  # which no audit of a campaign supports here
            assert default.early_rule is None

        row = watched(bench, Settings(("nonfinite",), window=50), number)
        assert (row["old"], row["new"]) == (result.old_bits, result.new_bits)
        both = slice(min(len(losses), len(row["loss"])))
        np.testing.assert_array_equal(np.float32(row["loss"])[both], losses[both])

        if (schedule, target) == ("once", "state"):
            continued(golden, full, number, tmp_path)


def continued(golden, plan, number, folder):
    """A restart from a checkpoint altered by hand is the run in which its leaf is struck at the first step."""
    choice = choose(plan, draw_experiment(plan, number))
    at_first = dataclasses.replace(injection_of(plan, number), step=0)
    arrays = named_arrays(golden.program, golden.fetch_state_before(1))
    changed = np.array(arrays[choice.site.name])
    words, index = host_words(changed).reshape(-1), choice.bits.index
    words[index] = rewritten(words[index], *(x.astype(words.dtype) for x in (choice.bits.keep, choice.bits.flip)))
    arrays[choice.site.name] = of_host_words(words, changed.dtype).reshape(changed.shape)
    path = folder / f"{number}.npz"
    np.savez(path, **arrays)
    restarted = replay(alteration(golden, 1, path, 0, 1, None), golden)
    struck = replay(at_first, golden)
    assert restarted.outcome.outcome == struck.outcome.outcome
    np.testing.assert_array_equal(restarted.faulty.column("loss"), struck.faulty.column("loss"))
    assert restarted.outcome.exactly_masked_after == struck.outcome.exactly_masked_after
