"""The run of a group of audits: the faults of several experiments strike in it, each at its own step."""

import time
from collections.abc import Sequence

from .experiment import Laboratory
from .result import GroupResult
from .sampling import choose, draw_experiment
from .together import AuditGroup


def run_group(lab: Laboratory, members: Sequence[int]) -> GroupResult:
    """What the run comes to in which the faults of these experiments strike, followed to the end of the training.

    It forks from the golden state before the first fault.  Like any run it ends before where a value is not finite, or
    where its state is the golden one again behind the last fault.

    Args:
      members: numbers of the experiments, of which no two strike in one step.

    Raises:
      NotRepeated: the machine does not reproduce the golden run.
      FaultNotApplied: a step's observations contradict its fault.
    """
    begun, plan = time.perf_counter(), lab.plan
    choices = sorted((choose(plan, draw_experiment(plan, number)) for number in members), key=lambda one: one.at)
    at = choices[0].at
    for one in choices:
        lab.control(at, one.fault)
    course = lab.course(choices[0], at, others=choices[1:])
    followed = course.take(lab.state_before(at.epoch, at.step), at, plan.end)
    verdict = course.verdict(finished=followed.ended is None)
    steps = len(course.recorder.run.column("loss")) - at.step
    group = AuditGroup(tuple(sorted(members)), *at)
    seconds = time.perf_counter() - begun
    return GroupResult(group.name, group.number, verdict.outcome, verdict.rule, *at, steps, seconds)
