"""Shortcuts × trainings × schedules: a run that may settle, and a run for several faults, say what long ways say."""

import dataclasses
import functools
import re

import numpy as np
import pytest
from test_matrix import (  # noqa: F401  two fixtures
    SCHEDULES,
    TRAININGS,
    as_users_have_it,
    golden_of,
    plan_of,
)
from whole import some

from fault_injection.faults.schedule import SCHEDULE
from fault_injection.questions.outcomes.conditions import Conditions
from fault_injection.questions.outcomes.experiment import Laboratory, run_experiment
from fault_injection.questions.outcomes.group_run import run_group
from fault_injection.questions.outcomes.result import SETTLED
from fault_injection.questions.outcomes.sampling import choose, draw_experiment
from fault_injection.runs.follow import follow
from fault_injection.runs.outcome import MASKED
from fault_injection.runs.steps import Observer, addresses

pytestmark = pytest.mark.usefixtures("compiled_quickly")

QUICK = "momentum"
NAMES = [QUICK, *(pytest.param(name, marks=pytest.mark.slow) for name in some([*TRAININGS], ["transformer", "module"]))]


def laboratory(golden, plan, limit=0.0):
    """Experiments of a plan, where every twin is as far as `limit` after every step."""
    lab = Laboratory(plan, golden, Conditions(), golden.folder / "walks" / "shortcuts")
    size = plan.workload.epochs * plan.steps_per_epoch, len(golden.program.state.leaves)
    lab.twin_limits = functools.cache(lambda: np.full(size, limit, np.float32))
    return lab


class Evaluations(Observer):
    """Keeps loss and metric on the test data after each epoch."""

    def __init__(self):
        self.found = []

    def after_step(self, at, state, report):
        pass

    def after_epoch(self, epoch, state, evaluate):
        self.found.append(evaluate())


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("training", NAMES)
def test_a_run_that_may_settle_is_the_run_itself_and_settles_behind_its_last_strike(
    golden_of,  # noqa: F811
    training,
    schedule,
):
    golden = golden_of(training)
    exact = dataclasses.replace(plan_of(training, "operand"), schedule=SCHEDULE.parse(schedule), exit="exact")
    settling = dataclasses.replace(exact, settled=1, settled_follow=0.0)
    itself = run_experiment(laboratory(golden, exact), 0)
    for limit in (-1.0, np.inf):  # nothing is as near as that; all is
        found = run_experiment(laboratory(golden, settling, limit), 0)
        assert (found.old_bits, found.new_bits) == (itself.old_bits, itself.new_bits)
        assert itself.curve.startswith(found.curve)
        if limit < 0 or schedule in ("permanent", "every 3"):  # what strikes again is no twin of the golden run
            assert (found.outcome, found.exit, found.curve) == (itself.outcome, itself.exit, itself.curve)
        elif itself.first_nonfinite is None and schedule == "once":
            assert (found.outcome, found.exit) in ((MASKED, SETTLED), (itself.outcome, itself.exit))


@pytest.mark.parametrize("target", ["operand", "state"])
@pytest.mark.parametrize("training", NAMES)
def test_the_run_of_a_group_is_the_run_with_all_its_faults(golden_of, training, target):  # noqa: F811
    golden = golden_of(training)
    plan = dataclasses.replace(plan_of(training, target), experiments=40)
    lab, program = laboratory(golden, plan), golden.program
    chosen = {}
    for number in range(plan.experiments):
        chosen.setdefault(choose(plan, draw_experiment(plan, number)).at, number)
    members = [*chosen.values()][:2]
    assert len(members) == 2
    choices = [choose(plan, draw_experiment(plan, number)) for number in members]
    first = min(one.at for one in choices)
    tests = Evaluations()
    steps = addresses(first, plan.end, program.steps_per_epoch)
    follow(program, lab.state_before(*first), steps, {one.at: one.fault for one in choices}, [tests])
    found = run_group(lab, members)
    assert (found.epoch, found.step) == first and found.members == tuple(sorted(members))
    said = re.search(r"test (\d+\.\d+) against", found.rule)
    if said is not None:
        last = tests.found[max(0, plan.workload.epochs - 3 - first.epoch) :]
        assert said[1] in {f"{np.mean(column):.4f}" for column in zip(*last, strict=True)}
    else:
        assert found.outcome == MASKED or not np.isfinite(tests.found[-1].loss)
