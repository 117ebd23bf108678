"""Faults that are struck beside the step: in the state that it reads, or in the checkpoint that a run restarts from.

So they cost neither a program with fault support nor time in any other step.
"""

from collections.abc import Mapping

from ..models.fault import AllStruck, Fault, Faults, Struck, as_one, each_of, site_id
from ..models.site import Site
from .checkpoint_faults import checkpoint_sites, restarted
from .leaves import Batch, State
from .program import Program
from .report import StepReport
from .state_faults import state_sites, struck_state
from .state_spec import StateSpec


def sites_beside(state: StateSpec) -> dict[str, Site]:
    """What a fault can strike beside the step, by name."""
    return {**state_sites(state), **checkpoint_sites(state)}


def load_site_ids(state: StateSpec) -> frozenset[int]:
    """The ids of the sites that a fault strikes as a checkpoint is loaded: a job begins with that step."""
    return frozenset(map(site_id, checkpoint_sites(state)))


def loaded(program: Program, state: State, fault: Fault) -> tuple[State, Struck]:
    """The state that was saved, as the run has it after it has loaded a checkpoint with this fault."""
    found = restarted(program, state, fault)
    assert found is not None  # it strikes one of `load_site_ids`
    return program.restated(found[0]), found[1]


def faulty_step(
    program: Program, state: State, batch: Batch, epoch: int, step: int, fault: Faults
) -> tuple[State, StepReport]:
    """One step with a fault, or several, in operations or beside the step; the state given can still be used.

    Args:
      fault: those of a tuple strike different operations and leaves.
    """
    faults = each_of(fault)
    told: dict[int, Struck] = {}
    for strike in (restarted, struck_state):
        for number, one in enumerate(faults):
            if number not in told and (found := strike(program, state, one)) is not None:
                new, told[number] = found
                state = program.restated(new)
    inside = tuple(one for number, one in enumerate(faults) if number not in told)
    if inside:
        state, report = program.faulty_step(state, batch, epoch, step, as_one(inside))
    else:
        state, report = program.step(state, batch, epoch, step)
    return state, with_struck(report, told)


def with_struck(report: StepReport, told: Mapping[int, Struck]) -> StepReport:
    """The report of a step in which faults were struck beside it.

    Args:
      report: tells of the others, in their order.
      told: what each of them did by its number among all.
    """
    if not told:
        return report
    inside = iter(each_of(report.struck))
    count = len(told) + len(each_of(report.struck))
    every: AllStruck = as_one(tuple(told[k] if k in told else next(inside) for k in range(count)))
    return report._replace(struck=every)
